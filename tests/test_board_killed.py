"""Publishers and pulls that are killed at any moment, hundreds of times.

What is committed is whole, the rest is not there, and a directory knows what it holds.

And what publishing and following hold in memory does not follow the model's size.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import deltawire as dw
from board_runs import holds, model, publish, same, stored, zeros
from kept import reopened
from kill_server import kill_server


def test_a_publisher_killed_at_random_moments(shared: tuple[dw.Board, str]) -> None:
    board, endpoint = shared
    kills = 50 if endpoint else 150
    publish(board, 0)
    served = zeros(model())
    follower = reopened(board).follower(served)
    head: int | None = 0
    with kill_server(seed=7) as server:
        # On until enough was published, however slow the machine.
        while server.kills < kills or (head <= kills // 10 and server.kills < 10 * kills):
            server.kill_one("publish", board.url, endpoint, most=0.2 if endpoint else 0.1)
            # A reader of before and a new one see the same versions, with the right bits.
            board = reopened(board)
            head = board.head()
            assert head is not None
            follower.advance()
            assert follower.version == head
            assert same(served, model(head))
            late = zeros(model())
            board.follower(late).advance()
            assert same(late, served)
    assert server.kills >= kills
    assert head > kills // 10
    log = board.log()
    assert [manifest.version for manifest in log] == list(range(head, -1, -1))
    # Every anchor that a record lists is whole, whatever became of the attempts before it.
    for manifest in log:
        start = zeros(model())
        first, *_ = board.follower(start).advance(manifest.version)
        assert first.anchor
        assert same(start, model(manifest.version))
    listed = {item.path for manifest in log for item in manifest.objects}
    assert listed <= set(stored(board))


def test_a_pull_killed_at_random_moments(tmp_path: Path, shared: tuple[dw.Board, str]) -> None:
    """A directory of one version, or one that says that it is torn, or none; and it is repaired."""
    board, endpoint = shared
    kills = 50 if endpoint else 150
    publish(board, 5)
    with board.publisher() as publisher:
        publisher.publish_anchor(3, model(3))
    (tmp_path / "out").mkdir()
    directory = tmp_path / "out" / "pulled"
    found: Counter[str] = Counter()
    with kill_server(seed=8) as server:
        # On until one was hit in the middle, which a fast machine seldom shows.
        while server.kills < kills or (
            not found["torn"] + found["none"] and server.kills < 10 * kills
        ):
            server.kill_one("pull", board.url, endpoint, str(directory))
            if not directory.exists():
                found["none"] += 1
                continue
            state = json.loads((directory / "deltawire.json").read_text())
            if state["pending"] is None:
                found["whole"] += 1
                assert holds(directory, state["version"])
            else:
                found["torn"] += 1
            if server.kills % 10 == 0:
                board.pull(directory, threads=1)
                assert holds(directory, 5)
                shutil.rmtree(directory)
    assert server.kills >= kills
    assert found["whole"] > kills // 10
    assert found["torn"] + found["none"] > 0
    # A pull into the same name removes what those before have left and is known to be theirs.
    shutil.rmtree(directory, ignore_errors=True)
    board.pull(directory, threads=1)
    assert holds(directory, 5)
    left = [path for path in directory.parent.iterdir() if path != directory]
    assert not [path for path in left if (path / "deltawire.json").exists()]


def test_collections_killed_at_random_moments(tmp_path: Path) -> None:
    """From the boundary to the head every version can be read, and readers find a way."""
    board, kills, boundary = dw.Board(tmp_path / "board", create=True), 100, 0
    publish(board, 3)
    served = zeros(model())
    follower = reopened(board).follower(served)
    left = 0
    with kill_server(seed=9) as server:
        # On until one was hit between its boundary and its end, which a fast machine seldom shows.
        while server.kills < kills or (not left and server.kills < 10 * kills):
            server.kill_one("collect", board.url)
            board = reopened(board)
            # No marker before the first collection.
            head, now = board.head(), board.boundary() or 0
            assert head is not None
            assert boundary <= now <= head
            boundary = now
            follower.advance()
            assert follower.version == head
            assert same(served, model(head))
            for version in range(boundary, head + 1):
                late = zeros(model())
                board.follower(late).advance(version)
                assert same(late, model(version))
            # Killed between the boundary and the end.
            left += len(board.log()) > head - boundary + 1
    assert server.kills >= kills
    assert left > 0
    assert boundary > kills // 10
    with board.publisher() as publisher:
        publisher.publish_anchor(head + 1, model(head + 1))
    board.collect(keep=1)
    assert [manifest.version for manifest in board.log()] == [head + 1]


def test_skip_records_killed_at_random_moments(tmp_path: Path) -> None:
    """A skip record is there with its delta or not at all; a sweep removes what was left."""
    board, kills = dw.Board(tmp_path / "board", create=True), 60
    publish(board, 12)
    added: list[tuple[int, int]] = []
    with kill_server(seed=10) as server:
        # On until some were done, however slow the machine.
        while server.kills < kills or (len(added) <= 5 and server.kills < 10 * kills):
            server.kill_one("skip", board.url)
            added = [
                (base, version)
                for base in range(11)
                for version in range(base + 2, 13)
                if board.records.has_skip(base, version)
            ]
    assert len(added) > 5
    before = len(stored(board))
    board.collect(keep=100, sweep=True, safety_age=0)
    assert len(stored(board)) == 12 + 1 + 2 * len(added)
    assert before >= len(stored(board))
    for base, version in added:
        target = model(base)
        (step,) = board.follower(target, version=base).advance(version)
        assert step.version == version
        assert same(target, model(version))


MEASURE = """
import json, sys, threading, time
import numpy as np
import deltawire as dw

def anonymous():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon"))

peak, stop = 0, threading.Event()
def sample():
    global peak
    while not stop.is_set():
        peak = max(peak, anonymous())
        time.sleep(0.002)

board = dw.Board(sys.argv[1], create=True)
path, out = sys.argv[2:4]
with dw.Checkpoint.open(path) as checkpoint:
    views = dict(checkpoint)
    before = anonymous()
    thread = threading.Thread(target=sample)
    thread.start()
    with board.publisher() as publisher:
        publisher.publish_anchor(0, path)
        publisher.publish_anchor(1, views, max_shard_bytes=100 << 20)
    board.pull(out, version=1)
    with dw.Checkpoint.open(out, writable=True) as target:
        board.follower(target).advance(1)
stop.set()
thread.join()
print(peak - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="RssAnon is a Linux field")
def test_anchors_take_bounded_memory(tmp_path: Path) -> None:
    """384 MiB in two tensors, uploaded from files and from tensors, pulled, and loaded in place."""
    rows = np.tile(np.random.default_rng(0).standard_normal((64, 1024), np.float32), (768, 1))
    dw.checkpoint.write_checkpoint(tmp_path / "model", {"a": rows, "b": rows})
    command = [sys.executable, "-c", MEASURE, tmp_path / "board", tmp_path / "model"]
    done = subprocess.run([*command, tmp_path / "out"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 0 < int(done.stdout) < 128 << 20
