"""Leases and collection as a user of the package meets them."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import deltawire as dw
from board_runs import (
    Arrays,
    advance,
    contents,
    copied,
    fresh_memory,
    holds,
    model,
    publish,
    same,
    stored,
    zeros,
)
from deltawire.board import plan

TESTS = str(Path(__file__).parent)


def with_anchors(board: dw.Board, last: int, every: int = 3) -> None:
    """Versions 0 to ``last``; every ``every``-th has an anchor that was added."""
    publish(board, last)
    with board.publisher() as publisher:
        for version in range(every, last + 1, every):
            publisher.publish_anchor(version, model(version))


def retained(board: dw.Board) -> list[int]:
    return [manifest.version for manifest in reversed(board.log())]


def check_all_readable(board: dw.Board) -> None:
    """Anyone can read every version from the boundary on, with the right bits."""
    boundary = board.boundary()
    for version in retained(board):
        if boundary is None or version >= boundary:
            target = zeros(model())
            board.follower(target).advance(version)
            assert same(target, model(version))


@pytest.fixture(params=["memory", "local"])
def board(request: pytest.FixtureRequest, tmp_path: Path) -> dw.Board:
    url = fresh_memory() if request.param == "memory" else str(tmp_path / "board")
    return dw.Board(url, create=True)


def test_old_versions_go_and_the_rest_is_as_before(board: dw.Board) -> None:
    with_anchors(board, 10)
    before = stored(board)
    dry = board.collect(keep=3, dry_run=True)
    assert stored(board) == before
    assert board.boundary() is None
    stats = board.collect(keep=3)
    assert (stats.first, stats.until, stats.versions, stats.limit) == (0, 6, 6, "anchor")
    assert (stats.head, stats.boundary, stats.boundary_before) == (10, 6, 0)
    # Versions 1 to 5, and the anchors of 0 and 3.
    assert stats.objects == 5 + 2
    assert stats.anchors == 2
    assert (dry.first, dry.until, dry.objects, dry.bytes) == (0, 6, stats.objects, stats.bytes)
    assert dry.dry_run
    assert not stats.dry_run
    assert len(stored(board)) == len(before) - stats.objects
    assert retained(board) == [6, 7, 8, 9, 10]
    assert board.boundary() == 6
    check_all_readable(board)
    again = board.collect(keep=3)
    assert (again.versions, again.objects) == (0, 0)
    with pytest.raises(dw.WrongVersion) as error:
        board.manifest(5)
    assert error.value.version == 5
    publish_one(board, 11)
    check_all_readable(board)


def publish_one(board: dw.Board, version: int) -> None:
    with board.publisher() as publisher:
        publisher.publish(version, base=model(version - 1), new=model(version))


def test_an_empty_board_and_bad_settings(board: dw.Board) -> None:
    assert board.collect().head is None
    for settings in [{"keep": 0}, {"older_than": -1}, {"grace": float("nan")}]:
        with pytest.raises(ValueError, match=next(iter(settings))):
            board.collect(**settings)  # type: ignore[arg-type]


def test_versions_go_by_age_too(board: dw.Board) -> None:
    with_anchors(board, 6)
    assert board.collect(keep=1, older_than=3600).limit == "age"
    assert retained(board) == list(range(7))
    time.sleep(0.02)
    assert board.collect(keep=1, older_than=0.01).until == 6


def test_numbers_go_on_after_everything_old_is_gone(tmp_path: Path) -> None:
    root = tmp_path / "board"
    board = dw.Board(root, create=True)
    with_anchors(board, 6)
    board.collect(keep=1)
    assert retained(board) == [6]
    (root / "latest.json").unlink()
    # Another process, which knows nothing.
    other = dw.Board(root)
    with other.publisher() as publisher:
        for version in [0, 3, 6]:
            with pytest.raises(dw.VersionConflict):
                publisher.publish(version, base=model(5), new=model(6))
        with pytest.raises(dw.VersionConflict, match="already has an anchor"):
            publisher.publish_anchor(6, model(6))
        with pytest.raises(dw.WrongVersion):
            publisher.publish_anchor(2, model(2))
        assert publisher.publish(base=model(6), new=model(7)).version == 7
    check_all_readable(other)


def test_a_lease_keeps_what_its_reader_needs(board: dw.Board) -> None:
    with_anchors(board, 4)
    target = zeros(model())
    with board.follower(target, lease="slow reader") as follower:
        assert board.readers() == []
        follower.advance()
        (lease,) = board.readers()
        assert (lease.name, lease.version, lease.needs, lease.target) == ("slow reader", 4, 4, None)
        assert 800 < lease.expires - lease.renewed <= 900
        for version in range(5, 13):
            publish_one(board, version)
        with board.publisher() as publisher:
            for version in [6, 9, 12]:
                publisher.publish_anchor(version, model(version))
        stats = board.collect(keep=1)
        assert (stats.until, stats.limit, stats.leases) == (3, "lease", 1)
        # The chain it was on is all there: no anchor is loaded.
        assert follower.stage() == list(range(5, 13))
        assert board.readers()[0].target == 12
        assert [step.anchor for step in follower.commit()] == [False] * 8
        assert same(target, model(12))
        assert board.readers()[0].needs == 12
        assert board.collect(keep=1).until == 12
    assert board.readers() == []
    check_all_readable(board)


def test_polls_renew_a_lease(board: dw.Board, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(board, 1)
    clock = Clock(monkeypatch)
    follower = board.follower(model(1), version=1, lease="steady", lease_seconds=90)
    assert follower.advance() == []
    (first,) = board.readers()
    assert first.version == 1
    clock.pass_(20)
    follower.advance()
    assert board.readers() == [first]
    clock.pass_(20)
    follower.advance()
    (second,) = board.readers()
    assert second.id == first.id
    assert second.expires - first.expires == pytest.approx(40, abs=0.01)
    clock.pass_(10)
    follower.renew()
    assert board.readers()[0].expires > second.expires
    # After its end another id is taken, for the old object may be removed at any moment.
    clock.pass_(1000)
    follower.renew()
    (third,) = board.readers()
    assert third.id != first.id
    follower.close()
    follower.close()
    follower.renew()
    assert board.readers() == []


class Clock:
    """The wall clock that leases see."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._now = time.time()
        monkeypatch.setattr("deltawire.board.lease.time.time", lambda: self._now)

    def pass_(self, seconds: float) -> None:
        self._now += seconds


