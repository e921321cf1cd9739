"""``deltawire.testing``: what each fault does, on every kind of store, and at every operation."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import deltawire as dw
from board_runs import copied, fresh_memory, holds, model, publish, same, stored, zeros
from deltawire import testing
from deltawire.testing import FaultPlan
from fault_boards import KINDS, Open, check_board, opener

OPERATIONS = testing.Operation.__args__  # type: ignore[attr-defined]
FAULTS = testing.Fault.__args__  # type: ignore[attr-defined]


@pytest.fixture(params=KINDS)
def again(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens an empty board of each kind."""
    return opener(request.param, tmp_path, request)


# --- The plan itself ---------------------------------------------------------------------


def test_names_are_those_of_the_native_plan() -> None:
    for fault in FAULTS:
        FaultPlan().add(fault)
    plan = FaultPlan()
    for operation in OPERATIONS:
        plan.add("error", on=operation)
    plan.add("error", on=list(OPERATIONS))
    for wrong in (
        {"fault": "explode"},
        {"fault": "error", "on": "rename"},
        {"fault": "cut", "on": "create"},
        {"fault": "error", "probability": 1.5},
        {"fault": "error", "skip": -1},
        {"fault": "error", "times": -1},
    ):
        with pytest.raises(ValueError, match=r"name|fit|probability|negative"):
            FaultPlan().add(**wrong)  # type: ignore[arg-type]


def test_the_same_seed_meets_the_same_faults() -> None:
    def run(seed: int) -> list[tuple[str, str | None]]:
        plan = FaultPlan(seed)
        board = dw.Board(fresh_memory(), create=True, faults=plan)
        publish(board, 1)
        plan.add("error", on=["get", "head"], times=None, probability=0.2)
        for _ in range(20):
            with contextlib.suppress(dw.StoreError):
                dw.Board(board.url, faults=plan).follower(zeros(model())).advance()
        return [(event.operation, event.fault) for event in plan.events]

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_a_plan_without_rules_counts(again: Open) -> None:
    plan = FaultPlan()
    board = again(plan)
    publish(board, 2)
    assert plan.injected == {}
    assert plan.count("create", "manifests/") == 3
    assert plan.count("create", "objects/") == 2
    assert plan.count("overwrite", "latest.json") == 3
    follower = board.follower(zeros(model()))
    follower.advance()
    before = plan.counts
    assert follower.advance() == []
    after = plan.counts
    assert after.pop("head") == before.pop("head") + 2
    assert after == before
    assert [event.number for event in plan.events] == list(range(1, sum(plan.counts.values()) + 1))


# --- One fault, every kind of store ------------------------------------------------------


def test_lost_replies_of_every_create_are_recognised(again: Open) -> None:
    """Epoch, first number, claim, anchor file, delta, manifest: all are done, none is reported."""
    plan = FaultPlan()
    plan.add("lost-reply", on="create", times=None)
    board = again(plan)
    publish(board, 3)
    assert plan.injected["lost-reply"] == plan.counts["create"] == 12
    check_board(again(), {version: model(version) for version in range(4)})
    with board.publisher() as publisher:
        publisher.publish_anchor(3, model(3))
    assert len(again().manifest(3).objects) == 1
    start = zeros(model())
    assert again().follower(start).advance(3)[0].anchor
    # One object for each delta and anchor: nothing was written twice.
    objects = [path for path in stored(again()) if path.startswith("objects/")]
    assert len(objects) == 3


def test_late_commits_are_no_second_version(again: Open) -> None:
    """The create of version 1 seems to fail, a second try is committed, then the first arrives."""
    plan = FaultPlan()
    board = again(plan)
    publish(board, 0)
    other = copied(model(0))
    other["layer.bias"][0] += 1
    plan.add("late", on="create", path="manifests/", operations=1000)
    with board.publisher() as publisher:
        with pytest.raises(dw.StoreError, match="lost"):
            publisher.publish(1, base=model(0), new=other)
        assert board.head() == 0
        publisher.publish(1, base=model(0), new=model(1))
        assert plan.settle() == 1
        check_board(again(), {0: model(0), 1: model(1)})
        # The other way about: it arrives first, and the second try is told.
        plan.add("late", on="create", path="manifests/", operations=1000)
        with pytest.raises(dw.StoreError, match="lost"):
            publisher.publish(2, base=model(1), new=other)
        plan.settle()
        with pytest.raises(dw.VersionConflict, match="exists already"):
            publisher.publish(2, base=model(1), new=model(2))
    check_board(again(), {0: model(0), 1: model(1), 2: other})


