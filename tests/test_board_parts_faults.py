"""Versions of several ranks while the store fails, and while ranks and publishers are killed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import deltawire as dw
from board_runs import copied, fresh_memory, same, stored, zeros
from deltawire.testing import FaultPlan
from kept import reopened
from kill_server import kill_server
from part_runs import LAYOUTS, TILING, held, model, publish_together, same_part, upload


def check(board: dw.Board, head: int) -> None:
    """All versions are whole, and nothing of another is visible."""
    assert board.head() == head
    there = set(stored(board))
    for version in range(head + 1):
        listed = {path for part in board.manifest(version).objects for path in [part.path]}
        assert listed <= there
        read = zeros(model())
        board.follower(read).advance(version)
        assert same(read, model(version)), version


@pytest.mark.parametrize("fault", ["error", "lost-reply", "late", "crash", "crash-after"])
def test_one_fault_at_every_operation(fault: str) -> None:
    """The ranks' and the publisher's: the version is there as a whole, or nothing of it is."""

    def steps(board: dw.Board) -> None:
        with board.publisher() as publisher:
            publish_together(board, publisher, "tp2pp2")

    def board_with(plan: FaultPlan) -> dw.Board:
        board = dw.Board(fresh_memory(), create=True)
        with board.publisher(run="test") as publisher:
            publisher.publish_anchor(0, model(0))
        return dw.Board(board.url, faults=plan)

    plan = FaultPlan()
    steps(board_with(plan))
    total = sum(plan.counts.values())
    assert total > 4 * 5
    failed = hit = undone = 0
    for number in range(total):
        plan = FaultPlan()
        plan.add(fault, skip=number, operations=3)  # type: ignore[arg-type]
        board = board_with(plan)
        told = False
        try:
            steps(board)
            told = True
        except (dw.StoreError, dw.VersionConflict):
            failed += 1
        hit += bool(plan.injected)
        plan.settle()
        board = dw.Board(board.url)
        head = board.head()
        assert head in ((1,) if told else (0, 1))
        first = next((event for event in plan.events if event.fault is not None), None)
        if fault == "error" and first is not None and "objects/1/" in first.path and not told:
            # It was before the commit: the parts of the other ranks are gone.
            assert first.operation in ("create", "get")
            assert not board.store.list_all("objects/1")
            undone += 1
        check(board, head)
        with board.publisher() as publisher:
            publish_together(board, publisher, "tp2")
        check(board, head + 1)
        # What others have left goes once the version is there.
        board.collect(keep=10, sweep=True, safety_age=0)
        listed = [part.path for m in board.log() for part in m.objects]
        assert [path for path in stored(board) if path.startswith("objects/")] == sorted(listed)
        check(board, head + 1)
    # Lost replies and late writes only hit writes; those that are read back do not fail.
    writes = fault in ("lost-reply", "late")
    assert hit > (5 if writes else total - 3)
    assert failed > (-1 if fault == "lost-reply" else 4)
    assert undone >= (8 if fault == "error" else 0)


@pytest.mark.parametrize("fault", ["error", "cut", "short", "crash"])
def test_readers_with_one_fault_at_every_operation(fault: str) -> None:
    board = dw.Board(fresh_memory(), create=True)
    with board.publisher(run="test") as publisher:
        publisher.publish_anchor(0, model(0))
        publish_together(board, publisher, "tp4")
    plan = FaultPlan()
    served = copied(model(0))
    dw.Board(board.url, faults=plan).follower(served, version=0).advance()
    total = sum(plan.counts.values())
    assert plan.count("get", "objects/1/") == 4
    hit = 0
    for number in range(total):
        plan = FaultPlan()
        plan.add(fault, skip=number, bytes=20)  # type: ignore[arg-type]
        for target, wanted in [
            (copied(model(0)), model(1)),
            (held("tp2", model(0), 1), held("tp2", model(1), 1)),
        ]:
            before = {name: dw.tensors.as_view(t).data.copy() for name, t in target.items()}
            partial = len(target) < len(model())
            try:
                follower = dw.Board(board.url, faults=plan).follower(
                    target, version=0, partial=partial
                )
                follower.advance()
            except dw.DeltawireError:
                for name, tensor in target.items():
                    assert np.array_equal(dw.tensors.as_view(tensor).data, before[name])
                plan.clear()
                follower = board.follower(target, version=0, partial=partial)
                follower.advance()
            assert same_part(target, wanted)
            hit += bool(plan.injected)
    assert hit >= 4


def test_killed_at_random_moments(shared: tuple[dw.Board, str]) -> None:
    """All ranks and the publisher of a version at once, between any two instructions."""
    board, endpoint = shared
    kills = 15 if endpoint else 60
    with board.publisher(run="test") as publisher:
        publisher.publish_anchor(0, model(0))
    served = zeros(model())
    follower = reopened(board).follower(served)
    left = head = 0
    with kill_server(seed=10) as server:
        # On until one was hit before its commit and a version was committed.
        while server.kills < kills or (not (left and head) and server.kills < 10 * kills):
            server.kill_one("together", board.url, endpoint, most=0.8 if endpoint else 0.1)
            board = reopened(board)
            head = board.head() or 0
            follower.advance()
            assert follower.version == head
            assert same(served, model(head))
            above = [p for p in stored(board) if p.startswith(f"objects/{head + 1}/")]
            left += bool(above)
    assert head > 0
    assert left > 0
    listed = {part.path for manifest in board.log() for part in manifest.objects}
    assert listed <= set(stored(board))
    with board.publisher() as publisher:
        publish_together(board, publisher, "tp2")
    board.collect(keep=1000, sweep=True, safety_age=0)
    listed |= {part.path for part in board.manifest(head + 1).objects}
    assert {path for path in stored(board) if path.startswith("objects/")} == listed
    follower.advance()
    assert same(served, model(head + 1))


def test_ranks_that_are_killed_while_they_upload(tmp_path: Path) -> None:
    """The publisher goes on with ranks that are started again, or gives all of it up."""
    board = dw.Board(tmp_path / "board", create=True)
    with board.publisher(run="test") as publisher, kill_server(seed=11) as server:
        publisher.publish_anchor(0, model(0))
        for version, commits in enumerate([True, False, True, False], start=1):
            head = board.head()
            assert head is not None
            with publisher.begin(parts=4, tiling=TILING) as pending:
                ticket = json.dumps(pending.ticket.as_dict())
                for _ in range(6):
                    server.kill_one("rank", board.url, rest=ticket, most=0.05)
                assert board.head() == head
                if commits:
                    ranks = range(LAYOUTS["tp4"])
                    parts = [upload(board, pending.ticket, "tp4", rank) for rank in ranks]
                    pending.commit(parts)
            if commits:
                check(board, head + 1)
            else:
                assert board.head() == head
                assert not board.store.list_all(f"objects/{head + 1}"), version
    board.collect(keep=10, sweep=True, safety_age=0)
    listed = {part.path for manifest in board.log() for part in manifest.objects}
    assert {path for path in stored(board) if path.startswith("objects/")} == listed
    check(board, 2)
