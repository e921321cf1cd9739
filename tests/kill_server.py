"""Processes to be killed: a server that has imported everything forks one for each kill.

A fork costs some milliseconds where a start of Python costs half a second. The server itself runs
nothing of the library, so that its children have no thread to miss.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SERVER = """
import contextlib, json, os, sys
sys.path.insert(0, sys.argv[1])
import deltawire as dw
import part_runs
from board_runs import model
from store_servers import quick_options

work = {}
exec(sys.argv[2], globals())
for line in sys.stdin:
    name, url, endpoint, rest = (line.rstrip("\\n") + "||||").split("|")[:4]
    pid = os.fork()
    if pid == 0:
        try:
            board = dw.Board(url, options=quick_options(endpoint=endpoint or None))
            work[name](board, rest)
        except BaseException as error:
            os.write(2, f"{name}: {error!r}\\n".encode())
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    os.write(1, f"ended {status}\\n".encode())
"""

WORK = """
def ready():
    os.write(1, f"ready {os.getpid()}\\n".encode())

def publish(board, rest):
    publisher = board.publisher()
    ready()
    while True:
        head = board.head()
        publisher.publish(head + 1, base=model(head), new=model(head + 1), threads=1)
        if head % 4 == 3:
            publisher.publish_anchor(head + 1, model(head + 1), threads=1, max_shard_bytes=9000)

def pull(board, directory):
    head = board.head()
    ready()
    version = rounds = 0
    while True:
        # Forward step by step, then from the start again.
        try:
            board.pull(directory, version=version, threads=1)
            version += 1
        except dw.WrongVersion:
            version = head
            if os.path.exists(directory) and board.pull(directory, threads=1).versions == 0:
                # At once, as a half removed one is no pull's fault.
                gone = f"{os.path.dirname(directory)}-gone-{os.getpid()}-{rounds}"
                os.rename(directory, gone)
                version, rounds = 0, rounds + 1

def collect(board, rest):
    publisher = board.publisher()
    ready()
    while True:
        head = board.head()
        publisher.publish(head + 1, base=model(head), new=model(head + 1), threads=1)
        publisher.publish_anchor(head + 1, model(head + 1), threads=1)
        board.collect(keep=2, sweep=True)

def skip(board, rest):
    head = board.head()
    ready()
    while True:
        for base in range(head - 1):
            for version in range(base + 2, head + 1):
                with contextlib.suppress(dw.VersionConflict):
                    board.add_skip(base, version, weights=model(base), threads=1)

def together(board, rest):
    publisher = board.publisher()
    ready()
    while True:
        part_runs.publish_together(board, publisher, "tp2pp2")

def rank(board, ticket):
    ticket = dw.PublishTicket.from_dict(json.loads(ticket))
    ready()
    while True:
        for number in range(ticket.parts):
            part_runs.upload(board, ticket, "tp4", number)

work.update(publish=publish, pull=pull, collect=collect, skip=skip, together=together, rank=rank)
"""


class KillServer:
    """Starts children and kills them."""

    def __init__(self, process: subprocess.Popen[str], seed: int) -> None:
        self._process = process
        self._moments = random.Random(seed)
        #: Children killed while they were at work.
        self.kills = 0

    def kill_one(
        self, work: str, url: str, endpoint: str = "", rest: str = "", most: float = 0.1
    ) -> None:
        """Let a child work for up to ``most`` seconds, then kill it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(f"{work}|{url}|{endpoint}|{rest}", file=self._process.stdin, flush=True)
        word, pid = self._process.stdout.readline().split()
        assert word == "ready", "the child failed before it began; see its error"
        time.sleep(self._moments.uniform(0, most))
        os.kill(int(pid), signal.SIGKILL)
        word, status = self._process.stdout.readline().split()
        assert (word, int(status)) == ("ended", int(signal.SIGKILL)), "it ended by itself"
        self.kills += 1


@contextmanager
def kill_server(seed: int) -> Iterator[KillServer]:
    """Run a server for one test."""
    command = [sys.executable, "-c", SERVER, str(Path(__file__).parent), WORK]
    # Threads of the linear algebra library would not survive a fork.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        yield KillServer(process, seed)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(30) == 0
