"""Progress bars: there on a terminal while work is done, gone afterwards, never in a pipe."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from pathlib import Path

import pytest

from cli_runs import PROGRAM, Steps, open_terminal, received, spawn, write_steps


@pytest.fixture
def steps(tmp_path: Path) -> Steps:
    return write_steps(tmp_path)


def on_terminal(*words: object) -> tuple[int, str, str]:
    """Status, stdout (a pipe), and all that stderr (a terminal) received."""
    control, terminal = open_terminal(24, 100)
    process = subprocess.Popen(
        [*PROGRAM, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=terminal,
        text=True,
    )
    os.close(terminal)
    shown = received(control)
    out, _ = process.communicate()
    return process.returncode, out, shown.decode()


def screen(shown: str) -> str:
    """What stands on a one-line terminal at the end."""
    line: list[str] = []
    column = 0
    for part in re.split(r"(\r|\x1b\[[0-9;]*[A-Za-z])", shown):
        if part == "\r":
            column = 0
        elif not part.startswith("\x1b"):
            line[column : column + len(part)] = part
            column += len(part)
    return "".join(line).strip()


@pytest.mark.parametrize("option", [[], ["--json"]])
def test_bars_appear_and_go(option: list[str], steps: Steps) -> None:
    delta = steps.directory / "step.dw"
    for words, labels in [
        (["diff", steps.base, steps.new, "-o", delta], ["diff"]),
        (["verify", delta, "--base", steps.base], ["verify"]),
        (["apply", delta, "--base", steps.base, "-o", steps.directory / "o"], ["copy", "stage"]),
    ]:
        status, out, shown = on_terminal(*words, *option)
        assert status == 0, shown
        for label in labels:
            assert re.search(rf"\r{label}: +\d+%", shown), shown
        assert screen(shown) == ""
        assert out.count("\n") == 1 if option else out
        assert "\r" not in out
    assert len(list(steps.directory.glob("*.dw"))) == 1


def test_no_bar_when_quiet(steps: Steps) -> None:
    words = ["diff", steps.base, steps.new, "-o", steps.directory / "step.dw", "--quiet"]
    assert on_terminal(*words) == (0, "", "")


def test_no_bar_in_a_pipe(steps: Steps) -> None:
    done = spawn("diff", steps.base, steps.new, "-o", steps.directory / "step.dw")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(str(steps.directory / "step.dw"))


def test_a_delta_is_not_printed_on_a_terminal(steps: Steps) -> None:
    control, terminal = pty.openpty()
    try:
        done = subprocess.run(
            [*PROGRAM, "diff", steps.base, steps.new, "-o", "-"],
            stdout=terminal,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(terminal)
        os.close(control)
    assert done.returncode == 2
    assert "stdout is a terminal" in done.stderr
