"""A publisher that is killed at any moment: what is committed is whole, the rest is not there.

And what publishing and following hold in memory does not follow the model's size.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import deltawire as dw
from board_runs import model, publish, same, stored, zeros
from kept import reopened
from store_servers import S3

TESTS = str(Path(__file__).parent)

PUBLISH = """
import sys
sys.path.insert(0, sys.argv[1])
import deltawire as dw
from board_runs import model
from store_servers import quick_options

endpoint = sys.argv[3] if len(sys.argv) > 3 else None
board = dw.Board(sys.argv[2], options=quick_options(endpoint=endpoint))
publisher = board.publisher()
print("ready", flush=True)
while True:
    head = board.head()
    publisher.publish(head + 1, base=model(head), new=model(head + 1))
    if head % 4 == 3:
        publisher.publish_anchor(head + 1, model(head + 1), max_shard_bytes=9000)
"""


@pytest.mark.parametrize("kind", ["path", "s3"])
def test_a_publisher_killed_at_random_moments(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    if kind == "path":
        board, kills = dw.Board(tmp_path / "board", create=True), 20
        words = [TESTS, board.url]
    else:
        s3: S3 = request.getfixturevalue("s3")
        board, kills = s3.board(), 10
        words = [TESTS, board.url, s3.endpoint]
    publish(board, 0)
    moments = random.Random(7)
    served = zeros(model())
    follower = reopened(board).follower(served)
    for _ in range(kills):
        child = subprocess.Popen([sys.executable, "-c", PUBLISH, *words], stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        time.sleep(moments.uniform(0, 0.2))
        child.kill()
        child.wait()
        child.stdout.close()
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
    assert head > 5
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
