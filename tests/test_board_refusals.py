"""What goes wrong in publishing is named, and leaves the board exactly as before."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deltawire as dw
from board_runs import (
    contents,
    delta_path,
    fresh_memory,
    model,
    publish,
    same,
    stored,
    zeros,
)

#: Sets how a file of more bytes is refused, as a full disk refuses it.
LIMITED = """
import resource, sys
import deltawire as dw
sys.path.insert(0, sys.argv[1])
import board_runs
board = dw.Board(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), int(sys.argv[3])))
"""


@pytest.fixture
def board(tmp_path: Path) -> dw.Board:
    """A local board with versions 0, an anchor, to 3."""
    board = dw.Board(tmp_path / "board", create=True)
    publish(board, 3)
    return board


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where that board lies."""
    return tmp_path / "board"


def versions_and_objects(root: Path) -> dict[str, bytes]:
    """All of the board but its control objects."""
    return {path: data for path, data in contents(root).items() if not path.startswith("control/")}


# --- Opening -----------------------------------------------------------------------------


def test_unknown_and_missing_boards(tmp_path: Path) -> None:
    with pytest.raises(dw.StoreError, match="file://, memory://") as caught:
        dw.Board("s3://bucket/run", create=True)
    assert caught.value.path == "s3://bucket/run"
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


def test_versions_that_do_not_follow(board: dw.Board, root: Path) -> None:
    before = versions_and_objects(root)
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
    assert versions_and_objects(root) == before
    with pytest.raises(dw.StoreError, match="closed"):
        publisher.publish(4, base=model(3), new=model(4))
    empty = dw.Board(fresh_memory(), create=True)
    with empty.publisher() as publisher, pytest.raises(dw.WrongVersion, match="publish_anchor"):
        publisher.publish(0, base=model(0), new=model(1))


def test_a_board_is_of_one_run(board: dw.Board, root: Path) -> None:
    before = versions_and_objects(root)
    with (
        board.publisher(run="another") as publisher,
        pytest.raises(dw.BrokenChain, match="of run 'test', not 'another'"),
    ):
        publisher.publish(4, base=model(3), new=model(4))
    assert versions_and_objects(root) == before


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
    extras = Path(publisher._board.url).parent / "extras"
    extras.mkdir()
    (extras / "read me.txt").touch()
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
    root: Path,
    action: Callable[[dw.Publisher], None],
    error: type[BaseException],
    message: str | None,
) -> None:
    before = versions_and_objects(root)
    with board.publisher() as publisher:
        with pytest.raises(error, match=message):
            action(publisher)
        assert versions_and_objects(root) == before
        assert board.head() == 3
        # The publisher goes on.
        publisher.publish(4, base=model(3), new=model(4))
    served = zeros(model())
    board.follower(served).advance()
    assert same(served, model(4))


@pytest.mark.parametrize("begun", [False, True])
def test_an_interrupt_around_the_commit(
    board: dw.Board, root: Path, begun: bool, monkeypatch: pytest.MonkeyPatch
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

    before = versions_and_objects(root)
    with board.publisher() as publisher:
        monkeypatch.setattr(publisher, "_store", Interrupting(board.store))
        with pytest.raises(KeyboardInterrupt):
            publisher.publish(4, base=model(3), new=model(4))
    if not begun:
        assert versions_and_objects(root) == before
    assert board.head() == (4 if begun else 3)
    served = zeros(model())
    board.follower(served).advance()
    assert same(served, model(4 if begun else 3))


def test_the_later_publisher_fences_the_earlier(board: dw.Board, root: Path) -> None:
    earlier = board.publisher()
    later = dw.Board(root).publisher()
    before = versions_and_objects(root)
    with pytest.raises(dw.VersionConflict, match="another publisher opened"):
        earlier.publish(4, base=model(3), new=model(4))
    with pytest.raises(dw.VersionConflict, match="another publisher opened"):
        earlier.publish_anchor(3, model(3))
    assert versions_and_objects(root) == before
    assert later.publish(4, base=model(3), new=model(4)).version == 4


def test_fenced_while_encoding(board: dw.Board, root: Path) -> None:
    """The later publisher opens, and even publishes, while the earlier one still encodes."""
    before: dict[str, bytes] = {}

    def open_another(done: int) -> None:
        if not before:
            with dw.Board(root).publisher() as later:
                later.publish(4, base=model(3), new=model(4))
            before.update(versions_and_objects(root))

    with board.publisher() as earlier, pytest.raises(dw.VersionConflict):
        earlier.publish(4, base=model(3), new=model(5), progress=open_another)
    after = versions_and_objects(root)
    # Its staging file was there when the copy was made, and is gone now.
    assert {path: data for path, data in before.items() if "#" not in path} == after
    served = zeros(model())
    board.follower(served).advance()
    assert same(served, model(4))


def test_of_racing_publishers_one_wins_each_version(tmp_path: Path) -> None:
    publish(dw.Board(tmp_path, create=True), 0)
    outcomes: list[list[int]] = [[], [], []]
    errors: list[BaseException] = []

    def work(number: int) -> None:
        board = dw.Board(tmp_path)
        publisher = board.publisher()
        while (head := board.head()) is not None and head < 8:
            try:
                publisher.publish(head + 1, base=model(head), new=model(head + 1))
            except dw.VersionConflict:
                publisher = board.publisher()
            except BaseException as error:
                errors.append(error)
                raise
            else:
                outcomes[number].append(head + 1)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sorted(version for won in outcomes for version in won) == list(range(1, 9))
    board = dw.Board(tmp_path)
    served = zeros(model())
    assert len(board.follower(served).advance()) == 9
    assert same(served, model(8))
    listed = {item.path for manifest in board.log() for item in manifest.objects}
    assert {path for path in stored(board) if path.startswith("objects")} == listed


@pytest.mark.skipif(sys.platform == "win32", reason="file size limits are POSIX")
@pytest.mark.parametrize(
    "call",
    [
        "publisher.publish(4, base=board_runs.model(3), new=board_runs.model(4))",
        "publisher.publish_anchor(4, board_runs.model(4))",
        "board.follower(board_runs.zeros(board_runs.model())).advance()",
    ],
)
def test_a_full_disk(board: dw.Board, root: Path, call: str) -> None:
    before = versions_and_objects(root)
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
    assert versions_and_objects(root) == before