def test_a_reader_whose_lease_ended_starts_again_from_an_anchor(
    board: dw.Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_anchors(board, 4)
    target = zeros(model())
    follower = board.follower(target, lease="asleep", lease_seconds=0.01)
    follower.advance()
    for version in range(5, 10):
        publish_one(board, version)
    with board.publisher() as publisher:
        publisher.publish_anchor(8, model(8))
    time.sleep(0.02)
    assert board.collect(keep=1, grace=3600).until == 3
    stats = board.collect(keep=1, grace=0, safety_age=0)
    assert (stats.until, stats.expired) == (8, 1)
    first, *rest = follower.advance()
    assert (first.version, first.anchor) == (8, True)
    assert [step.version for step in rest] == [9]
    assert same(target, model(9))


def test_a_lease_that_cannot_be_written_or_understood(tmp_path: Path) -> None:
    root = tmp_path / "board"
    board = dw.Board(root, create=True)
    with_anchors(board, 4)
    (root / "readers").write_text("in the way")
    target = zeros(model())
    with pytest.raises(dw.StoreError, match="without a lease"):
        board.follower(target, lease="me").advance()
    assert same(target, zeros(model()))
    (root / "readers").unlink()
    board.follower(target).advance()
    (root / "readers").mkdir()
    (root / "readers" / "x.json").write_text('{"format":2}')
    before = contents(root)
    with pytest.raises(dw.UnsupportedDelta, match=r"x\.json"):
        board.collect(keep=1)
    assert contents(root) == before
    for name in ["x" * 300, "\N{SNOWMAN}" * 100]:
        with pytest.raises(dw.UntrustedDelta, match="name"):
            board.follower(target, lease=name).advance()
    with pytest.raises(ValueError, match="lease"):
        board.follower(target, lease="me", lease_seconds=0)


class Overtaking(dw.Board):
    """A board whose collection happens at the worst moment: right behind a reader's choice."""

    armed = False

    def overtake(self) -> None:
        if self.armed:
            self.armed = False
            dw.Board(self.url).collect(keep=1)


@pytest.mark.parametrize("held", [None, 1])
@pytest.mark.parametrize("lease", [None, "late"])
def test_a_collection_between_choice_and_fetch(
    monkeypatch: pytest.MonkeyPatch, held: int | None, lease: str | None
) -> None:
    """The reader has chosen a path that goes away before it fetches it, and takes another."""
    board = Overtaking(fresh_memory(), create=True)
    publish(board, 9)
    with board.publisher() as publisher:
        publisher.publish_anchor(8, model(8))
    # It knows of the old anchor only.
    board.store.write_hint(9, 0)
    chosen: list[int | None] = []
    find = plan.find_path

    def choose(*arguments: object, **options: object) -> plan.Path:
        path = find(*arguments, **options)  # type: ignore[arg-type]
        chosen.append(None if path.anchor is None else path.anchor.manifest.version)
        board.overtake()
        return path

    monkeypatch.setattr("deltawire.board.follower.find_path", choose)
    monkeypatch.setattr("deltawire.board.pull.find_path", choose)
    target = zeros(model()) if held is None else model(held)
    follower = board.follower(target, version=held, lease=lease)
    board.armed = True
    steps = follower.advance()
    assert [step.version for step in steps] == [8, 9]
    assert steps[0].anchor
    assert same(target, model(9))
    assert chosen[0] == (0 if held is None else None)
    assert chosen[-1] == 8
    follower.close()


def test_a_collection_in_the_middle_of_a_pull(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = Overtaking(tmp_path / "board", create=True)
    publish(board, 9)
    board.pull(tmp_path / "old", version=2)
    with board.publisher() as publisher:
        publisher.publish_anchor(8, model(8))
    board.store.write_hint(9, 0)
    find = plan.find_path

    def choose(*arguments: object, **options: object) -> plan.Path:
        path = find(*arguments, **options)  # type: ignore[arg-type]
        board.overtake()
        return path

    monkeypatch.setattr("deltawire.board.pull.find_path", choose)
    board.armed = True
    assert board.pull(tmp_path / "old").anchor == 8
    assert holds(tmp_path / "old", 9)
    board.pull(tmp_path / "new")
    assert holds(tmp_path / "new", 9)


def test_an_anchor_that_nothing_names_any_more(board: dw.Board) -> None:
    """Named anchors were collected, and the one that is left was added after the versions."""
    publish(board, 9)
    with board.publisher() as publisher:
        publisher.publish_anchor(5, model(5))
    board.collect(keep=4)
    board.store.delete("latest.json")
    check_all_readable(board)
    assert retained(board)[0] == 5


def test_an_anchor_that_comes_too_late(board: dw.Board, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its version was collected, or its files were, while it was uploaded."""
    with_anchors(board, 6)
    publisher = board.publisher()
    upload = dw.board.anchor.Source.upload

    def slow(self: object, *arguments: object, **options: object) -> object:
        files = upload(self, *arguments, **options)  # type: ignore[arg-type]
        moment()
        return files

    monkeypatch.setattr(dw.board.anchor.Source, "upload", slow)

    moment: Callable[[], object] = partial(board.collect, keep=1)
    with pytest.raises(dw.WrongVersion, match="collected") as error:
        publisher.publish_anchor(5, model(5))
    assert error.value.version == 5
    publisher.publish(7, base=model(6), new=model(7))
    moment = partial(board.store.delete, "anchors/7/model.safetensors")
    with pytest.raises(dw.StoreError, match="safety age"):
        publisher.publish_anchor(7, model(7))
    assert not any(path.startswith("anchors/7") or "anchors/5" in path for path in stored(board))
    check_all_readable(board)


def test_a_sweep_takes_what_failed_attempts_left(tmp_path: Path) -> None:
    root = tmp_path / "board"
    board = dw.Board(root, create=True)
    with_anchors(board, 4)
    kept = contents(root)
    leftovers = [
        root / "objects" / "2" / f"0-{'d' * 32}.dw",
        root / "anchors" / "1" / "model.safetensors",
        root / "anchors" / "3-2" / "config.json",
    ]
    for path in leftovers:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"leftover")
    assert board.collect(sweep=True).leftovers == 0  # they are young
    assert board.collect(safety_age=0).leftovers == 0  # nobody asked
    stats = board.collect(sweep=True, safety_age=0)
    assert (stats.leftovers, stats.leftover_bytes, stats.versions) == (3, 24, 0)
    assert contents(root) == kept


def test_readers_publishers_and_collectors_at_once(tmp_path: Path) -> None:
    """A publisher with anchors in the background, two collectors and three readers."""
    root = tmp_path / "board"
    publish(dw.Board(root, create=True), 0)
    last = 60
    stop = threading.Event()
    failures: list[BaseException] = []
    removed: list[int] = []

    def watched(work: object, *arguments: object) -> threading.Thread:
        def run() -> None:
            try:
                work(*arguments)  # type: ignore[operator]
            except BaseException as error:  # noqa: BLE001 - looked at below
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def collector(keep: int) -> None:
        while not stop.is_set():
            removed.append(dw.Board(root).collect(keep=keep, sweep=keep == 3).versions)

    def reader(lease: str | None, pause: float) -> None:
        target = zeros(model())
        with dw.Board(root).follower(target, lease=lease) as follower:
            ended = False
            while not ended:
                ended = stop.is_set()
                steps = follower.advance()
                if steps:
                    assert same(target, model(steps[-1].version))
                if lease is not None:
                    assert not any(step.anchor for step in steps[1:])
                time.sleep(pause)
            assert follower.version == last

    threads = [
        watched(collector, 2),
        watched(collector, 3),
        watched(reader, None, 0),
        watched(reader, None, 0.3),
        watched(reader, "slow", 0.2),
    ]
    board = dw.Board(root)
    arrays: Arrays = model()
    with board.publisher(anchor_every=4, anchor_scratch=tmp_path) as publisher:
        for version in range(1, last + 1):
            base = copied(arrays)
            advance(arrays, version)
            publisher.publish(version, base=base, new=arrays)
            time.sleep(0.03)
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures, failures
    assert sum(removed) > last // 2
    board.collect(keep=1)
    check_all_readable(board)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["board"]


COLLECT = """
import sys
import deltawire as dw
board = dw.Board(sys.argv[1])
print("ready", flush=True)
while True:
    for keep in (6, 3, 1):
        board.collect(keep=keep, sweep=True, safety_age=0)
"""


def test_a_collector_killed_at_random_moments(tmp_path: Path) -> None:
    root = tmp_path / "board"
    board = dw.Board(root, create=True)
    version = 8
    with_anchors(board, version, 2)
    moments = random.Random(11)
    deadline = time.monotonic() + 40
    kills = 0
    while kills < 36 and time.monotonic() < deadline:
        child = subprocess.Popen([sys.executable, "-c", COLLECT, str(root)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        time.sleep(moments.uniform(0, 0.03))
        child.kill()
        child.wait()
        child.stdout.close()
        kills += 1
        fresh = dw.Board(root)
        assert fresh.head() == version
        there = retained(fresh)
        assert there == list(range(there[0], version + 1))
        if kills % 3 == 0:
            check_all_readable(fresh)
        # More to collect the next time.
        with fresh.publisher() as publisher:
            for _ in range(3):
                version += 1
                publisher.publish(version, base=model(version - 1), new=model(version))
            publisher.publish_anchor(version - 1, model(version - 1))
    assert kills >= 12
    board.collect(keep=1, sweep=True, safety_age=0)
    check_all_readable(board)
    assert retained(board) == [version - 1, version]
    # Nothing is left of all that was killed.
    files = {path for path in contents(root) if not path.startswith("control/")}
    listed = {item.path for m in board.log() for item in m.objects}
    assert {path for path in files if path.startswith("objects/")} == listed
    assert len(files) == len(listed) + 2 + 1 + 1 + 1  # manifests, anchor record, anchor, hint