def test_a_torn_upload_is_never_used(again: Open) -> None:
    plan = FaultPlan()
    board = again(plan)
    plan.add("torn", on="create", path="anchors/", bytes=30)
    plan.add("torn", on="create", path="objects/", bytes=30)
    with board.publisher() as publisher:
        with pytest.raises(dw.StoreError, match="cut short"):
            publisher.publish_anchor(0, model(0))
        publisher.publish_anchor(0, model(0))
        with pytest.raises(dw.StoreError, match="cut short"):
            publisher.publish(1, base=model(0), new=model(1))
        publisher.publish(1, base=model(0), new=model(1))
    assert plan.injected == {"torn": 2}
    check_board(again(), {0: model(0), 1: model(1)})


@pytest.mark.parametrize("fault", ["error", "lost-reply", "late", "torn", "crash"])
def test_uploads_in_parts(again: Open, fault: str) -> None:
    """A large object: a fault at its first part, its last, and its end."""
    noise = np.random.default_rng(0).bytes(20 << 20)
    for number, (on, skip) in enumerate([("begin", 0), ("part", 0), ("part", 2), ("complete", 0)]):
        plan = FaultPlan()
        with contextlib.suppress(ValueError):
            plan.add(fault, on=on, skip=skip, bytes=100, operations=100)  # type: ignore[arg-type]
        board = again(plan)
        path = f"objects/{number}/0-{number:032x}.dw"
        upload = board.store.upload(path)
        try:
            upload.write(noise)
            item = upload.finish()
        except dw.StoreError:
            assert plan.injected
            with pytest.raises(dw.DeltawireError):
                again().store.fetch(path, len(noise), "00" * 32)
            if fault == "late" and plan.settle():
                # Nobody waits for it any more; it is whole, or not there.
                sizes = dict(again().store.list_all("objects"))
                assert sizes.get(path, len(noise)) == len(noise)
        else:
            assert not plan.injected or (fault, on) == ("lost-reply", "complete")
            again().store.fetch(*item)


def test_broken_answers_change_nothing(again: Open) -> None:
    publish(again(), 2)
    for fault in ("cut", "short", "error", "timeout", "crash"):
        for part in ("manifests/", "anchors/", "objects/"):
            for count in (0, 40):
                plan = FaultPlan()
                # Often enough to outlast what resumes a download.
                plan.add(fault, on="get", path=part, bytes=count, times=40)  # type: ignore[arg-type]
                served = zeros(model())
                follower = again(plan).follower(served)
                with contextlib.suppress(dw.DeltawireError):
                    follower.advance()
                    # Resumed: 40 bytes with each answer.
                    assert count
                if follower.version is None:
                    assert same(served, zeros(model())) or "anchors" in part
                plan.clear()
                follower.advance()
                assert same(served, model(2)), (fault, part)


def test_stale_listings_are_no_harm(again: Open) -> None:
    """The epoch of a moment ago is not listed: its number is found to be taken."""
    plan = FaultPlan()
    plan.add("stale-list", times=None, operations=1000)
    board = again(plan)
    epochs = [board.publisher().epoch for _ in range(4)]
    assert epochs == [1, 2, 3, 4]
    publish(board, 2)
    check_board(again(), {version: model(version) for version in range(3)})


def test_delays_delay() -> None:
    plan = FaultPlan()
    board = dw.Board(fresh_memory(), create=True, faults=plan)
    plan.add("delay", on="head", ms=40, times=2)
    started = time.monotonic()
    board.head()
    assert 0.08 <= time.monotonic() - started < 5
    assert plan.injected == {"delay": 2}
    plan.add("timeout", on="head", ms=30)
    with pytest.raises(dw.StoreError, match="timed out"):
        board.head()


# --- Every operation in turn -------------------------------------------------------------

STEPS = ["open", "anchor 0", "delta 1", "anchor 1", "delta 2"]


def run_steps(board: dw.Board, versions: dict[int, int]) -> None:
    """A small run: two anchors, two deltas. ``versions`` counts what was reported as committed."""
    with board.publisher(run="test") as publisher:
        publisher.publish_anchor(0, model(0))
        versions[0] = 1
        publisher.publish(1, base=model(0), new=model(1))
        versions[1] = 1
        publisher.publish_anchor(1, model(1), max_shard_bytes=9000)
        publisher.publish(2, base=model(1), new=model(2))
        versions[2] = 1


