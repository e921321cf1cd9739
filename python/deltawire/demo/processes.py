"""The demo's child processes: started in their own groups, watched, and always ended."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from .errors import DemoError

GRACE_SECONDS = 3.0
LOG_LINES = 8


@dataclass(frozen=True)
class Child:
    """One process, its log, and where it leaves the reason of a failure."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    reason: Path


class Family:
    """All children. Leaving the context ends those that still run, whatever happened.

    A child also ends by itself when this process is gone (``child._end_with``).
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.children: list[Child] = []

    def __enter__(self) -> Self:
        atexit.register(self.end)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()
        atexit.unregister(self.end)

    def start(self, name: str, command: Sequence[str]) -> Child:
        """Run ``command`` in a directory of its own, logging to ``NAME.log``."""
        place = self.directory / name
        place.mkdir(parents=True, exist_ok=True)
        log = self.directory / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=place,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # The processes take turns on the same cores: a thread that waits must not spin.
                env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
            )
        child = Child(name, process, log, self.directory / f"{name}.failed.json")
        self.children.append(child)
        return child

    def running(self) -> list[Child]:
        """Children that have not ended. Raises DemoError as soon as one has failed."""
        alive = []
        for child in self.children:
            status = child.process.poll()
            if status is None:
                alive.append(child)
            elif status != 0:
                raise self._failure(child, status)
        return alive

    def end(self) -> None:
        """Ask the running children to end, then make them."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            alive = [c for c in self.children if c.process.poll() is None]
            for child in alive:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.process.pid, number)
            deadline = time.monotonic() + GRACE_SECONDS
            for child in alive:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.process.wait(max(0.0, deadline - time.monotonic()))

    def _failure(self, child: Child, status: int) -> DemoError:
        """What to tell about a child that ended with ``status``, negative for a signal."""
        try:
            reason = json.loads(child.reason.read_text(encoding="utf-8"))
            how, code = reason["message"], int(reason["status"])
            tail = ""
        except (OSError, ValueError, KeyError):
            how, code = _describe(status), 1
            lines = child.log.read_text(encoding="utf-8", errors="replace").splitlines()
            tail = "".join(f"\n    | {text}" for text in lines[-LOG_LINES:])
        error = DemoError(f"{child.name} failed: {how}; its log is {child.log}{tail}")
        return error.with_status(code)


def _describe(status: int) -> str:
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = ", perhaps for lack of memory" if -status == signal.SIGKILL else ""
    return f"killed by {name}{hint}"
