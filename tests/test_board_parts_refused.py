"""Parts of a version that do not fit, come late, or were altered: nothing is committed."""

from __future__ import annotations

import dataclasses
import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import deltawire as dw
from board_runs import contents, copied, flip, fresh_memory, same, stored, zeros
from part_runs import (
    TILING,
    blank,
    held,
    memory,
    model,
    objects,
    publish_together,
    rows,
    same_part,
    start,
    upload,
)

__all__ = ["memory"]


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
