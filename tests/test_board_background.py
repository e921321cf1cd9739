"""Anchors that a publisher makes in the background."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import deltawire as dw
from board_runs import Arrays, advance, contents, copied, fresh_memory, model, same, zeros
from deltawire.board import background, worker
from deltawire.board.plan import find_anchor


@pytest.fixture
def board() -> dw.Board:
    return dw.Board(fresh_memory(), create=True)


def publish_all(
    publisher: dw.Publisher, last: int, arrays: Arrays, after: Callable[[int], object] = lambda _: 0
) -> None:
    """Versions up to ``last``; the trainer's tensors go on at once."""
    head = int(arrays["steps"])
    for version in range(head + 1, last + 1):
        base = copied(arrays)
        advance(arrays, version)
        publisher.publish(version, base=base, new=arrays)
        after(version)


def anchors(board: dw.Board) -> list[int]:
    return [m.version for m in reversed(board.log()) if find_anchor(board, m, m) is not None]


def wait_for(board: dw.Board, version: int) -> None:
    deadline = time.monotonic() + 20
    while version not in anchors(board):
        assert time.monotonic() < deadline, f"no anchor of {version}"
        time.sleep(0.005)


def check_anchor(board: dw.Board, version: int) -> None:
    target = zeros(model())
    (step,) = board.follower(target).advance(version)
    assert step.anchor
    assert same(target, model(version))


def test_every_so_many_versions(board: dw.Board, tmp_path: Path) -> None:
    arrays = model()
    with board.publisher(anchor_every=3, anchor_scratch=tmp_path) as publisher:
        publisher.publish_anchor(0, arrays)
        publish_all(publisher, 10, arrays, lambda v: v % 3 or wait_for(board, v))
    assert anchors(board) == [0, 3, 6, 9]
    for version in [3, 6, 9]:
        check_anchor(board, version)
    assert list(tmp_path.iterdir()) == []
    # The next publisher goes on counting from the last anchor, and versions name it.
    with board.publisher(anchor_every=3) as publisher:
        publish_all(publisher, 13, arrays)
    assert anchors(board) == [0, 3, 6, 9, 12] or anchors(board) == [0, 3, 6, 9, 13]
    last = board.manifest(13).last_anchor
    assert last is not None
    assert last.version >= 9


def test_when_the_chain_outweighs_an_anchor(board: dw.Board) -> None:
    arrays = model()
    with board.publisher(anchor_outweighed=True) as publisher:
        publisher.publish_anchor(0, arrays)
        for version in range(1, 8):
            base = copied(arrays)
            advance(arrays, version)
            arrays["layer.weight"][...] = -arrays["layer.weight"]
            publisher.publish(version, base=base, new=arrays, profile="fast")
            time.sleep(0.05)
    found = anchors(board)
    dense = board.manifest(0).dense_bytes
    first = found[1]
    chain = [board.manifest(version).bytes for version in range(1, first + 1)]
    assert 1 < first <= 6
    assert sum(chain) > dense >= sum(chain[:-1]) - max(chain)


def test_deltas_do_not_wait(board: dw.Board, monkeypatch: pytest.MonkeyPatch) -> None:
    """An anchor that takes for ever delays nothing, and is of the bits of its own version."""
    go_on = threading.Event()
    real = worker.pull

    def slow(*arguments: Any, **options: Any) -> object:
        assert go_on.wait(30)
        return real(*arguments, **options)

    monkeypatch.setattr(worker, "pull", slow)
    arrays = model()
    with board.publisher(anchor_every=2) as publisher:
        publisher.publish_anchor(0, arrays)
        publish_all(publisher, 9, arrays)
        assert anchors(board) == [0]
        go_on.set()
    # The one that was begun, of 2 or of what had come when the thread looked, and the newest.
    _, begun, newest = anchors(board)
    assert 2 <= begun < newest == 9
    check_anchor(board, begun)
    check_anchor(board, newest)