@pytest.mark.parametrize("fault", ["error", "lost-reply", "late", "crash", "crash-after"])
def test_a_publisher_with_one_fault_at_every_operation(fault: str) -> None:
    """Whatever fails, what was reported is there, what is there is whole, and the run goes on."""
    plan = FaultPlan()
    run_steps(dw.Board(fresh_memory(), create=True, faults=plan), {})
    total = sum(plan.counts.values())
    assert total > 50
    failed = hit = 0
    errors: set[type[dw.DeltawireError]] = set()
    for number in range(total):
        plan = FaultPlan()
        plan.add(fault, skip=number, operations=3)  # type: ignore[arg-type]
        board = dw.Board(fresh_memory(), create=True, faults=plan)
        told: dict[int, int] = {}
        try:
            run_steps(board, told)
        except dw.DeltawireError as error:
            failed += 1
            errors.add(type(error))
        hit += bool(plan.injected)
        plan.settle()
        board = dw.Board(board.url)
        head = board.head()
        versions = range(0 if head is None else head + 1)
        # One that was not told of may be there, as a whole: the next one to be committed.
        assert len(told) <= len(versions) <= len(told) + 1
        check_board(board, {version: model(version) for version in versions})
        with board.publisher(run="test") as publisher:
            if head is None:
                publisher.publish_anchor(0, model(0))
                head = 0
            publisher.publish(head + 1, base=model(head), new=model(head + 1))
        check_board(board, {version: model(version) for version in range(head + 2)})
    assert errors <= {dw.StoreError, dw.VersionConflict}
    if fault in ("lost-reply", "late"):
        # Reads have no reply to lose.
        assert 15 < hit < total
    else:
        assert hit == total
    if fault.startswith("crash"):
        # But for what is allowed to fail, such as the last hint.
        assert failed >= total - 2


@pytest.mark.parametrize("fault", ["error", "cut", "short", "crash"])
def test_readers_with_one_fault_at_every_operation(tmp_path: Path, fault: str) -> None:
    """A follower and a pull: the old version, the new one, or known to be torn."""
    url = fresh_memory()
    publish(dw.Board(url, create=True), 3)
    with dw.Board(url).publisher() as publisher:
        publisher.publish_anchor(3, model(3))
        publisher.publish(4, base=model(3), new=model(4))
    failures = 0
    for number in range(60):
        plan = FaultPlan()
        served = model(1)
        follower = dw.Board(url, faults=plan).follower(served, version=1)
        plan.add(fault, skip=number, bytes=25)  # type: ignore[arg-type]
        try:
            follower.advance()
        except dw.DeltawireError:
            failures += 1
        assert follower.version is None or same(served, model(follower.version))
        followed = bool(plan.injected)
        plan.clear()
        follower.advance()
        assert same(served, model(4))
        plan = FaultPlan()
        plan.add(fault, skip=number, bytes=25)  # type: ignore[arg-type]
        directory = tmp_path / f"pulled-{number}"
        try:
            dw.Board(url, faults=plan).pull(directory)
            assert holds(directory, 4)
        except dw.DeltawireError:
            failures += 1
            assert not directory.exists()
        assert not list(tmp_path.glob(".*"))
        if not followed and not plan.injected:
            break
    assert failures > 10
    assert not plan.injected


# --- Two publishers ----------------------------------------------------------------------


@pytest.mark.parametrize("slow", [False, True])
def test_two_publishers_at_once(again: Open, slow: bool) -> None:
    """Each version has one winner; the one that was fenced is told so, and nothing is lost."""
    publish(again(), 0)
    rounds = 8
    outcomes: dict[str, list[object]] = {"a": [], "b": []}
    tried: dict[int, dict[str, bytes]] = {}
    start = threading.Barrier(2)

    def work(name: str) -> None:
        plan = FaultPlan(seed=ord(name))
        if slow:
            plan.add("delay", on="create", path="manifests/", ms=15, times=None, probability=0.5)
            plan.add("lost-reply", on="create", times=None, probability=0.2)
        board = again(plan)
        for number in range(rounds):
            start.wait(60)
            # Both open in each round: the later one fences the other, at whatever it is.
            try:
                with board.publisher(run="test") as publisher:
                    head = board.head()
                    assert head is not None
                    base = zeros(model())
                    board.follower(base).advance(head)
                    new = copied(base)
                    new["layer.bias"][number] += 1 if name == "a" else 2
                    tried.setdefault(head + 1, {})[name] = dw.state_digest(new)
                    outcomes[name].append(publisher.publish(head + 1, base=base, new=new))
            except dw.VersionConflict as error:
                outcomes[name].append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in outcomes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert [len(found) for found in outcomes.values()] == [rounds, rounds]
    published = [s for found in outcomes.values() for s in found if isinstance(s, dw.PublishStats)]
    refused = [e for found in outcomes.values() for e in found if isinstance(e, dw.VersionConflict)]
    assert len(published) + len(refused) == 2 * rounds
    # Somebody may always go on: the one that opened last.
    assert len(published) >= rounds
    assert refused
    for error in refused:
        assert "another publisher" in str(error) or "exists already" in str(error), error
    board = again()
    head = board.head()
    assert head == len(published)
    assert sorted(stats.version for stats in published) == list(range(1, head + 1))
    by_version = {stats.version: stats.result_state for stats in published}
    log = {manifest.version: manifest for manifest in board.log()}
    for version, state in by_version.items():
        assert log[version].result_state == state
        assert state in tried[version].values()
        read = zeros(model())
        board.follower(read).advance(version)
        assert dw.state_digest(read) == state
