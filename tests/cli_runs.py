"""Running the command line in tests."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoint_files import Spec, random_tensors, write_sharded
from deltawire.checkpoint import Checkpoint
from deltawire.cli import main

PROGRAM = [sys.executable, "-m", "deltawire"]
PROFILES = ["compact", "fast", "overwrite"]


@dataclass(frozen=True)
class Done:
    """What a run ended with."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON object on stdout."""
        assert self.out.endswith("\n")
        assert self.out.count("\n") == 1, self.out
        value = json.loads(self.out)
        assert isinstance(value, dict)
        return value


class Cli:
    """Calls the command line in this process and keeps what it printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        #: Added to the verbs that work on a board.
        self.board_options: list[str] = []

    def __call__(self, *words: object, status: int = 0) -> Done:
        """Run with these words; the exit status must be ``status``."""
        self._capsys.readouterr()
        on_board = bool(words) and words[0] in ("publish", "pull", "log", "compose", "gc")
        options = self.board_options if on_board else []
        ended = main([*map(str, words), *options])
        captured = self._capsys.readouterr()
        assert ended == status, f"status {ended}\n{captured.out}{captured.err}"
        return Done(ended, captured.out, captured.err)


def spawn(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    return subprocess.run(
        [*PROGRAM, *map(str, words)], capture_output=True, text=True, check=False, **options
    )


def open_terminal(rows: int, width: int) -> tuple[int, int]:
    """The two ends of a terminal: what is read, and what a program gets."""
    control, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, width, 0, 0))
    return control, terminal


def received(control: int) -> bytes:
    """All that a terminal received until the other end was closed; closes this one."""
    shown = b""
    while True:
        try:
            piece = os.read(control, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        shown += piece
    os.close(control)
    return shown


def next_step(tensors: dict[str, Spec], seed: int = 1) -> dict[str, Spec]:
    """The same tensors with a few elements changed by one bit."""
    rng = np.random.default_rng(seed)
    result = {}
    for name, (dtype, shape, data) in tensors.items():
        values = np.frombuffer(data, np.uint8).copy()
        if values.size:
            # The lowest bit, so that booleans stay booleans.
            values[rng.choice(values.size, max(1, values.size // 50), replace=False)] ^= 1
        result[name] = (dtype, shape, values.tobytes())
    return result


@dataclass(frozen=True)
class Steps:
    """Two sharded checkpoints of one model in a directory."""

    directory: Path
    base: Path
    new: Path


def write_steps(directory: Path) -> Steps:
    """Two consecutive checkpoints with every dtype, in two shards each."""
    tensors = random_tensors()
    write_sharded(directory / "base", tensors)
    write_sharded(directory / "new", next_step(tensors))
    return Steps(directory, directory / "base", directory / "new")


def contents(path: Path) -> dict[str, bytes]:
    """The bytes of every tensor."""
    with Checkpoint.open(path) as checkpoint:
        return {name: view.data.tobytes() for name, view in checkpoint.items()}
