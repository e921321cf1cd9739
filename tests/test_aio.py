"""``deltawire.aio``: the board for asyncio, cancelled at any moment and from several loops."""

from __future__ import annotations

import asyncio
import inspect
import random
import threading
from pathlib import Path
from typing import Any

import pytest

import deltawire as dw
from board_runs import fresh_memory, holds, model, publish, same, zeros
from conftest import ROOT
from deltawire import aio
from deltawire.testing import FaultPlan
from fault_boards import check_board
from test_readme import of_language


def run(work: Any) -> Any:
    """Run a coroutine in a loop of its own."""
    return asyncio.run(asyncio.wait_for(work, 120))


def slow(plan: FaultPlan, ms: int = 20, **which: Any) -> FaultPlan:
    """With every answer delayed."""
    plan.add("delay", ms=ms, times=None, **which)
    return plan


def test_names_are_those_of_the_plain_classes() -> None:
    for ours, plain, left_out in [
        (aio.AsyncBoard, dw.Board, {"options", "store", "records", "trusting"}),
        (aio.AsyncPublisher, dw.Publisher, set()),
        (aio.AsyncPending, dw.PendingVersion, set()),
        (aio.AsyncFollower, dw.Follower, set()),
    ]:
        names = {name for name in vars(plain) if not name.startswith("_")} - left_out
        missing = names - set(dir(ours))
        assert not missing
        for name in names & set(vars(ours)):
            parameters = (
                inspect.signature(getattr(plain, name)).parameters
                if callable(getattr(plain, name))
                else {}
            )
            own = inspect.signature(getattr(ours, name)).parameters if parameters else {}
            # Ours may take the rest as keywords.
            assert "settings" in own or set(parameters) - {"progress"} <= set(own), name


def test_publish_and_follow(tmp_path: Path) -> None:
    async def work() -> None:
        async with aio.AsyncBoard(fresh_memory(), create=True) as board:
            async with board.publisher(run="test") as publisher:
                assert publisher.epoch == 1
                await publisher.publish_anchor(0, model(0))
                await publisher.publish(1, base=model(0), new=model(1))
            with pytest.raises(RuntimeError, match="closed"):
                await publisher.publish(2, base=model(1), new=model(2))
            served = zeros(model())
            async with board.follower(served) as follower:
                assert await follower.stage() == [0, 1]
                assert same(served, zeros(model()))
                await follower.discard()
                assert await follower.commit() == []
                assert [step.version for step in await follower.advance()] == [0, 1]
                assert (follower.version, follower.seen) == (1, 1)
                assert await follower.prove() == follower.state
                assert same(served, model(1))
            assert [manifest.version for manifest in await board.log()] == [1, 0]
            assert (await board.manifest(1)).result_state == follower.state
            assert await board.find_manifest(2) is None
            delta = tmp_path / "1.dw"
            with delta.open("wb") as file:
                length = await board.fetch(1, file)
            assert delta.stat().st_size == length
            assert (await board.check_delta(delta, 1)).version == 1
            assert await board.wait(1, timeout=0)
            assert not await board.wait(2, timeout=0.05, poll=0.01)

    run(work())


def test_awaited_instead_of_entered(tmp_path: Path) -> None:
    async def work() -> None:
        publish(dw.Board(tmp_path / "board", create=True), 2)
        board = await aio.AsyncBoard(tmp_path / "board")
        stats = await board.pull(tmp_path / "pulled")
        assert stats.version == 2
        follower = await board.follower(model(1), version=1)
        assert follower.version == 1
        await follower.close()
        await board.close()
        await board.close()
        with pytest.raises(dw.StoreError, match="no board here"):
            await aio.AsyncBoard(tmp_path / "nothing")

    run(work())
    assert holds(tmp_path / "pulled", 2)


def test_the_readme_s_example() -> None:
    (block,) = [b for b in of_language(ROOT / "README.md", "python") if "aio" in b.text]
    names: dict[str, Any] = {}
    exec(block.text, names)
    url, served = fresh_memory(), zeros(model())
    publish(dw.Board(url, create=True), 2)
    assert len(run(names["serve"](url, served))) == 3
    assert same(served, model(2))


def test_the_loop_goes_on_while_threads_work() -> None:
    url = fresh_memory()
    publish(dw.Board(url, create=True), 1)

    async def work() -> None:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.002)

        ticking = asyncio.create_task(tick())
        board = aio.AsyncBoard(url, faults=slow(FaultPlan()))
        async with board.follower(zeros(model())) as follower:
            await follower.advance()
        ticking.cancel()
        assert ticks > 30

    run(work())


