"""Versions that several ranks publish together: all or nothing, and what one would publish."""

from __future__ import annotations

import dataclasses
import io
import multiprocessing
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deltawire as dw
from board_runs import contents, copied, flip, fresh_memory, same, stored, zeros
from deltawire.digest import combine
from kept import reopened
from part_runs import (
    LAYOUTS,
    TILING,
    blank,
    columns,
    held,
    model,
    publish_together,
    rows,
    same_part,
    upload,
)
from store_servers import S3


@pytest.fixture(params=["path", "memory", "s3"])
def board(request: pytest.FixtureRequest, tmp_path: Path) -> dw.Board:
    """An empty board on each kind of store."""
    if request.param == "s3":
        s3: S3 = request.getfixturevalue("s3")
        return s3.board()
    url = fresh_memory() if request.param == "memory" else str(tmp_path / "board")
    return dw.Board(url, create=True)


@pytest.fixture
def memory() -> dw.Board:
    """A board in memory with an anchor."""
    board = dw.Board(fresh_memory(), create=True)
    start(board)
    return board


def start(board: dw.Board, **settings: Any) -> None:
    with board.publisher(run="test", **settings) as publisher:
        publisher.publish_anchor(0, model(0))


def objects(board: dw.Board, version: int) -> list[str]:
    return [path for path in stored(board) if path.startswith(f"objects/{version}/")]


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


class Boom(Exception):
    """Some rank fails."""


def test_a_rank_fails(board: dw.Board) -> None:
    start(board)
    before = stored(board)
    with board.publisher() as publisher:
        pending = publisher.begin(parts=3, tiling=TILING)

        def fail(_: int) -> None:
            raise Boom

        def ranks() -> None:
            with pending:
                upload(board, pending.ticket, "idle", 0)
                # Rank 1 uploads but cannot tell any more; rank 2 fails while it is encoding.
                upload(board, pending.ticket, "idle", 1)
                one, two = ({"norm": model(version)["0.norm.weight"]} for version in (0, 1))
                board.upload_part(pending.ticket, 2, base=one, new=two, progress=fail)

        with pytest.raises(Boom):
            ranks()
        assert not pending.open
        assert (board.head(), stored(board)) == (0, before)
        with pytest.raises(dw.StoreError, match="begin another"):
            pending.commit([])
        pending.abandon()
        # The same version can be begun again; leaving the publisher abandons what is open.
        publish_together(board, publisher, "idle")
        again = publisher.begin(parts=1, tiling=TILING)
        upload(board, again.ticket, "one", 0)
        assert objects(board, 2)
    assert not again.open
    assert (board.head(), objects(board, 2)) == (1, [])
    assert all(path in stored(board) for path in [p.path for p in board.manifest(1).objects])


def altered(**changes: Any) -> Callable[[list[dw.UploadedPart]], list[dw.UploadedPart]]:
    return lambda parts: [dataclasses.replace(parts[0], **changes), *parts[1:]]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda parts: parts[:1], dw.LayoutMismatch, "none of rank 1"),
        (lambda parts: [], dw.LayoutMismatch, "none of rank 0"),
        (lambda parts: [*parts, parts[1]], dw.LayoutMismatch, "rank 1 is there twice"),
        (lambda parts: [parts[0], parts[0]], dw.LayoutMismatch, "none of rank 1"),
        (altered(write_id="0" * 32), dw.WrongVersion, "in attempt 000"),
        (altered(version=2), dw.WrongVersion, "for version 2"),
        (altered(rank=1), dw.WrongVersion, "upload it with this"),
        (altered(path="objects/1/0-x.dw"), dw.WrongVersion, "not in"),
        (altered(elements=7), dw.LayoutMismatch, "exactly one rank"),
        (altered(base_sum=bytes(16)), dw.WrongBase, "do not|does not have the head's bits"),
        (altered(changed=1), dw.LayoutMismatch, "but the ranks say"),
        (altered(bytes=100), dw.UntrustedDelta, "objects/1/0-.*manifest says 100"),
        (altered(blake3="0" * 64), dw.UntrustedDelta, "objects/1/0-"),
    ],
)
def test_parts_that_are_not_this_versions(
    memory: dw.Board, change: Any, error: type[Exception], message: str
) -> None:
    before = stored(memory)
    with memory.publisher() as publisher, publisher.begin(parts=2, tiling=TILING) as pending:
        parts = [upload(memory, pending.ticket, "tp2", rank) for rank in range(2)]
        with pytest.raises(error, match=message):
            pending.commit(change(parts))
        assert not pending.open
    assert (memory.head(), stored(memory)) == (0, before)


