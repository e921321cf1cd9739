"""Timing that compares: every operation is measured in turn, in the same minutes.

A shared machine changes its speed from one second to the next, so what is reported is a ratio to
copying memory, both taken as medians over rounds in which each operation ran once.
"""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np


@dataclass
class Operation:
    """One thing to time.

    Attributes:
        name: what it is called in the results.
        run: timed.
        prepare: runs before it, not timed.
        check: runs after it in the warm-up round, not timed; raises where the result is wrong.
        every: takes part in every so many rounds; more than 1 for what is slow.
        seconds: one number for each time it took part.
    """

    name: str
    run: Callable[[], object]
    prepare: Callable[[], object] | None = None
    check: Callable[[], object] | None = None
    every: int = 1
    seconds: list[float] = field(default_factory=list)

    def once(self) -> None:
        """Prepare, run, and keep the time."""
        if self.prepare is not None:
            self.prepare()
        start = time.perf_counter()
        self.run()
        self.seconds.append(time.perf_counter() - start)

    @property
    def median(self) -> float:
        """Median of the rounds so far, in seconds."""
        return median(self.seconds)


def in_rounds(operations: list[Operation], rounds: int) -> None:
    """Run the operations in turn, round by round; times are kept in them.

    One more round before warms up and checks. An operation may stand in the list more than once.
    """
    for operation in operations:
        operation.once()
        if operation.check is not None:
            operation.check()
    for operation in operations:
        operation.seconds.clear()
    for number in range(rounds):
        for operation in operations:
            if number % operation.every == 0:
                operation.once()


class Memcpy:
    """Copying ``nbytes`` with one or more threads; numpy releases the interpreter lock."""

    def __init__(self, nbytes: int) -> None:
        self.source = np.ones(nbytes, np.uint8)
        self.target = np.zeros(nbytes, np.uint8)
        self.pool = ThreadPoolExecutor(max_workers=64)

    def __call__(self, threads: int) -> None:
        if threads == 1:
            np.copyto(self.target, self.source)
            return
        pieces = np.linspace(0, self.source.size, threads + 1).astype(np.int64).tolist()
        copies = [
            self.pool.submit(np.copyto, self.target[lo:hi], self.source[lo:hi])
            for lo, hi in pairwise(pieces)
        ]
        for copy in copies:
            copy.result()


class CountingSink:
    """A binary file object that keeps only the number of bytes."""

    def __init__(self) -> None:
        self.nbytes = 0

    def write(self, data: bytes) -> int:
        size = memoryview(data).nbytes
        self.nbytes += size
        return size


def anonymous_bytes() -> int:
    """Anonymous resident memory of this process, in bytes (Linux)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("the kernel does not report RssAnon")


class PeakAnonymous:
    """Samples anonymous memory each millisecond while the block runs.

    ``extra`` is the highest value above the one at entry, in bytes.
    """

    def __enter__(self) -> PeakAnonymous:
        self._start = self._peak = anonymous_bytes()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self._peak = max(self._peak, anonymous_bytes())

    def _sample(self) -> None:
        while not self._done.wait(0.001):
            self._peak = max(self._peak, anonymous_bytes())

    @property
    def extra(self) -> int:
        return self._peak - self._start


def machine() -> dict[str, object]:
    """What the numbers depend on: processor, cores, software versions."""
    model = platform.machine()
    flags: set[str] = set()
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                model = value.strip()
            elif key.strip() == "flags":
                flags = set(value.split())
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "simd": [name for name in ("avx2", "avx512f", "avx512vbmi2") if name in flags],
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