@pytest.mark.parametrize("by_error", [False, True])
def test_closing_cancels(
    board: dw.Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_error: bool
) -> None:
    begun = threading.Event()
    real = background.BackgroundAnchors._progress

    def slow(self: background.BackgroundAnchors, count: int) -> None:
        begun.set()
        self._cancelled.wait(30)
        real(self, count)

    monkeypatch.setattr(background.BackgroundAnchors, "_progress", slow)
    arrays = model()
    publisher = board.publisher(
        anchor_every=1, anchor_scratch=tmp_path, anchor_close="wait" if by_error else "cancel"
    )
    publisher.publish_anchor(0, arrays)
    publish_all(publisher, 1, arrays)
    assert begun.wait(20)
    started = time.monotonic()
    if by_error:
        with pytest.raises(RuntimeError, match="trainer"), publisher:
            raise RuntimeError("the trainer failed")
    else:
        publisher.close()
    assert time.monotonic() - started < 10
    assert anchors(board) == [0]
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(dw.StoreError, match="closed"):
        publish_all(publisher, 2, arrays)


def test_failures_are_told_once_and_harm_no_delta(
    board: dw.Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = worker.pull
    broken = True

    def sometimes(*arguments: Any, **options: Any) -> object:
        if broken:
            raise dw.StoreError("the disk is full", path="/scratch")
        return real(*arguments, **options)

    monkeypatch.setattr(worker, "pull", sometimes)
    arrays = model()
    publisher = board.publisher(anchor_every=2)
    publisher.publish_anchor(0, arrays)
    publish_all(publisher, 2, arrays)
    deadline = time.monotonic() + 20
    while publisher._workers[-1]._error is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    base, new = copied(arrays), copied(arrays)
    advance(new, 3)
    with pytest.raises(dw.StoreError, match=r"version 2.*disk is full.*publish again") as error:
        publisher.publish(3, base=base, new=new)
    assert (error.value.path, error.value.version) == ("/scratch", 2)
    assert board.head() == 2
    broken = False
    publish_all(publisher, 3, arrays)
    publisher.close()
    assert board.head() == 3
    assert anchors(board) == [0, 3]
    check_anchor(board, 3)


def test_a_failure_at_the_end_is_told_by_close(board: dw.Board, tmp_path: Path) -> None:
    arrays = model()
    publisher = board.publisher(anchor_every=1, anchor_scratch=tmp_path / "absent")
    publisher.publish_anchor(0, arrays)
    publish_all(publisher, 1, arrays)
    with pytest.raises(dw.StoreError, match="anchor_scratch"):
        publisher.close()
    publisher.close()
    assert board.head() == 1
    with pytest.raises(ValueError, match="anchor_every"):
        board.publisher(anchor_every=0)


def test_from_a_checkpoint_that_stays(board: dw.Board, tmp_path: Path) -> None:
    def source(version: int) -> Path:
        path = tmp_path / f"step-{version}"
        dw.checkpoint.write_checkpoint(path, model(version if version < 4 else 0))
        return path

    arrays = model()
    publisher = board.publisher(anchor_every=2, anchor_source=source)
    publisher.publish_anchor(0, arrays)
    publish_all(publisher, 3, arrays, lambda v: v == 2 and wait_for(board, v))
    publish_all(publisher, 4, arrays)
    # The path of version 4 holds other bits, which is noticed.
    with pytest.raises(dw.WrongBase, match="version 4"):
        publisher.close()
    assert anchors(board) == [0, 2]
    check_anchor(board, 2)


def test_a_version_that_is_collected_before_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = dw.Board(tmp_path / "board", create=True)
    real = worker.pull
    turns = []

    def late(*arguments: Any, **options: Any) -> object:
        if not turns:
            turns.append(1)
            other.publish_anchor(3, model(3))
            board.collect(keep=1)
        return real(*arguments, **options)

    monkeypatch.setattr(worker, "pull", late)
    arrays = model()
    with board.publisher() as first:
        first.publish_anchor(0, arrays)
        publish_all(first, 3, arrays)
    publisher = board.publisher(anchor_every=4)
    other = publisher
    publish_all(publisher, 4, arrays)
    publisher.close()
    assert board.boundary() == 3
    assert anchors(board) == [3, 4]
    assert "deltawire.json" not in "".join(contents(tmp_path / "board"))
