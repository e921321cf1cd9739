"""Followers and pulled directories whose tiles are damaged get just these rebuilt."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import deltawire as dw
from board_runs import copied, fresh_memory
from deltawire.board import repair as repairing
from kept import Kept, flipped
from repair_runs import (
    BLOCK,
    DENSE,
    SHAPES,
    TILE,
    TILING,
    Words,
    both,
    counted,
    equal,
    fill,
    harm,
    local,
    part,
    refused,
    small_blocks,
    step,
    words,
)
from store_servers import Web, quick_options

__all__ = ["both", "local", "small_blocks"]


def test_a_damaged_follower_advances(both: tuple[dw.Board, Kept | None]) -> None:
    """Through the deltas since the anchor, with a small part of either."""
    board, store = counted(both[0])
    target = words(2)
    tiles = harm(target)
    follower = board.follower(target, version=2)
    before = copied(target)
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
        publisher.publish(1, base=old, new=middle, tiling=TILING)
        publisher.publish(2, base=middle, new=new, tiling=TILING)
    target = part(old, 0)
    target["q_proj.weight"].tensor[1, 1] ^= 1
    done = board.follower(target, version=0).advance()
    assert [entry.repaired for entry in done] == [0, 1]
    assert equal(target, part(new, 0))
    # The whole is refused at once, for version 1 does not touch that tile.
    whole = copied(old)
    whole["q_proj.weight"][1, 1] ^= 1
    before = copied(whole)
    with pytest.raises(dw.WrongBase, match="does not touch"):
        board.follower(whole, version=0).advance()
    assert equal(whole, before)


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
    new = copied(old)
    new["q_proj.weight"][0, 0] += 1
    with board.publisher() as publisher:
        publisher.publish_anchor(0, old)
        publisher.publish(1, base=old, new=new, tiling=TILING)
    for changed_too in (False, True):
        target = copied(old)
        target["down_proj.weight"][0, 0] ^= 1
        if changed_too:
            target["q_proj.weight"][0, 1] ^= 1
        before = copied(target)
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
    target: Any = copied(states[version]) if rank is None else part(states[version], rank)
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
        publisher.publish(5, base=words(4), new=words(5), tiling=TILING)
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


def test_stats_are_records() -> None:
    board, states = _shared()
    target = copied(states[2])
    target["norm.weight"][0] ^= 1
    (done,) = board.follower(target, version=2).advance()
    assert done.as_dict()["repaired"] == 1
    assert {field.name for field in dataclasses.fields(done)} >= {"repaired", "bytes"}
