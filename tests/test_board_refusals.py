"""What goes wrong in publishing is named, and leaves the board exactly as before."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deltawire as dw
from board_runs import (
    delta_path,
    fresh_memory,
    model,
    publish,
    same,
    stored,
    zeros,
)
from kept import Kept, LocalKept, S3Kept, published, reopened
from store_servers import S3

#: Sets how a file of more bytes is refused, as a full disk refuses it.
LIMITED = """
import resource, sys
import deltawire as dw
sys.path.insert(0, sys.argv[1])
import board_runs
board = dw.Board(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), int(sys.argv[3])))
"""


@pytest.fixture(params=["path", "s3"])
def both(request: pytest.FixtureRequest, tmp_path: Path, s3: S3) -> tuple[dw.Board, Kept]:
    """A board with versions 0, an anchor, to 3, and what holds it."""
    return published(request.param, tmp_path, s3, 3)


@pytest.fixture
def board(both: tuple[dw.Board, Kept]) -> dw.Board:
    """The board."""
    return both[0]


@pytest.fixture
def kept(both: tuple[dw.Board, Kept]) -> Kept:
    """What holds it."""
    return both[1]


def versions_and_objects(kept: Kept) -> dict[str, bytes]:
    """All of the board but its control objects."""
    return {name: kept.read(name) for name in kept.names() if not name.startswith("control/")}


def check_unchanged(kept: Kept, before: dict[str, bytes]) -> None:
    """Versions and objects are those of before. Where a failed create may still land, objects
    of the attempt may stay, and nothing else."""
    after = versions_and_objects(kept)
    if isinstance(kept, S3Kept):
        after = {k: v for k, v in after.items() if k in before or not k.startswith("objects/")}
    assert after == before


# --- Opening -----------------------------------------------------------------------------


def test_unknown_and_missing_boards(tmp_path: Path) -> None:
    with pytest.raises(dw.StoreError, match="file://, memory://, s3://") as caught:
        dw.Board("hdfs://host/run", create=True)
    assert caught.value.path == "hdfs://host/run"
    with pytest.raises(dw.StoreError, match="no board here"):
        dw.Board(tmp_path / "nothing")
    (tmp_path / "file").touch()
    with pytest.raises(dw.StoreError, match="a board is a directory"):
        dw.Board(tmp_path / "file")
    empty = dw.Board(tmp_path, create=True)
    assert (empty.head(), empty.log()) == (None, [])
    with pytest.raises(dw.WrongVersion, match="no version yet"):
        empty.follower(model()).advance()
    with pytest.raises(dw.WrongVersion, match="no such version"):
        empty.manifest(0)


# --- Publishing --------------------------------------------------------------------------


def test_versions_that_do_not_follow(board: dw.Board, kept: Kept) -> None:
    before = versions_and_objects(kept)
    with board.publisher() as publisher:
        for version, error in [
            (3, dw.VersionConflict),
            (0, dw.VersionConflict),
            (5, dw.WrongVersion),
        ]:
            with pytest.raises(error, match="the next one is 4") as caught:
                publisher.publish(version, base=model(3), new=model(4))
            assert caught.value.version == version
        with pytest.raises(dw.WrongVersion, match="the next one is 4"):
            publisher.publish_anchor(5, model(5))
    assert versions_and_objects(kept) == before
    with pytest.raises(dw.StoreError, match="closed"):
        publisher.publish(4, base=model(3), new=model(4))
    empty = dw.Board(fresh_memory(), create=True)
    with empty.publisher() as publisher, pytest.raises(dw.WrongVersion, match="publish_anchor"):
        publisher.publish(0, base=model(0), new=model(1))


def test_a_board_is_of_one_run(board: dw.Board, kept: Kept) -> None:
    before = versions_and_objects(kept)
    with (
        board.publisher(run="another") as publisher,
        pytest.raises(dw.BrokenChain, match="of run 'test', not 'another'"),
    ):
        publisher.publish(4, base=model(3), new=model(4))
    assert versions_and_objects(kept) == before


def wrong_base(publisher: dw.Publisher) -> None:
    publisher.publish(4, base=model(2), new=model(4))


def another_layout(publisher: dw.Publisher) -> None:
    publisher.publish(4, base=model(3), new={**model(4), "more": np.zeros(3)})


def interrupted(publisher: dw.Publisher) -> None:
    def stop(done: int) -> None:
        raise KeyboardInterrupt

    publisher.publish(4, base=model(3), new=model(4), progress=stop)


def anchor_interrupted(publisher: dw.Publisher) -> None:
    def stop(done: int) -> None:
        raise KeyboardInterrupt

    publisher.publish_anchor(4, model(4), progress=stop, max_shard_bytes=9000)


def too_much_meta(publisher: dw.Publisher) -> None:
    publisher.publish(4, base=model(3), new=model(4), meta={"x": "y" * (300 << 10)})


def unusable_name(publisher: dw.Publisher) -> None:
    with tempfile.TemporaryDirectory() as extras:
        (Path(extras) / "read me.txt").touch()
        publisher.publish_anchor(4, model(4), extra_files=extras)


@pytest.mark.parametrize(
    ("action", "error", "message"),
    [
        (wrong_base, dw.WrongBase, "pull the head"),
        (another_layout, dw.LayoutMismatch, "more"),
        (interrupted, KeyboardInterrupt, None),
        (anchor_interrupted, KeyboardInterrupt, None),
        (too_much_meta, dw.LimitExceeded, "meta"),
        (unusable_name, dw.StoreError, "rename"),
    ],
)
def test_a_failed_publish_leaves_nothing(
    board: dw.Board,
    kept: Kept,
    action: Callable[[dw.Publisher], None],
    error: type[BaseException],
    message: str | None,
) -> None:
    before = versions_and_objects(kept)
    with board.publisher() as publisher:
        with pytest.raises(error, match=message):
            action(publisher)
        check_unchanged(kept, before)
        assert board.head() == 3
        # The publisher goes on.
        publisher.publish(4, base=model(3), new=model(4))
    served = zeros(model())
    board.follower(served).advance()
    assert same(served, model(4))


@pytest.mark.parametrize("begun", [False, True])
def test_an_interrupt_around_the_commit(
    board: dw.Board, kept: Kept, begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it nothing stays; after it the version exists, and its objects with it."""

    class Interrupting:
        def __init__(self, store: Any) -> None:
            self._store = store

        def __getattr__(self, name: str) -> Any:
            return getattr(self._store, name)

        def commit(self, version: int, manifest: bytes, key: Any) -> str:
            if begun:
                self._store.commit(version, manifest, key)
            raise KeyboardInterrupt

    before = versions_and_objects(kept)
    with board.publisher() as publisher:
        monkeypatch.setattr(publisher, "_store", Interrupting(board.store))
        with pytest.raises(KeyboardInterrupt):
            publisher.publish(4, base=model(3), new=model(4))
    if not begun:
        check_unchanged(kept, before)
    assert board.head() == (4 if begun else 3)
    served = zeros(model())
    board.follower(served).advance()
    assert same(served, model(4 if begun else 3))