def test_a_part_of_another_attempt_is_neither_committed_nor_removed(memory: dw.Board) -> None:
    with memory.publisher() as publisher:
        first = publisher.begin(parts=2, tiling=TILING)
        second = publisher.begin(parts=2, tiling=TILING)
        mine = upload(memory, first.ticket, "tp2", 0)
        foreign = upload(memory, second.ticket, "tp2", 1)
        with pytest.raises(dw.WrongVersion, match="in attempt"):
            first.commit([mine, foreign])
        assert objects(memory, 1) == [foreign.path]
        # Not even where its part says that it is this attempt's.
        third = publisher.begin(parts=2, tiling=TILING)
        mine = upload(memory, third.ticket, "tp2", 0)
        forged = dataclasses.replace(foreign, write_id=third.ticket.write_id)
        with pytest.raises(dw.WrongVersion):
            third.commit([mine, forged])
        second.commit([upload(memory, second.ticket, "tp2", 0), foreign])
    served = model(0)
    memory.follower(served, version=0).advance()
    assert same(served, model(1))


def test_a_rank_may_upload_again(memory: dw.Board) -> None:
    """Nothing that was uploaded is ever touched; what is not used is left for a sweep."""
    with memory.publisher() as publisher, publisher.begin(parts=2, tiling=TILING) as pending:
        lost = upload(memory, pending.ticket, "tp2", 0)
        parts = [upload(memory, pending.ticket, "tp2", rank) for rank in range(2)]
        assert lost.path != parts[0].path
        pending.commit(parts)
    assert sorted([lost.path, *(part.path for part in parts)]) == objects(memory, 1)
    memory.collect(keep=10, sweep=True, safety_age=0)
    assert sorted(part.path for part in parts) == objects(memory, 1)
    served = model(0)
    memory.follower(served, version=0).advance()
    assert same(served, model(1))


@pytest.mark.parametrize(
    ("ranks", "error", "message"),
    [
        # Both have the norm.
        (
            lambda a: [
                held("tp2", a, 0),
                {**held("tp2", a, 1), "0.norm.weight": a["0.norm.weight"]},
            ],
            dw.LayoutMismatch,
            "one of them uploads its copy",
        ),
        # Nobody has the steps.
        (
            lambda a: [
                held("tp2", {n: x for n, x in a.items() if n != "1.steps"}, r) for r in range(2)
            ],
            dw.LayoutMismatch,
            "exactly one rank",
        ),
        # The upper half twice, and the lower half not at all.
        (
            lambda a: [
                {**held("tp2", a, 0)},
                {**held("tp2", a, 1), "0.q.weight": rows(a["0.q.weight"], 0, 2)},
            ],
            dw.WrongBase,
            "in the shards of two ranks",
        ),
    ],
)
def test_shards_that_are_not_the_whole(
    memory: dw.Board, ranks: Any, error: type[Exception], message: str
) -> None:
    before = stored(memory)
    olds, news = ranks(model(0)), ranks(model(1))
    with memory.publisher() as publisher, publisher.begin(parts=2, tiling=TILING) as pending:
        parts = [
            memory.upload_part(pending.ticket, rank, base=olds[rank], new=news[rank])
            for rank in range(2)
        ]
        with pytest.raises(error, match=message):
            pending.commit(parts)
    assert (memory.head(), stored(memory)) == (0, before)


def test_a_rank_with_another_base(memory: dw.Board) -> None:
    with memory.publisher() as publisher, publisher.begin(parts=2, tiling=TILING) as pending:
        wrong = held("tp2", model(2), 1)
        parts = [
            upload(memory, pending.ticket, "tp2", 0),
            memory.upload_part(pending.ticket, 1, base=wrong, new=held("tp2", model(1), 1)),
        ]
        with pytest.raises(dw.WrongBase, match="does not have the head's bits"):
            pending.commit(parts)
    assert (memory.head(), objects(memory, 1)) == (0, [])


