"""Followers and pulled directories whose tiles are damaged get just these rebuilt."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import deltawire as dw
from board_runs import fresh_memory
from deltawire.board import anchor as anchors
from deltawire.board import repair as repairing
from kept import Kept, flipped, reopened
from repair_runs import (
    BLOCK,
    SHAPES,
    TILE,
    Words,
    counted,
    equal,
    fill,
    made,
    part,
    small_blocks,
    step,
    words,
)
from signed_runs import trainer
from store_servers import S3, Web, quick_options

__all__ = ["small_blocks"]

DENSE = sum(array.nbytes for array in words().values())


@pytest.fixture(params=["memory", "path", "s3"])
def both(request: pytest.FixtureRequest, tmp_path: Path, s3: S3) -> tuple[dw.Board, Kept | None]:
    """A board with versions 0, an anchor, to 4, and what holds it."""
    board, kept = made(request.param, tmp_path, s3)
    fill(board, 4)
    return board, kept


@pytest.fixture
def local(tmp_path: Path) -> tuple[dw.Board, Path]:
    """As ``both``, in a directory."""
    board = dw.Board(tmp_path / "board", create=True)
    fill(board, 4)
    return board, tmp_path / "board"


def harm(target: Words) -> int:
    """Alter elements of four tiles; the number of tiles."""
    target["q_proj.weight"][3, 5] ^= 1
    target["q_proj.weight"][700:702, 100:200] = 0
    target["down_proj.weight"][40, 1000] += 7
    target["down_proj.weight"][41, 130] ^= 0x8000
    return 4


def snapshot(target: Words) -> Words:
    return {name: array.copy() for name, array in target.items()}


def refused(
    board: dw.Board, target: Words, error: type[dw.DeltawireError], match: str, **settings: Any
) -> dw.DeltawireError:
    """A follower at version 2 fails, and its target is as before."""
    before = snapshot(target)
    follower = board.follower(target, version=2, **settings)
    with pytest.raises(error, match=match) as caught:
        follower.advance()
    assert equal(target, before)
    assert follower.version == 2
    return caught.value


def test_a_damaged_follower_advances(both: tuple[dw.Board, Kept | None]) -> None:
    """Through the deltas since the anchor, with a small part of either."""
    board, store = counted(both[0])
    target = words(2)
    tiles = harm(target)
    follower = board.follower(target, version=2)
    before = snapshot(target)
    assert follower.stage() == [3, 4]
    assert equal(target, before)
    done = follower.commit()
    assert equal(target, words(4))
    follower.prove()
    assert [entry.repaired for entry in done] == [tiles, 0]
    fetched = sum(entry.bytes for entry in done)
    assert fetched == sum(store.bytes.values())
    # Blocks of four tiles and of the header, and their hashes.
    assert store.bytes["anchors"] < 20 * BLOCK < 0.2 * DENSE
    deltas = {version: board.manifest(version).bytes for version in range(1, 5)}
    assert fetched - deltas[3] - deltas[4] - store.bytes["anchors"] < 0.5 * (deltas[1] + deltas[2])
    assert done[0].changed == board.manifest(3).changed


def test_nothing_is_fetched_for_a_sound_target(local: tuple[dw.Board, Path]) -> None:
    board, store = counted(local[0])
    done = board.follower(words(2), version=2).advance()
    assert "anchors" not in store.bytes
    assert [entry.repaired for entry in done] == [0, 0]


def test_one_rank_repairs_its_part(local: tuple[dw.Board, Path]) -> None:
    board, store = counted(local[0])
    target = part(words(2), 1)
    target["q_proj.weight"].tensor[9, 9] ^= 4
    target["down_proj.weight"].tensor[100, 255] ^= 4
    done = board.follower(target, version=2).advance()
    assert equal(target, part(words(4), 1))
    assert [entry.repaired for entry in done] == [2, 0]
    assert store.bytes["anchors"] < 0.1 * DENSE
    # Another rank's damage is not its business, and not found in its part.
    assert (
        sum(entry.repaired for entry in board.follower(part(words(2), 2), version=2).advance()) == 0
    )


def test_of_a_part_damage_may_come_to_light_later(tmp_path: Path) -> None:
    """Where a later delta is the first that changes the tile: no state of the whole is known."""
    board = dw.Board(tmp_path / "board", create=True)
    old = words()
    middle = {**old, "norm.weight": old["norm.weight"] + 1}
    new = step(middle, 5)
    with board.publisher() as publisher:
        publisher.publish_anchor(0, old)
        publisher.publish(1, base=old, new=middle, tiling=repair_tiling())
        publisher.publish(2, base=middle, new=new, tiling=repair_tiling())
    target = part(old, 0)
    target["q_proj.weight"].tensor[1, 1] ^= 1
    done = board.follower(target, version=0).advance()
    assert [entry.repaired for entry in done] == [0, 1]
    assert equal(target, part(new, 0))
    # The whole is refused at once, for version 1 does not touch that tile.
    whole = snapshot(old)
    whole["q_proj.weight"][1, 1] ^= 1
    before = snapshot(whole)
    with pytest.raises(dw.WrongBase, match="does not touch"):
        board.follower(whole, version=0).advance()
    assert equal(whole, before)


def repair_tiling() -> dw.Tiling:
    return dw.Tiling(max_elements=TILE // 2, min_elements=1)


def test_tiles_with_the_result_and_damaged_ones(local: tuple[dw.Board, Path]) -> None:
    """As a crash in the middle of writing leaves them."""
    board, _ = local
    target, new = words(2), words(3)
    target["q_proj.weight"][:512] = new["q_proj.weight"][:512]
    target["q_proj.weight"][520, :17] = new["q_proj.weight"][520, :17] + 1
    done = board.follower(target, version=2).advance(3)
    assert done[0].repaired == 1
    assert equal(target, new)


def test_damage_elsewhere_is_refused(tmp_path: Path) -> None:
    board = dw.Board(tmp_path / "board", create=True)
    old = words()
    new = snapshot(old)
    new["q_proj.weight"][0, 0] += 1
    with board.publisher() as publisher:
        publisher.publish_anchor(0, old)
        publisher.publish(1, base=old, new=new, tiling=repair_tiling())
    for changed_too in (False, True):
        target = snapshot(old)
        target["down_proj.weight"][0, 0] ^= 1
        if changed_too:
            target["q_proj.weight"][0, 1] ^= 1
        before = snapshot(target)
        follower = board.follower(target, version=0)
        with pytest.raises(dw.WrongBase, match="does not touch"):
            follower.advance()
        assert equal(target, before)
        assert follower.version == 0


def test_too_much_damage_is_refused(
    local: tuple[dw.Board, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    board, store = counted(local[0])
    target = words(2)
    target["q_proj.weight"] ^= 1
    refused(board, target, dw.WrongBase, "neither")
    assert "anchors" not in store.bytes
    # And not more than may be held in memory.
    monkeypatch.setattr(repairing, "MOST_BYTES", 3 * TILE)
    target = words(2)
    harm(target)
    refused(board, target, dw.WrongBase, "neither")
    assert "anchors" not in store.bytes
    target = words(2)
    target["q_proj.weight"][0, 0] ^= 1
    board.follower(target, version=2).advance()
    assert equal(target, words(4))


def test_repair_may_be_declined(local: tuple[dw.Board, Path], tmp_path: Path) -> None:
    board, _ = local
    target = words(2)
    harm(target)
    refused(board, target, dw.WrongBase, "neither", repair=False)
    board.pull(tmp_path / "out", version=2)
    weights = tmp_path / "out" / "model.safetensors"
    weights.write_bytes(flipped(weights.read_bytes(), 5000))
    before = weights.read_bytes()
    with pytest.raises(dw.WrongBase, match="pull into another one"):
        board.pull(tmp_path / "out", repair=False)
    assert weights.read_bytes() == before


@settings(max_examples=15)
@given(data=st.data())
def test_any_damage_ends_in_the_right_bits(data: st.DataObject) -> None:
    """Or is refused as a whole: followers and directories, whole and in parts."""
    board, states = _shared()
    version = data.draw(st.integers(0, 2))
    rank = data.draw(st.sampled_from([None, 0, 3]))
    target: Any = snapshot(states[version]) if rank is None else part(states[version], rank)
    arrays = {name: getattr(tensor, "tensor", tensor) for name, tensor in target.items()}
    for _ in range(data.draw(st.integers(0, 12))):
        array = arrays[data.draw(st.sampled_from(sorted(SHAPES)))].reshape(-1)
        begin = data.draw(st.integers(0, array.size - 1))
        count = data.draw(st.sampled_from([1, 3, 700]))
        array[begin : begin + count] ^= data.draw(st.integers(1, 0xFFFF))
    before = {name: array.copy() for name, array in arrays.items()}
    follower = board.follower(target, version=version)
    try:
        done = follower.advance()
    except dw.WrongBase:
        # A column of many rows takes more tiles than a repair is for.
        assert equal(target, before)
        return
    wanted = states[3] if rank is None else part(states[3], rank)
    assert equal(target, wanted)
    assert done[-1].version == 3


_made: list[tuple[dw.Board, list[Words]]] = []


def _shared() -> tuple[dw.Board, list[Words]]:
    if not _made:
        board = dw.Board(fresh_memory(), create=True)
        fill(board, 3, added=[1])
        _made.append((board, [words(version) for version in range(4)]))
    return _made[0]


def test_a_damaged_directory_is_pulled(both: tuple[dw.Board, Kept | None], tmp_path: Path) -> None:
    board, store = counted(both[0])
    directory = tmp_path / "out"
    board.pull(directory, version=2)
    with dw.Checkpoint.open(directory, writable=True) as checkpoint:
        tensors = {name: view.data.view(np.uint16) for name, view in checkpoint.items()}
        tiles = harm(tensors)
        checkpoint.flush()
    store.bytes.clear()
    stats = board.pull(directory)
    assert (stats.anchor, stats.versions, stats.repaired) == (None, 2, tiles)
    assert stats.bytes == sum(store.bytes.values())
    assert store.bytes["anchors"] < 0.2 * DENSE
    with dw.Checkpoint.open(directory) as checkpoint:
        found = {name: view.data.view(np.uint16) for name, view in checkpoint.items()}
        assert all(np.array_equal(found[n].reshape(a.shape), a) for n, a in words(4).items())
        del found, tensors


def test_a_torn_directory_needs_no_anchor(local: tuple[dw.Board, Path], tmp_path: Path) -> None:
    """A tile half written, and ``pending``: as a crash of the machine leaves them."""
    board, store = counted(local[0])
    directory = tmp_path / "out"
    board.pull(directory, version=2)
    state = json.loads((directory / "deltawire.json").read_text())
    state["pending"] = {"version": 3, "anchor": False}
    (directory / "deltawire.json").write_text(json.dumps(state))
    weights = directory / "model.safetensors"
    weights.write_bytes(flipped(weights.read_bytes(), 70_000))
    store.bytes.clear()
    stats = board.pull(directory)
    assert (stats.anchor, stats.repaired) == (None, 1)
    assert store.bytes["anchors"] < 0.1 * DENSE
    # Without a way to repair, all of an anchor is loaded, as before.
    state["pending"] = {"version": 5, "anchor": False}
    state.update({"version": 4, "manifest": board.manifest(4).digest})
    state["state"] = board.manifest(4).result_state.hex()
    with board.publisher() as publisher:
        publisher.publish(5, base=words(4), new=words(5), tiling=repair_tiling())
    (directory / "deltawire.json").write_text(json.dumps(state))
    raw = bytearray(weights.read_bytes())
    raw[-DENSE:] = bytes(DENSE)
    weights.write_bytes(raw)
    stats = board.pull(directory)
    assert (stats.anchor, stats.repaired, stats.version) == (0, 0, 5)


def test_a_torn_directory_loads_an_anchor_where_a_repair_fails(
    local: tuple[dw.Board, Path], tmp_path: Path
) -> None:
    """As before there were repairs; here behind a server that knows no ranges."""
    root = local[1]
    with Web(root, ranges=False) as web:
        served = dw.Board(web.url, options=quick_options(retries=0))
        directory = tmp_path / "out"
        served.pull(directory, version=2)
        state = json.loads((directory / "deltawire.json").read_text())
        weights = directory / "model.safetensors"
        weights.write_bytes(flipped(weights.read_bytes(), 70_000))
        with pytest.raises(dw.StoreError):
            served.pull(directory)
        state["pending"] = {"version": 3, "anchor": False}
        (directory / "deltawire.json").write_text(json.dumps(state))
        stats = served.pull(directory)
    assert (stats.anchor, stats.repaired, stats.version) == (0, 0, 4)


def test_the_newest_anchor_is_read(tmp_path: Path) -> None:
    board = dw.Board(tmp_path / "board", create=True)
    fill(board, 4, added=[2])
    board, store = counted(board)
    target = words(3)
    harm(target)
    done = board.follower(target, version=3).advance()
    assert equal(target, words(4))
    # Of the deltas before that anchor nothing.
    assert store.bytes["objects"] <= sum(board.manifest(v).bytes + 40_000 for v in (3, 4))
    assert done[0].repaired == 4
    shutil.rmtree(tmp_path / "board" / "objects" / "2")
    shutil.rmtree(tmp_path / "board" / "anchors" / "0")
    target = words(3)
    harm(target)
    board.follower(target, version=3).advance()
    assert equal(target, words(4))


def test_anchors_of_several_files(tmp_path: Path) -> None:
    """Only files that hold the tiles are looked into; small ones without hashes are read whole."""
    board = dw.Board(tmp_path / "board", create=True)
    fill(board, 2, shard=1 << 20)
    anchor = board.manifest(0).anchor
    assert anchor is not None
    files = {file.path.split("/")[-1]: file for file in anchor.files}
    assert len(files) == 4
    has_blocks = {name: file.blocks is not None for name, file in files.items()}
    assert sorted(has_blocks.values()) == [False, False, True, True]
    board, store = counted(board)
    target = words(1)
    target["norm.weight"][7] ^= 1
    target["down_proj.weight"][0, 0] ^= 1
    board.follower(target, version=1).advance()
    assert equal(target, words(2))
    assert store.bytes["anchors"] < 10 * BLOCK
    # A wrong index costs requests, nothing else.
    index = tmp_path / "board" / "anchors" / "0" / "model.safetensors.index.json"
    for raw in (b"{", b"[]", b'{"weight_map": 3}', b'{"weight_map": {"norm.weight": "x"}}'):
        index.write_bytes(raw)
        target = words(1)
        target["norm.weight"][7] ^= 1
        board.follower(target, version=1).advance()
        assert equal(target, words(2))


def test_an_anchor_without_blocks_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(anchors, "WORTH_BLOCKS", 1 << 20)
    board = dw.Board(tmp_path / "board", create=True)
    fill(board, 3)
    monkeypatch.undo()
    anchor = board.manifest(0).anchor
    assert anchor is not None
    assert all(file.blocks is None for file in anchor.files)
    board, store = counted(board)
    target = words(2)
    harm(target)
    done = board.follower(target, version=2).advance()
    assert equal(target, words(3))
    assert done[0].repaired == 4
    assert store.bytes["anchors"] == anchor.bytes
    weights = tmp_path / "board" / "anchors" / "0" / "model.safetensors"
    whole = weights.read_bytes()
    for place in (0, 8, 30, 5000, len(whole) // 2, len(whole) - 1):
        weights.write_bytes(flipped(whole, place))
        target = words(2)
        harm(target)
        error = refused(board, target, dw.UntrustedDelta, "BLAKE3")
        assert error.path == f"{board.url}/anchors/0/model.safetensors"
        assert error.version == 0


def error_of(follower: dw.Follower) -> dw.DeltawireError | None:
    """What advancing ends in."""
    try:
        follower.advance()
    except dw.DeltawireError as error:
        return error
    return None


@pytest.mark.parametrize("which", ["block", "header", "hashes", "records", "delta"])
def test_what_was_altered_is_refused_by_name(
    both: tuple[dw.Board, Kept | None], which: str
) -> None:
    board, kept = both
    if kept is None:
        pytest.skip("no access past the board")
    anchor = board.manifest(0).anchor
    assert anchor is not None
    (file,) = [file for file in anchor.files if file.blocks is not None]
    assert file.blocks is not None
    (delta,) = board.manifest(1).objects
    assert delta.records is not None
    target = words(2)
    target["q_proj.weight"][0, 0] ^= 1
    name, places = {
        "block": (file.path, [BLOCK - 1, DENSE // 2, -1]),
        "header": (file.path, [0, 9, 100]),
        "hashes": (file.blocks.path, [0, 40, file.blocks.bytes - 1]),
        "records": (delta.records.path, [0, 40, delta.records.bytes - 1]),
        "delta": (delta.path, [20, delta.bytes - 5]),
    }[which]
    whole = kept.read(name)
    refusals = 0
    for place in places:
        kept.write(name, flipped(whole, place))
        target = words(2)
        target["q_proj.weight"][0, 0] ^= 1
        before = snapshot(target)
        follower = reopened(board).follower(target, version=2)
        error = error_of(follower)
        if error is None:
            # Of the anchor other blocks than those altered were needed.
            assert which == "block"
            assert equal(target, words(4))
            continue
        refusals += 1
        assert isinstance(error, dw.UntrustedDelta | dw.CorruptDelta)
        assert name.split("/")[-1].split(".")[0] in str(error)
        assert equal(target, before)
        assert follower.version == 2
    assert refusals == (1 if which == "block" else len(places))
    kept.remove(name)
    target = words(2)
    target["q_proj.weight"][0, 0] ^= 1
    if which != "delta":
        refused(reopened(board), target, dw.StoreError, "no such object")
    kept.write(name, whole)


def test_a_board_whose_anchor_does_not_lead_to_the_version(tmp_path: Path) -> None:
    """Every object is what its record says, but the bits do not fit: the publisher is at fault."""
    board = dw.Board(tmp_path / "board", create=True)
    fill(board, 3)
    anchor = board.manifest(0).anchor
    assert anchor is not None
    other = dw.Board(tmp_path / "other", create=True)
    wrong = words()
    wrong["q_proj.weight"][0, :] ^= 3
    with other.publisher() as publisher:
        publisher.publish_anchor(0, wrong)
    # The first manifest again, with the files of the other anchor; the chain is made anew.
    path = tmp_path / "board" / "manifests"
    first = json.loads((path / f"{0:020d}.json").read_text())
    first["anchor"] = json.loads(other.manifest(0).to_json())["anchor"]
    shutil.rmtree(tmp_path / "board" / "anchors")
    shutil.copytree(tmp_path / "other" / "anchors", tmp_path / "board" / "anchors")
    records = [first] + [json.loads((path / f"{v:020d}.json").read_text()) for v in (1, 2, 3)]
    fresh = dw.Board(tmp_path / "fresh", create=True)
    for name in ("anchors", "objects"):
        shutil.copytree(tmp_path / "board" / name, tmp_path / "fresh" / name, dirs_exist_ok=True)
    digests = [fresh.store.commit(0, json.dumps(first).encode())]
    for version, record in enumerate(records[1:], 1):
        record["parent"]["digest"] = digests[-1]
        record["last_anchor"] = {"version": 0, "digest": digests[0]}
        digests.append(fresh.store.commit(version, json.dumps(record).encode()))
    target = words(2)
    target["q_proj.weight"][0, 0] ^= 1
    error = refused(fresh, target, dw.UntrustedDelta, "do not lead to the bits")
    assert error.tensor == "q_proj.weight"


def test_over_skip_records(tmp_path: Path) -> None:
    """Before a delta that folds several, and through one from the anchor."""
    board = dw.Board(tmp_path / "board", create=True)
    fill(board, 5)
    board.add_skip(2, 5, weights=words(2))
    board.add_skip(0, 2, weights=words(0))
    board, store = counted(board)
    target = words(2)
    tiles = harm(target)
    (done,) = board.follower(target, version=2).advance()
    assert equal(target, words(5))
    assert done.repaired == tiles
    assert done.bytes == sum(store.bytes.values())
    shutil.rmtree(tmp_path / "board" / "anchors")
    target = words(2)
    harm(target)
    refused(reopened(board), target, dw.StoreError, "no such object")


def test_deltas_that_are_cut_differently(tmp_path: Path) -> None:
    """Where tiles of one lie within a tile of another, what the larger needs is not at hand."""
    board = dw.Board(tmp_path / "board", create=True)
    with board.publisher() as publisher:
        publisher.publish_anchor(0, words())
        publisher.publish(1, base=words(), new=words(1), tiling=dw.Tiling())
        publisher.publish(2, base=words(1), new=words(2), tiling=repair_tiling())
        publisher.publish(3, base=words(2), new=words(3), tiling=repair_tiling())
    target = words(2)
    harm(target)
    refused(board, target, dw.WrongBase, "neither")
    with board.publisher() as publisher:
        publisher.publish_anchor(1, words(1))
    board.follower(target, version=2).advance()
    assert equal(target, words(3))


def test_boards_without_a_way_refuse_as_before(tmp_path: Path) -> None:
    """The anchor is gone, or the deltas are cut differently where it does not matter."""
    board = dw.Board(tmp_path / "board", create=True)
    fill(board, 2)
    with board.publisher() as publisher:
        publisher.publish(3, base=words(2), new=words(3), tiling=dw.Tiling())
    target = words(2)
    target["norm.weight"][0] ^= 1
    done = board.follower(target, version=2).advance()  # cut alike: it is one tile
    assert (done[0].repaired, equal(target, words(3))) == (1, True)
    manifest = tmp_path / "board" / "manifests" / f"{0:020d}.json"
    manifest.unlink()
    target = words(1)
    target["norm.weight"][0] ^= 1
    before = snapshot(target)
    with pytest.raises(dw.WrongBase, match="neither"):
        board.follower(target, version=1).advance(2)
    assert equal(target, before)


def test_collected_boards(local: tuple[dw.Board, Path]) -> None:
    """What a reader holds may lie below the boundary, or have its anchor there."""
    board, _ = local
    with board.publisher() as publisher:
        publisher.publish_anchor(2, words(2))
    board.collect(keep=3)
    assert board.boundary() == 2
    board, store = counted(reopened(board))
    target = words(2)
    tiles = harm(target)
    done = board.follower(target, version=2).advance()
    assert equal(target, words(4))
    assert done[0].repaired == tiles
    assert store.bytes["anchors"] < 0.2 * DENSE
    # Versions before the boundary start from its anchor, damaged or not.
    target = words(1)
    harm(target)
    done = board.follower(target, version=1).advance()
    assert equal(target, words(4))


def test_signed_boards(tmp_path: Path) -> None:
    board = dw.Board(tmp_path / "board", create=True)
    fill(board, 3, added=[1], key=trainer())
    trust = dw.Trust([trainer().public])
    board = dw.Board(tmp_path / "board", trust=trust)
    target = words(2)
    harm(target)
    done = board.follower(target, version=2).advance()
    assert (done[0].repaired, equal(target, words(3))) == (4, True)
    record = tmp_path / "board" / "manifests" / f"{1:020d}.anchor.json"
    value = json.loads(record.read_text())
    for file in value["anchor"]["files"]:
        if "blocks" in file:
            file["blocks"]["blake3"] = "00" * 32
    record.write_text(json.dumps(value, separators=(",", ":")))
    target = words(2)
    harm(target)
    refused(dw.Board(tmp_path / "board", trust=trust), target, dw.UntrustedDelta, "sign")


def test_tied_tensors(tmp_path: Path) -> None:
    """Two names for one memory: both have the tile, and both are rebuilt."""
    old = words()["q_proj.weight"]
    new = old + 1
    board = dw.Board(tmp_path / "board", create=True)
    other = words()["down_proj.weight"]
    with board.publisher() as publisher:
        publisher.publish_anchor(0, {"a": old, "b": old.copy(), "c": other})
        publisher.publish(
            1,
            base={"a": old, "b": old.copy(), "c": other},
            new={"a": new, "b": new.copy(), "c": other},
            tiling=repair_tiling(),
        )
    memory = old.copy()
    memory[100, 100] ^= 1
    done = board.follower({"a": memory, "b": memory, "c": other.copy()}, version=0).advance()
    assert done[0].repaired == 2
    assert np.array_equal(memory, new)


def test_stats_are_records() -> None:
    board, states = _shared()
    target = snapshot(states[2])
    target["norm.weight"][0] ^= 1
    (done,) = board.follower(target, version=2).advance()
    assert done.as_dict()["repaired"] == 1
    assert {field.name for field in dataclasses.fields(done)} >= {"repaired", "bytes"}