# --- One at a time -----------------------------------------------------------------------


def test_calls_of_one_object_wait_for_one_another() -> None:
    url = fresh_memory()
    publish(dw.Board(url, create=True), 3)

    async def work() -> None:
        served = zeros(model())
        follower = aio.AsyncBoard(url, faults=slow(FaultPlan(), 2)).follower(served)
        done = await asyncio.gather(*(follower.advance(to) for to in (0, 1, 2, 3)))
        assert [[step.version for step in steps] for steps in done] == [[0], [1], [2], [3]]
        assert same(served, model(3))
        await follower.close()

    run(work())


def test_from_several_loops() -> None:
    url = fresh_memory()
    publish(dw.Board(url, create=True), 8)
    served = zeros(model())
    follower = aio.AsyncBoard(url).follower(served)
    steps: list[int] = []

    async def work(to: int) -> None:
        # Another may have been faster.
        try:
            steps.extend(step.version for step in await follower.advance(to))
        except dw.WrongVersion:
            assert follower.version is not None
            assert follower.version > to

    threads = [threading.Thread(target=run, args=(work(to),)) for to in (2, 4, 6, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert follower.version == 8
    assert same(served, model(8))
    assert sorted(steps) == sorted(set(steps))
    run(follower.close())


# --- Cancellation ------------------------------------------------------------------------


def test_advances_cancelled_at_random_moments() -> None:
    """The target is at one version, and the follower knows at which; no thread is left at it."""
    url = fresh_memory()
    publish(dw.Board(url, create=True), 40)
    moments = random.Random(3)

    async def work() -> tuple[int, int]:
        cancelled = finished = 0
        plan = slow(FaultPlan(1), 1, on=["get", "head"])
        # How many are hit depends on the machine; a new follower goes the same way again.
        while cancelled < 10 or finished < 1:
            hit, missed = await follow(plan)
            cancelled, finished = cancelled + hit, finished + missed
        return cancelled, finished

    async def follow(plan: FaultPlan) -> tuple[int, int]:
        cancelled = finished = 0
        served = model(0)
        async with aio.AsyncBoard(url, faults=plan).follower(served, version=0) as follower:
            for to in range(2, 41, 2):
                while follower.version != to:
                    before = follower.version
                    task = asyncio.create_task(follower.advance(to))
                    await asyncio.sleep(moments.uniform(0, 0.03))
                    task.cancel()
                    if moments.random() < 0.3:
                        # Impatience changes nothing.
                        await asyncio.sleep(0)
                        task.cancel()
                    try:
                        await task
                        finished += 1
                    except asyncio.CancelledError:
                        cancelled += 1
                    requests = sum(plan.counts.values())
                    assert follower.version in (before, to)
                    assert follower.version is not None
                    assert same(served, model(follower.version))
                    await asyncio.sleep(0.003)
                    assert sum(plan.counts.values()) == requests
        return cancelled, finished

    cancelled, finished = run(work())
    assert cancelled >= 10
    assert finished >= 1


def test_a_call_that_waits_is_never_begun() -> None:
    url = fresh_memory()
    publish(dw.Board(url, create=True), 2)

    async def work() -> None:
        served = zeros(model())
        follower = aio.AsyncBoard(url, faults=slow(FaultPlan(), 5)).follower(served)
        first = asyncio.create_task(follower.advance(1))
        second = asyncio.create_task(follower.advance(2))
        await asyncio.sleep(0.01)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        # It did not wait for the first one.
        assert not first.done()
        await first
        assert follower.version == 1
        assert same(served, model(1))
        await follower.close()

    run(work())


def test_publishing_cancelled_at_random_moments() -> None:
    """A version is there as a whole or not at all, and the next one follows the head."""
    url = fresh_memory()
    publish(dw.Board(url, create=True), 0)
    moments = random.Random(5)

    async def work() -> tuple[int, int]:
        cancelled = 0
        plan = slow(FaultPlan(), 1)
        async with (
            aio.AsyncBoard(url, faults=plan) as board,
            board.publisher(run="test") as publisher,
        ):
            for _ in range(40):
                head = await board.head()
                assert head is not None
                task = asyncio.create_task(publisher.publish(base=model(head), new=model(head + 1)))
                await asyncio.sleep(moments.uniform(0, 0.03))
                task.cancel()
                try:
                    await task
                except asyncio.CancelledError:
                    cancelled += 1
                assert dw.Board(url).head() in (head, head + 1)
            head = await board.head()
            assert head is not None
            await publisher.publish(base=model(head), new=model(head + 1))
            return cancelled, head + 1

    cancelled, head = run(work())
    assert cancelled >= 10
    check_board(dw.Board(url), {version: model(version) for version in range(head + 1)})


def test_pulls_cancelled_at_random_moments(tmp_path: Path) -> None:
    url = fresh_memory()
    publish(dw.Board(url, create=True), 6)
    moments = random.Random(9)

    async def work() -> int:
        cancelled = 0
        async with aio.AsyncBoard(url, faults=slow(FaultPlan(), 1)) as board:
            for number in range(30):
                directory = tmp_path / f"pulled-{number % 10}"
                existed = directory.exists()
                task = asyncio.create_task(board.pull(directory, version=number // 10 * 3))
                await asyncio.sleep(moments.uniform(0, 0.06))
                task.cancel()
                try:
                    await task
                except asyncio.CancelledError:
                    cancelled += 1
                assert directory.exists() >= existed
                assert not list(tmp_path.glob(".*"))
        return cancelled

    assert run(work()) >= 5
    for directory in tmp_path.iterdir():
        dw.Board(url).pull(directory)
        assert holds(directory, 6)


def test_ranks_publish_together() -> None:
    url = fresh_memory()
    publish(dw.Board(url, create=True), 0)
    names = [sorted(model())[:2], sorted(model())[2:]]

    def held(version: int, rank: int) -> dict[str, Any]:
        return {name: model(version)[name] for name in names[rank]}

    async def work() -> None:
        async with (
            aio.AsyncBoard(url) as one,
            aio.AsyncBoard(url) as two,
            one.publisher() as publisher,
        ):
            async with await publisher.begin(parts=2, meta={"a": "b"}) as pending:
                uploads = [
                    board.upload_part(pending.ticket, rank, base=held(0, rank), new=held(1, rank))
                    for rank, board in enumerate([one, two])
                ]
                parts = await asyncio.gather(*uploads)
                assert pending.open
                stats = await pending.commit(parts)
            assert (stats.version, pending.version, pending.open) == (1, 1, False)
            # Left without a commit, and with a rank that is cancelled.
            async with await publisher.begin(parts=2) as pending:
                await one.upload_part(pending.ticket, 0, base=held(1, 0), new=held(2, 0))
                plan = FaultPlan()
                async with aio.AsyncBoard(url, faults=slow(plan)) as late:
                    task = asyncio.create_task(
                        late.upload_part(pending.ticket, 1, base=held(1, 1), new=held(2, 1))
                    )
                    await asyncio.sleep(0.03)
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
                await pending.abandon()
            assert not pending.open
        assert [part.version for part in parts] == [1, 1]

    run(work())
    board = dw.Board(url)
    check_board(board, {0: model(0), 1: model(1)})
    assert board.manifest(1).meta == {"a": "b"}
    assert not board.store.list_all("objects/2")


# --- New versions ------------------------------------------------------------------------


def test_versions_come_as_they_are_published() -> None:
    url = fresh_memory()
    dw.Board(url, create=True)

    async def work() -> list[int]:
        seen = []
        async with aio.AsyncBoard(url) as board, board.publisher(run="test") as publisher:

            async def publish_some() -> None:
                await publisher.publish_anchor(0, model(0))
                for version in range(1, 6):
                    await asyncio.sleep(0.02)
                    await publisher.publish(version, base=model(version - 1), new=model(version))

            publishing = asyncio.create_task(publish_some())
            async for version in board.versions(poll=0.005):
                seen.append(version)
                if version == 5:
                    break
            await publishing
        return seen

    seen = run(work())
    assert seen == sorted(set(seen))
    assert seen[-1] == 5
    assert len(seen) >= 3


def test_a_cancelled_wait_loses_no_version() -> None:
    url = fresh_memory()
    publish(dw.Board(url, create=True), 0)
    plan = FaultPlan()

    async def work() -> None:
        async with aio.AsyncBoard(url, faults=plan) as board:
            versions = board.versions(after=0, poll=0.005)
            for _ in range(5):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(versions), 0.02)
            assert versions.last == 0
            with dw.Board(url).publisher() as publisher:
                publisher.publish(1, base=model(0), new=model(1))
                publisher.publish(2, base=model(1), new=model(2))
            plan.add("error", on="head")
            with pytest.raises(dw.StoreError):
                await anext(versions)
            assert await anext(versions) == 2
            # Those above the present head only, if that is what is asked for.
            assert await anext(board.versions()) == 2

    run(work())
