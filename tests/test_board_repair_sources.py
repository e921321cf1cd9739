"""What a repair reads from a board, and what it refuses there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import deltawire as dw
from board_runs import copied
from deltawire.board import anchor as anchors
from kept import Kept, flipped, reopened
from repair_runs import (
    BLOCK,
    DENSE,
    TILING,
    both,
    counted,
    equal,
    fill,
    harm,
    local,
    refused,
    small_blocks,
    words,
)
from signed_runs import trainer

__all__ = ["both", "local", "small_blocks"]


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
        before = copied(target)
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
        publisher.publish(2, base=words(1), new=words(2), tiling=TILING)
        publisher.publish(3, base=words(2), new=words(3), tiling=TILING)
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
    before = copied(target)
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
            tiling=TILING,
        )
    memory = old.copy()
    memory[100, 100] ^= 1
    done = board.follower({"a": memory, "b": memory, "c": other.copy()}, version=0).advance()
    assert done[0].repaired == 2
    assert np.array_equal(memory, new)
