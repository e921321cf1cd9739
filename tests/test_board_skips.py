"""Deltas over several versions: folded into files, added to boards, and chosen by readers."""

from __future__ import annotations

import asyncio
import io
import itertools
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import deltawire as dw
from board_runs import (
    advance,
    copied,
    fresh_memory,
    holds,
    model,
    publish,
    same,
    stored,
    zeros,
)
from cli_runs import Cli
from deltawire import aio
from deltawire.board import hop
from deltawire.board.manifest import Manifest, PartRef, SkipRecord, VersionRef
from deltawire.testing import FaultPlan
from skip_runs import back_and_forth, publish_by_hand, record, wait_for

LAST = 20


def test_readers_take_the_cheapest_way(board: dw.Board, tmp_path: Path) -> None:
    """Twenty versions behind, new, or without its disk: each by the fewest bytes."""
    states = back_and_forth(board, LAST)
    added = board.add_skip(0, LAST, weights=states[0])
    chain = sum(board.manifest(version).bytes for version in range(1, LAST + 1))
    assert added.chain_bytes == chain
    assert added.bytes < chain / 5
    assert added.changed < sum(board.manifest(v).changed for v in range(1, LAST + 1))

    target = copied(states[0])
    (step,) = board.follower(target, version=0).advance()
    assert (step.version, step.bytes) == (LAST, added.bytes)
    assert same(target, states[LAST])

    # From elsewhere it is of no use, and to elsewhere neither.
    target = copied(states[1])
    steps = board.follower(target, version=1).advance()
    assert [step.version for step in steps] == list(range(2, LAST + 1))
    assert sum(step.bytes for step in steps) == chain - board.manifest(1).bytes
    assert same(target, states[LAST])

    target = zeros(model())
    anchor, step = board.follower(target).advance()
    assert (anchor.anchor, anchor.version, step.bytes) == (True, 0, added.bytes)
    assert same(target, states[LAST])

    directory = tmp_path / "pulled"
    assert board.pull(directory, version=0).versions == 0
    stats = board.pull(directory)
    assert (stats.versions, stats.bytes, stats.from_version) == (1, added.bytes, 0)
    lost = board.pull(tmp_path / "again")
    assert (lost.anchor, lost.versions) == (0, 1)
    for path in (directory, tmp_path / "again"):
        with dw.Checkpoint.open(path) as checkpoint:
            assert same(checkpoint, states[LAST])