def test_the_later_publisher_fences_the_earlier(board: dw.Board, kept: Kept) -> None:
    earlier = board.publisher()
    later = reopened(board).publisher()
    before = versions_and_objects(kept)
    with pytest.raises(dw.VersionConflict, match="another publisher opened"):
        earlier.publish(4, base=model(3), new=model(4))
    with pytest.raises(dw.VersionConflict, match="another publisher opened"):
        earlier.publish_anchor(3, model(3))
    assert versions_and_objects(kept) == before
    assert later.publish(4, base=model(3), new=model(4)).version == 4


def test_fenced_while_encoding(board: dw.Board, kept: Kept) -> None:
    """The later publisher opens, and even publishes, while the earlier one still encodes."""
    before: dict[str, bytes] = {}

    def open_another(done: int) -> None:
        if not before:
            with reopened(board).publisher() as later:
                later.publish(4, base=model(3), new=model(4))
            before.update(versions_and_objects(kept))

    with board.publisher() as earlier, pytest.raises(dw.VersionConflict):
        earlier.publish(4, base=model(3), new=model(5), progress=open_another)
    after = versions_and_objects(kept)
    # Its staging file was there when the copy was made, and is gone now.
    assert {path: data for path, data in before.items() if "#" not in path} == after
    served = zeros(model())
    board.follower(served).advance()
    assert same(served, model(4))


def test_of_racing_publishers_one_wins_each_version(board: dw.Board, kept: Kept) -> None:
    shared = board
    count, last = (3, 9) if isinstance(kept, LocalKept) else (2, 5)
    outcomes: list[list[int]] = [[], [], []]
    errors: list[BaseException] = []

    def work(number: int) -> None:
        board = reopened(shared)
        publisher = board.publisher()
        while (head := board.head()) is not None and head < last:
            try:
                publisher.publish(head + 1, base=model(head), new=model(head + 1))
            except dw.VersionConflict:
                # Opening fences the others: some wait longer, or nobody would ever commit.
                time.sleep(0.05 * number)
                publisher = board.publisher()
            except BaseException as error:
                errors.append(error)
                raise
            else:
                outcomes[number].append(head + 1)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sorted(version for won in outcomes for version in won) == list(range(4, last + 1))
    board = reopened(board)
    served = zeros(model())
    assert len(board.follower(served).advance()) == last + 1
    assert same(served, model(last))
    listed = {item.path for manifest in board.log() for item in manifest.objects}
    there = {path for path in stored(board) if path.startswith("objects")}
    assert there == listed if isinstance(kept, LocalKept) else there >= listed


@pytest.mark.skipif(sys.platform == "win32", reason="file size limits are POSIX")
@pytest.mark.parametrize(
    "call",
    [
        "publisher.publish(4, base=board_runs.model(3), new=board_runs.model(4))",
        "publisher.publish_anchor(4, board_runs.model(4))",
        "board.follower(board_runs.zeros(board_runs.model())).advance()",
    ],
)
def test_a_full_disk(tmp_path: Path, call: str) -> None:
    root, kept = tmp_path, LocalKept(tmp_path)
    publish(dw.Board(root, create=True), 3)
    before = versions_and_objects(kept)
    script = f"""{LIMITED}
publisher = board.publisher()
try:
    {call}
except dw.StoreError as error:
    assert "space" in str(error) or "large" in str(error), error
else:
    sys.exit("nothing was refused")
"""
    tests = str(Path(__file__).parent)
    limit = min(delta_path(root, version).stat().st_size for version in (1, 2, 3)) // 2
    done = subprocess.run([sys.executable, "-c", script, tests, str(root), str(limit)])
    assert done.returncode == 0
    assert versions_and_objects(kept) == before
