"""Versions that several ranks publish together: all or nothing, and what one would publish."""

from __future__ import annotations

import dataclasses
import io
import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deltawire as dw
from board_runs import copied, flip, fresh_memory, same, stored, zeros
from deltawire.digest import combine
from kept import reopened
from part_runs import (
    LAYOUTS,
    TILING,
    blank,
    columns,
    held,
    memory,
    model,
    publish_together,
    rows,
    same_part,
    start,
    upload,
)

__all__ = ["memory"]


@pytest.mark.parametrize("profile", ["compact", "fast", "overwrite"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_parts_are_what_one_writer_publishes(layout: str, profile: Any) -> None:
    board, other = (dw.Board(fresh_memory(), create=True) for _ in range(2))
    start(board)
    start(other)
    with board.publisher() as publisher:
        stats = publish_together(board, publisher, layout, profile=profile, meta={"a": "b"})
    with other.publisher() as publisher:
        whole = publisher.publish(
            1, base=model(0), new=model(1), profile=profile, tiling=TILING, meta={"a": "b"}
        )
    for name in ("version", "changed", "elements", "dense_bytes", "result_state", "anchor"):
        assert getattr(stats, name) == getattr(whole, name), name
    manifest, alone = board.manifest(1), other.manifest(1)
    assert len(manifest.objects) == LAYOUTS[layout]
    assert stats.bytes == manifest.bytes
    assert (
        dataclasses.replace(
            manifest,
            **{
                name: getattr(alone, name)
                for name in ("objects", "parent", "write_id", "time", "digest")
            },
            last_anchor=alone.last_anchor,
        )
        == alone
    )

    # The joined delta is the other board's, but for the order of tensors.
    joined, single = io.BytesIO(), io.BytesIO()
    assert board.fetch(1, joined) == len(joined.getvalue())
    other.fetch(1, single)
    mine, theirs = dw.inspect(joined.getvalue()), dw.inspect(single.getvalue())
    for name in ("run", "version", "base_version", "profile", "meta", "changed", "chunks"):
        assert getattr(mine, name) == getattr(theirs, name), name
    assert (mine.base_state, mine.result_state) == (theirs.base_state, theirs.result_state)
    by_name = {tensor.name: tensor for tensor in theirs.tensors}
    # One part is a delta as it is; several are joined in the order of names.
    order = sorted(by_name) if len(manifest.objects) > 1 else list(by_name)
    assert [tensor.name for tensor in mine.tensors] == order
    for tensor in mine.tensors:
        wanted = by_name[tensor.name]
        assert tensor.digest in (None, wanted.digest)
        # Numbers of tensors take the same byte here, so records are as long.
        assert dataclasses.replace(tensor, digest=None) == dataclasses.replace(wanted, digest=None)


@pytest.mark.parametrize("layout", ["tp4", "tp2pp2"])
def test_every_reader_gets_every_bit(board: dw.Board, layout: str, tmp_path: Path) -> None:
    start(board)
    served = zeros(model())
    follower = board.follower(served)
    ranks = LAYOUTS[layout]
    targets = [blank(held("tp2", model(), rank)) for rank in range(2)]
    shards = [board.follower(target, partial=True) for target in targets]
    directory = tmp_path / "pulled"
    for reader in [follower, *shards]:
        reader.advance()
    board.pull(directory)
    with board.publisher() as publisher:
        for version in range(1, 4):
            # Versions of one writer between them.
            if version == 2:
                publisher.publish(2, base=model(1), new=model(2), tiling=TILING)
            else:
                with publisher.begin(parts=ranks, tiling=TILING) as pending:
                    parts = []
                    for rank in range(ranks):
                        parts.append(upload(reopened(board), pending.ticket, layout, rank))
                        # Nothing is visible before all is.
                        assert reopened(board).head() == board.head() == version - 1
                        assert follower.advance() == []
                    pending.commit(parts)
            assert [step.version for step in follower.advance()] == [version]
            assert same(served, model(version))
            assert follower.prove() == board.manifest(version).result_state
            for rank, reader in enumerate(shards):
                reader.advance()
                assert same_part(targets[rank], held("tp2", model(version), rank))
            sums = [reader.prove() for reader in shards]
            assert combine(*sums) == board.manifest(version).result_state
    board.pull(directory)
    with dw.Checkpoint.open(directory) as checkpoint:
        assert same(checkpoint, model(3))
    late = zeros(model())
    board.follower(late).advance()
    assert same(late, model(3))
    # A later start, over several parts at once.
    behind = copied(model(0))
    board.follower(behind, version=0).advance()
    assert same(behind, model(3))
    # Nothing else lies there.
    listed = [path for m in board.log() for part in m.objects for path in [part.path]]
    assert [path for path in stored(board) if path.startswith("objects/")] == sorted(listed)


def test_a_file_is_compared_with_the_joined_parts(memory: dw.Board, tmp_path: Path) -> None:
    with memory.publisher() as publisher:
        publish_together(memory, publisher, "tp2")
    path = tmp_path / "1.dw"
    with path.open("wb") as file:
        assert memory.fetch(1, file) == file.tell()
    assert memory.check_delta(path, 1).version == 1
    state = model(0)
    dw.apply(path, state)
    assert same(state, model(1))
    flip(path, 50)
    with pytest.raises(dw.UntrustedDelta, match="not the delta"):
        memory.check_delta(path, 1)


def test_versions_of_one_and_of_several_writers_are_composed(memory: dw.Board) -> None:
    """Their tables have the same tensors in another order."""
    with memory.publisher() as publisher:
        publisher.publish(1, base=model(0), new=model(1), tiling=TILING)
        publish_together(memory, publisher, "tp2pp2")
        publisher.publish(3, base=model(2), new=model(3), tiling=TILING)
    deltas = []
    for version in (1, 2, 3):
        sink = io.BytesIO()
        memory.fetch(version, sink)
        deltas.append(sink.getvalue())
    assert len({tuple(t.name for t in dw.inspect(delta).tensors) for delta in deltas}) == 2
    folded, state = io.BytesIO(), model(0)
    dw.compose(deltas, folded, base=model(0))
    dw.apply(folded.getvalue(), state)
    assert same(state, model(3))


def test_skips_over_versions_of_several_writers(memory: dw.Board) -> None:
    with memory.publisher() as publisher:
        publisher.publish(1, base=model(0), new=model(1), tiling=TILING)
        for layout in ("tp2", "tp2pp2"):
            publish_together(memory, publisher, layout)
    memory.add_skip(0, 3, weights=model(0))
    served = model(0)
    assert [step.version for step in memory.follower(served, version=0).advance()] == [3]
    assert same(served, model(3))


#: As in test_board_shards: large enough for hashes of records, and for the default tiling.
WIDE = {"q.weight": (4096, 1024), "down_proj.weight": (1024, 4096), "norm.weight": (1024,)}


def wide(version: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    arrays = {name: rng.integers(0, 2**16, shape, np.uint16) for name, shape in WIDE.items()}
    rng = np.random.default_rng(1)
    for _ in range(version):
        for array in arrays.values():
            array += (rng.random(array.shape) < 0.12).astype(np.uint16)
    return arrays


def wide_part(arrays: dict[str, Any], rank: int, ranks: int) -> dict[str, Any]:
    part: dict[str, Any] = {
        "q.weight": rows(arrays["q.weight"], rank, ranks),
        "down_proj.weight": columns(arrays["down_proj.weight"], rank, ranks),
    }
    return {**part, "norm.weight": arrays["norm.weight"]} if rank == 0 else part


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_fetches_only_its_part_of_the_parts(ranks: int, tmp_path: Path) -> None:
    """Readers are four, writers two or four; each record is checked with its BLAKE3."""
    board = dw.Board(tmp_path / "board", create=True)
    with board.publisher() as publisher:
        publisher.publish_anchor(0, wide(0))
        with publisher.begin(parts=ranks) as pending:
            pending.commit(
                board.upload_part(
                    pending.ticket,
                    rank,
                    base=wide_part(wide(0), rank, ranks),
                    new=wide_part(wide(1), rank, ranks),
                )
                for rank in range(ranks)
            )
    manifest = board.manifest(1)
    assert all(part.records is not None for part in manifest.objects)
    sums = []
    for rank in range(4):
        target = wide_part(wide(0), rank, 4)
        follower = board.follower(target, version=0, partial=True)
        (step,) = follower.advance()
        assert same_part(target, wide_part(wide(1), rank, 4))
        assert step.bytes < 0.3 * manifest.bytes, f"{step.bytes / manifest.bytes:.3f} of the whole"
        sums.append(follower.prove())
    assert combine(*sums) == manifest.result_state
    # And a rank that needs nothing of most parts is told of what is wrong with the one it needs.
    victim = manifest.objects[ranks - 1]
    path = tmp_path / "board" / victim.path
    flip(path, path.stat().st_size // 2)
    target = wide_part(wide(0), 0, 4)
    board.follower(target, version=0, partial=True).advance()
    assert same_part(target, wide_part(wide(1), 0, 4))
    target = wide_part(wide(0), 3, 4)
    refused: list[str] = []
    for place in range(path.stat().st_size // 8, path.stat().st_size, path.stat().st_size // 5):
        flip(path, place)
    with pytest.raises((dw.UntrustedDelta, dw.CorruptDelta)) as caught:
        board.follower(target, version=0, partial=True).advance()
    refused.append(str(caught.value))
    assert victim.path in refused[0]
    assert same_part(target, wide_part(wide(0), 3, 4))


def one_process(url: str, ticket: bytes, layout: str, rank: int) -> bytes:
    return pickle.dumps(upload(dw.Board(url), pickle.loads(ticket), layout, rank))


def test_ranks_are_processes(tmp_path: Path) -> None:
    board = dw.Board(tmp_path / "board", create=True)
    start(board)
    with board.publisher() as publisher, publisher.begin(parts=4, tiling=TILING) as pending:
        ticket = pickle.dumps(pending.ticket)
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            work = [(board.url, ticket, "tp2pp2", rank) for rank in range(4)]
            parts = [pickle.loads(part) for part in pool.starmap(one_process, work)]
        pending.commit(parts)
    served = model(0)
    board.follower(served, version=0).advance()
    assert same(served, model(1))


# --- What goes wrong ---------------------------------------------------------------------