def test_ranks_with_other_tiles_are_noticed_before_the_commit(memory: dw.Board) -> None:
    """Which no digest would notice, and no reader could join."""
    with memory.publisher() as publisher, publisher.begin(parts=2, tiling=TILING) as pending:
        other = dataclasses.replace(pending.ticket, tiling=dw.Tiling(min_elements=1, ways=2))
        parts = [
            upload(memory, pending.ticket, "tp2", 0),
            upload(memory, other, "tp2", 1),
        ]
        with pytest.raises(dw.LayoutMismatch, match="same whole shapes and tiling") as refused:
            pending.commit(parts)
        assert parts[1].path in str(refused.value)
    assert (memory.head(), objects(memory, 1)) == (0, [])


def test_a_part_that_is_gone(board: dw.Board) -> None:
    """It is looked at before the commit: what a manifest lists is there."""
    start(board)
    with board.publisher() as publisher, publisher.begin(parts=2, tiling=TILING) as pending:
        parts = [upload(board, pending.ticket, "tp2", rank) for rank in range(2)]
        board.store.delete(parts[1].path)
        with pytest.raises(dw.StoreError) as refused:
            pending.commit(parts)
        assert parts[1].path in str(refused.value)
    assert (board.head(), objects(board, 1)) == (0, [])


def test_fenced_between_begin_and_commit(board: dw.Board) -> None:
    start(board)
    with board.publisher() as publisher, publisher.begin(parts=2, tiling=TILING) as pending:
        parts = [upload(board, pending.ticket, "tp2", rank) for rank in range(2)]
        with board.publisher() as later:
            # A rank that comes now is told before it has encoded anything.
            with pytest.raises(dw.VersionConflict):
                upload(board, pending.ticket, "tp2", 1)
            with pytest.raises(dw.VersionConflict):
                pending.commit(parts)
            assert objects(board, 1) == []
            publish_together(board, later, "tp2")
    assert board.head() == 1


def test_fenced_while_a_rank_uploads(memory: dw.Board) -> None:
    with memory.publisher() as publisher, publisher.begin(parts=1, tiling=TILING) as pending:
        opened = []

        def fence(_: int) -> None:
            if not opened:
                opened.append(memory.publisher())

        with pytest.raises(dw.VersionConflict):
            memory.upload_part(
                pending.ticket, 0, base=model(0), new=model(1), threads=1, progress=fence
            )
        assert objects(memory, 1) == []


def test_another_publisher_wins_the_version(memory: dw.Board) -> None:
    """As in a race that the epoch does not see: the version is there when the commit comes."""
    with memory.publisher() as publisher, publisher.begin(parts=2, tiling=TILING) as pending:
        parts = [upload(memory, pending.ticket, "tp2", rank) for rank in range(2)]
        publisher.publish(1, base=model(0), new=model(1))
        theirs = objects(memory, 1)
        with pytest.raises(dw.VersionConflict, match="already"):
            upload(memory, pending.ticket, "tp2", 1)
        with pytest.raises(dw.VersionConflict, match="has gone on"):
            pending.commit(parts)
        left = [path for path in theirs if pending.ticket.write_id not in path]
        assert objects(memory, 1) == left == [memory.manifest(1).objects[0].path]


def test_the_wrong_board(memory: dw.Board, tmp_path: Path) -> None:
    other = dw.Board(tmp_path / "other", create=True)
    with memory.publisher() as publisher, publisher.begin(parts=1, tiling=TILING) as pending:
        with pytest.raises(dw.WrongVersion, match="no such version"):
            upload(other, pending.ticket, "one", 0)
        start(other)
        with pytest.raises(dw.WrongVersion, match="another manifest"):
            upload(other, pending.ticket, "one", 0)
        assert objects(other, 1) == []


def test_what_is_no_ticket(memory: dw.Board) -> None:
    with memory.publisher() as publisher:
        for parts in (0, -1, 4097):
            with pytest.raises(ValueError, match="1 to 4096 parts"):
                publisher.begin(parts=parts)
        with pytest.raises(ValueError, match="profile"):
            publisher.begin(parts=1, profile="dense")  # type: ignore[arg-type]
        with pytest.raises(dw.WrongVersion):
            publisher.begin(5, parts=1)
        pending = publisher.begin(1, parts=2)
        ticket = pending.ticket
        for rank in (-1, 2):
            with pytest.raises(ValueError, match=f"rank {rank}"):
                memory.upload_part(ticket, rank, base={}, new={})
        assert dw.PublishTicket.from_dict(ticket.as_dict()) == ticket
        good = ticket.as_dict()
        for bad in [{}, {**good, "tiling": 1}, {**good, "base_state": "x"}, {**good, "more": 1}]:
            with pytest.raises(ValueError, match=r"ticket|hexadecimal"):
                dw.PublishTicket.from_dict(bad)
        part = upload(memory, publisher.begin(parts=1, tiling=TILING).ticket, "one", 0)
        assert dw.UploadedPart.from_dict(part.as_dict()) == part
        for bad in [{}, {**part.as_dict(), "records": 1}, {**part.as_dict(), "more": 1}]:
            with pytest.raises(ValueError, match="part"):
                dw.UploadedPart.from_dict(bad)
    empty = dw.Board(fresh_memory(), create=True)
    with empty.publisher() as publisher, pytest.raises(dw.WrongVersion, match="empty"):
        publisher.begin(parts=1)