def test_the_publisher_adds_them(board: dw.Board, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    arrays = model()
    with board.publisher(run="test", skip_spans=(2, 6), skip_scratch=scratch) as publisher:
        publisher.publish_anchor(0, arrays)
        for version in range(1, 13):
            base = copied(arrays)
            advance(arrays, version)
            publisher.publish(version, base=base, new=arrays)
            for span in board.manifest(version).skips:
                wait_for(board, version, span)
    assert [board.manifest(version).skips for version in (1, 2, 6, 9, 12)] == [
        (),
        (2,),
        (2, 6),
        (),
        (2, 6),
    ]
    assert list(scratch.iterdir()) == []
    sizes = {
        (version - span, version): sum(
            part.bytes for part in record(board, version - span, version).objects
        )
        for version in range(2, 13)
        for span in board.manifest(version).skips
    }
    assert len(sizes) == 8
    for held, to in [(0, 12), (1, 12), (3, 11), (5, 6), (0, 7)]:
        edges = dict(sizes)
        for version in range(1, 13):
            edges[version - 1, version] = board.manifest(version).bytes
        target = model(held)
        steps = board.follower(target, version=held).advance(to)
        assert sum(step.bytes for step in steps) == cheapest_by_search(edges, held, to)
        assert same(target, model(to))


def cheapest_by_search(edges: dict[tuple[int, int], int], start: int, goal: int) -> int:
    """Bytes of the cheapest way, by relaxing every edge as often as there are versions."""
    costs = {start: 0}
    for _ in range(goal - start):
        for (before, after), size in edges.items():
            if before in costs and after <= goal:
                costs[after] = min(costs.get(after, 1 << 60), costs[before] + size)
    return costs[goal]


@given(
    st.lists(st.integers(0, 50) | st.none(), min_size=1, max_size=9),
    st.dictionaries(
        st.tuples(st.integers(0, 7), st.integers(2, 9)).filter(lambda e: e[0] + 2 <= e[1]),
        st.integers(0, 120),
    ),
)
def test_the_way_is_the_cheapest(
    sizes: list[int | None], skips: dict[tuple[int, int], int]
) -> None:
    """Against a search by brute force, with versions that have no delta among them."""
    skips = {ends: size for ends, size in skips.items() if ends[1] <= len(sizes)}
    chain = [manifest(number, size, skips) for number, size in enumerate(sizes, 1)]
    start = hop.Held(0, "", state(0))
    way = hop.cheapest(Skips(skips), start, chain, chain[-1])  # type: ignore[arg-type]
    edges = dict(skips)
    edges |= {(n - 1, n): size for n, size in enumerate(sizes, 1) if size is not None}
    best = None
    for count in range(len(sizes)):
        for middle in itertools.combinations(range(1, len(sizes)), count):
            stops = [0, *middle, len(sizes)]
            pairs = list(itertools.pairwise(stops))
            if all(pair in edges for pair in pairs):
                cost = sum(edges[pair] for pair in pairs)
                best = cost if best is None else min(best, cost)
    if best is None:
        assert way is None
        return
    assert way is not None
    assert sum(step.bytes for step in way) == best
    assert [step.base.version for step in way] == [0, *(step.version for step in way[:-1])]
    assert way[-1].version == len(sizes)
    assert all(step.base.state == state(step.base.version) for step in way)


class Skips:
    """Skip records of these sizes."""

    def __init__(self, sizes: dict[tuple[int, int], int]) -> None:
        self._sizes = sizes

    def skips(self, ends: list[tuple[hop.Held, Manifest]], goal: Manifest) -> list[SkipRecord]:
        return [
            SkipRecord(
                to.version,
                "",
                VersionRef(base.version, ""),
                state(base.version),
                b"",
                (PartRef("", self._sizes[base.version, to.version], ""),),
                0,
                "",
                0,
            )
            for base, to in ends
            if (base.version, to.version) in self._sizes
        ]


def state(version: int) -> bytes:
    return version.to_bytes(16, "little")


def manifest(version: int, size: int | None, skips: dict[tuple[int, int], int]) -> Manifest:
    return Manifest(
        version=version,
        parent=VersionRef(version - 1, ""),
        base_state=None if size is None else state(version - 1),
        result_state=state(version),
        objects=() if size is None else (PartRef("", size, ""),),
        anchor=None,
        last_anchor=None,
        elements=0,
        changed=0,
        dense_bytes=0,
        epoch=1,
        write_id="",
        time=0,
        skips=tuple(to - base for base, to in skips if to == version),
    )


@pytest.mark.parametrize("profile", ["compact", "fast", "overwrite"])
@pytest.mark.parametrize("given_weights", [False, True])
def test_folded_into_a_file(profile: dw.types.Profile, given_weights: bool, tmp_path: Path) -> None:
    """The very delta that ``diff`` makes of the two versions, or one with the same effect."""
    board = dw.Board(fresh_memory(), create=True)
    states = back_and_forth(board, 7, profile)
    file, direct = tmp_path / "folded.dw", io.BytesIO()
    weights = states[2] if given_weights else None
    stats = board.compose(2, 7, file, weights=weights, scratch=tmp_path)
    assert stats.bytes == file.stat().st_size
    known = dw.state_digest(states[2])
    dw.diff(states[2], states[7], direct, base_version=2, version=7, run="test", base_state=known)
    if given_weights or profile == "compact":
        assert file.read_bytes() == direct.getvalue()
    target = copied(states[2])
    dw.apply(file, target)
    assert same(target, states[7])
    assert [path.name for path in tmp_path.iterdir()] == ["folded.dw"]


def test_not_in_the_way_of_a_rank() -> None:
    """Shards fetch only what they need of a folded delta too."""
    rng = np.random.default_rng(1)
    shape = (4096, 1024)
    states = [{"w": rng.integers(0, 2**16, shape, np.uint16)}]
    board = dw.Board(fresh_memory(), create=True)
    with board.publisher() as publisher:
        publisher.publish_anchor(0, states[0])
        for version in range(1, 4):
            changed = (rng.random(shape) < 0.05).astype(np.uint16)
            states.append({"w": states[-1]["w"] + changed})
            publisher.publish(version, base=states[-2], new=states[-1])
    added = board.add_skip(0, 3, weights=states[0])
    assert record(board, 0, 3).objects[0].records is not None
    target = {"w": dw.Shard(states[0]["w"][1024:2048].copy(), shape, (1024, 0))}
    (step,) = board.follower(target, version=0).advance()
    assert step.bytes < 0.3 * added.bytes
    assert np.array_equal(target["w"].tensor, states[3]["w"][1024:2048])


def test_over_a_version_without_a_delta() -> None:
    """A skip record may bridge one; its delta can be made from both states."""
    board = dw.Board(fresh_memory(), create=True)
    publish(board, 2)
    arrays = model(2)
    with board.publisher() as publisher:
        advance(arrays, 3)
        publisher.publish_anchor(3, arrays)
    target = model(1)
    steps = board.follower(target, version=1).advance()
    assert [step.anchor for step in steps] == [True]
    publish_by_hand(board, 1, 3, model(1), model(3))
    target = model(1)
    steps = board.follower(target, version=1).advance()
    assert [step.anchor for step in steps] == [False]
    assert same(target, model(3))


def test_background_failures_are_told_once(tmp_path: Path) -> None:
    plan = FaultPlan()
    board = dw.Board(fresh_memory(), create=True, faults=plan)
    arrays = model()
    with board.publisher(skip_spans=[2], skip_scratch=tmp_path) as publisher:
        publisher.publish_anchor(0, arrays)
        plan.add("error", on="create", path="objects/2/from-0.json", times=None)
        for version in (1, 2):
            base = copied(arrays)
            advance(arrays, version)
            publisher.publish(version, base=base, new=arrays)
        deadline = time.monotonic() + 30
        while publisher._workers[0]._error is None:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        with pytest.raises(dw.StoreError, match="skip record of version 2, made in the backgr"):
            publisher.publish(3, base=arrays, new=arrays)
        for version in (3, 4):
            base = copied(arrays)
            advance(arrays, version)
            publisher.publish(version, base=base, new=arrays)
        wait_for(board, 4, 2)
    assert board.head() == 4


def test_lost_replies_and_races() -> None:
    """A create that was acknowledged by nobody counts; of two that add the same one wins."""
    plan = FaultPlan()
    board = dw.Board(fresh_memory(), create=True, faults=plan)
    publish(board, 4)
    plan.add("lost-reply", on="create", path="objects/4/")
    board.add_skip(0, 4)
    assert plan.injected["lost-reply"] == 1
    results: list[str] = []
    plain = dw.Board(board.url)
    barrier = threading.Barrier(4)

    def add() -> None:
        barrier.wait()
        try:
            plain.add_skip(1, 3)
            results.append("added")
        except dw.VersionConflict:
            results.append("conflict")

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == ["added", "conflict", "conflict", "conflict"]
    # The losers left nothing behind.
    assert len([path for path in stored(plain) if path.startswith("objects/3/from-1")]) == 2
    for base, version in [(0, 4), (1, 3)]:
        target = model(base)
        steps = plain.follower(target, version=base).advance(version)
        assert len(steps) == 1
        assert same(target, model(version))


def test_collection_takes_them_and_a_sweep_leaves_them(tmp_path: Path) -> None:
    root = tmp_path / "board"
    board = dw.Board(root, create=True)
    publish(board, 8)
    with board.publisher() as publisher:
        publisher.publish_anchor(5, model(5))
    board.add_skip(1, 4)
    board.add_skip(5, 8)
    stray = root / "objects/8/from-6-0123.dw"
    stray.write_bytes(b"left over")
    assert board.collect(keep=1, sweep=True, safety_age=0).leftovers == 1
    left = stored(board)
    assert [p for p in left if "from-" in p] == sorted(
        p for p in left if p.startswith("objects/8/from-5")
    )
    assert len([p for p in left if "from-5" in p]) == 2
    assert not stray.exists()
    assert not (root / "objects/4").exists() or not any((root / "objects/4").iterdir())
    target = model(5)
    (step,) = board.follower(target, version=5).advance()
    assert step.version == 8
    assert same(target, model(8))


def test_a_collection_between_record_and_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chosen skip record's version goes: the reader begins again."""
    board = dw.Board(fresh_memory(), create=True)
    publish(board, 8)
    board.add_skip(0, 8)
    target = model(0)
    follower = board.follower(target, version=0)
    real = hop.cheapest
    done: list[int] = []

    def collecting(*arguments: object) -> object:
        way = real(*arguments)  # type: ignore[arg-type]
        if not done:
            done.append(1)
            arrays = model(8)
            with dw.Board(board.url).publisher() as publisher:
                advance(arrays, 9)
                publisher.publish_anchor(9, arrays)
            dw.Board(board.url).collect(keep=1, safety_age=0)
        return way

    monkeypatch.setattr("deltawire.board.plan.cheapest", collecting)
    (step,) = follower.advance()
    assert (step.anchor, step.version) == (True, 9)
    assert same(target, model(9))


def test_few_requests() -> None:
    """Nothing is asked for one version; for twenty, one small request more than the manifests."""
    plan = FaultPlan()
    board = dw.Board(fresh_memory(), create=True)
    publish(board, LAST)
    watched = dw.Board(board.url, faults=plan)
    follower = watched.follower(model(LAST - 1), version=LAST - 1)
    follower.advance()
    first = sum(plan.counts.values())
    board.add_skip(0, LAST)
    follower = watched.follower(model(0), version=0)
    before = dict(plan.counts)
    follower.advance()
    asked = {name: count - before.get(name, 0) for name, count in plan.counts.items()}
    assert first <= 12
    assert sum(asked.values()) <= LAST + 12
    assert asked.get("list", 0) == 0


@pytest.fixture
def run_board(tmp_path: Path) -> Path:
    publish(dw.Board(tmp_path / "board", create=True), 4)
    return tmp_path / "board"


def test_commands(cli: Cli, run_board: Path, tmp_path: Path) -> None:
    file = tmp_path / "folded.dw"
    done = cli("compose", run_board, "--from", 1, "--to", 4, "-o", file)
    assert done.out.splitlines()[0] == f"{file}: a delta from version 1 to 4"
    target = model(1)
    dw.apply(file, target)
    assert same(target, model(4))
    value = cli("compose", run_board, "--from", 0, "--to", 4, "--publish", "--json").json
    assert (value["base_version"], value["version"], value["path"]) == (0, 4, None)
    assert value["chain_bytes"] == sum(
        dw.Board(run_board).manifest(version).bytes for version in range(1, 5)
    )
    assert "already" in cli("compose", run_board, "--from", 0, "--to", 4, "--publish", status=4).err
    cli("pull", run_board, "-o", tmp_path / "pulled", "--version", 0)
    out = cli("pull", run_board, "-o", tmp_path / "pulled").out
    assert "1 delta" in out
    assert holds(tmp_path / "pulled", 4)
    with_weights = cli("compose", run_board, "--from", 4, "--to", 4, "--publish", status=2).err
    assert "--from must be an earlier version" in with_weights
    assert "one of the arguments" in cli("compose", run_board, "--from", 1, "--to", 2, status=2).err
    error = cli(
        "compose",
        run_board,
        "--from",
        1,
        "--to",
        3,
        "--publish",
        "--base",
        tmp_path / "pulled",
        status=4,
    ).err
    assert "--base" in error


def test_async() -> None:
    async def main() -> None:
        board = dw.Board(fresh_memory(), create=True)
        publish(board, 4)
        async with aio.AsyncBoard(board.url) as other:
            sink = io.BytesIO()
            stats = await other.compose(0, 4, sink)
            assert stats.bytes == len(sink.getvalue())
            added = await other.add_skip(0, 4)
            assert added.bytes == stats.bytes

    asyncio.run(main())