def test_a_part_that_was_altered(tmp_path: Path) -> None:
    board = dw.Board(tmp_path / "board", create=True)
    start(board)
    with board.publisher() as publisher:
        publish_together(board, publisher, "tp4")
    moments = random.Random(3)
    for part in board.manifest(1).objects:
        path = tmp_path / "board" / part.path
        place = moments.randrange(path.stat().st_size)
        flip(path, place)
        served, directory = copied(model(0)), tmp_path / "pulled"
        with pytest.raises(dw.UntrustedDelta) as refused:
            board.follower(served, version=0).advance()
        assert part.path in str(refused.value)
        assert same(served, model(0))
        board.pull(directory, version=0)
        before = contents(directory)
        with pytest.raises(dw.UntrustedDelta):
            board.pull(directory)
        assert contents(directory).keys() == before.keys()
        with pytest.raises(dw.UntrustedDelta):
            board.fetch(1, io.BytesIO())
        target = blank(held("tp2", model(), 0))
        follower = board.follower(target, partial=True)
        follower.advance(0)
        with pytest.raises(dw.UntrustedDelta):
            follower.advance()
        assert same_part(target, held("tp2", model(0), 0))
        flip(path, place)
    board.follower(served, version=0).advance()
    assert same(served, model(1))


def test_a_publisher_whose_parts_do_not_fit(memory: dw.Board) -> None:
    """A manifest that another writer would commit: readers notice, whatever the digests say."""
    with memory.publisher() as publisher:
        pending = publisher.begin(parts=2, tiling=TILING)
        parts = [upload(memory, pending.ticket, "tp2", 0) for _ in range(1)]
        twice = memory.upload_part(
            pending.ticket, 1, base=held("tp2", model(0), 0), new=held("tp2", model(1), 0)
        )
        head = memory.manifest(0)
        publisher._commit_parts(head, {}, pending._attempt, [*parts, twice])
    served = model(0)
    with pytest.raises(dw.UntrustedDelta, match=r"tile \d+ is in part 0 and in part 1") as refused:
        memory.follower(served, version=0).advance()
    assert twice.path in str(refused.value)
    assert refused.value.tensor is not None
    assert same(served, model(0))


def test_collection_removes_all_parts(board: dw.Board) -> None:
    start(board)
    with board.publisher() as publisher:
        for _ in range(3):
            publish_together(board, publisher, "tp4")
        publisher.publish_anchor(3, model(3))
        publish_together(board, publisher, "tp4")
    kept = [part.path for part in board.manifest(4).objects]
    assert sorted(kept) == objects(board, 4)
    assert all(len(objects(board, version)) == 4 for version in (1, 2, 3))
    board.collect(keep=1, sweep=True, safety_age=0)
    assert all(objects(board, version) == [] for version in (1, 2))
    assert sorted(kept) == objects(board, 4)
    late = zeros(model())
    board.follower(late).advance()
    assert same(late, model(4))


def test_signed(tmp_path: Path) -> None:
    key, other = dw.SigningKey.generate("a"), dw.SigningKey.generate("b")
    board = dw.Board(tmp_path / "board", create=True)
    start(board, key=key)
    with board.publisher(key=key) as publisher:
        publish_together(board, publisher, "tp2pp2")
    served = zeros(model())
    trusting = dw.Board(board.url, trust=dw.Trust([key.public]))
    trusting.follower(served).advance()
    assert same(served, model(1))
    with pytest.raises(dw.UntrustedDelta):
        dw.Board(board.url, trust=dw.Trust([other.public])).follower(zeros(model())).advance()
