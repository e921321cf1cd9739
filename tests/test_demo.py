"""``deltawire demo --tiny`` as a user runs it, and what happens when something goes wrong."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deltawire as dw
from deltawire.checkpoint import Checkpoint
from deltawire.demo import report

pytest.importorskip("torch")

PROGRAM = [sys.executable, "-m", "deltawire", "demo", "--tiny"]
# Of a loaded machine; nothing here depends on how fast it is.
PATIENCE = 300


def run_demo(*words: object, temporary: Path) -> subprocess.CompletedProcess[str]:
    """Run to the end. ``temporary``: where the demo makes its temporary directory."""
    return subprocess.run(
        [*PROGRAM, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
        env={**os.environ, "TMPDIR": str(temporary)},
    )


class Running:
    """A demo that trains far longer than the test."""

    def __init__(self, temporary: Path, *words: str) -> None:
        self.temporary = temporary
        self.process = subprocess.Popen(
            [*PROGRAM, "--versions", "100000", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(temporary)},
        )
        first = self.read_until("started ")
        self.pids = {
            name: int(pid) for name, pid in re.findall(r"([\w-]+) \(process (\d+)\)", first)
        }

    def read_until(self, start: str) -> str:
        """The next progress line that begins so."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if line.startswith(start):
                return line
        raise AssertionError(f"ended with {self.process.wait()} before a line {start!r}")

    def end(self) -> tuple[int, str]:
        """Wait for the launcher. Returns the exit status and the rest of stderr."""
        _, err = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, err

    def wait_for_no_children(self) -> None:
        """Wait until no child runs, with a deadline only against hanging."""
        deadline = time.monotonic() + PATIENCE
        while alive := [name for name, pid in self.pids.items() if is_running(pid)]:
            assert time.monotonic() < deadline, f"still running: {alive}"
            time.sleep(0.05)


def leftovers(temporary: Path) -> list[Path]:
    """The demo's temporary directories; torch may leave a cache of its own."""
    return list(temporary.glob("deltawire-*"))


def is_running(pid: int) -> bool:
    """Whether a process exists and is not a zombie that nobody has waited for yet."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    demo = Running(tmp_path, "--timeout", "120")
    demo.read_until("version      1/")
    yield demo
    if demo.process.poll() is None:
        demo.process.kill()
    demo.process.communicate()
    demo.wait_for_no_children()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str, Path]:
    """One whole run with ``--json``: its object, its progress lines, and its board."""
    board = tmp_path_factory.mktemp("demo") / "board"
    temporary = tmp_path_factory.mktemp("temporary")
    done = run_demo("--json", "--board", board, temporary=temporary)
    assert done.returncode == 0, done.stderr
    assert not leftovers(temporary), "the temporary directory was left behind"
    assert done.stdout.count("\n") == 1
    return json.loads(done.stdout), done.stderr, board


def test_every_version_reaches_both_followers(
    finished: tuple[dict[str, Any], str, Path],
) -> None:
    result, _, board = finished
    assert result["ok"] is True
    assert result["bit_identical"] is True
    assert [row["version"] for row in result["versions"]] == list(range(9))
    manifests = {m.version: m for m in dw.Board(board).log()}
    for row in result["versions"]:
        assert row["followers"] == ["ok", "ok"]
        assert row["state"] == manifests[row["version"]].result_state.hex()


def test_the_report_is_what_the_board_holds(finished: tuple[dict[str, Any], str, Path]) -> None:
    result, _, board = finished
    deltas = [row for row in result["versions"] if not row["anchor"]]
    manifests = {m.version: m for m in dw.Board(board).log()}
    for row in deltas:
        manifest = manifests[row["version"]]
        assert row["bytes"] == sum(item.bytes for item in manifest.objects)
        assert row["changed"] == manifest.changed
        assert row["bits_per_change"] == pytest.approx(8 * row["bytes"] / row["changed"])
        assert row["ratio"] == pytest.approx(row["dense_bytes"] / row["bytes"])
        assert 0 < row["changed"] < row["elements"]
    assert result["bytes"] == sum(row["bytes"] for row in deltas)
    assert result["bytes"] < result["dense_bytes"] / 5
    assert 0 < result["peak_memory_bytes"] < 8 << 30


def test_rewards_vary(finished: tuple[dict[str, Any], str, Path]) -> None:
    result, _, _ = finished
    for row in result["versions"]:
        assert 0 <= row["reward"] <= 1
        assert row["reward_std"] > 0
    assert len({row["reward"] for row in result["versions"]}) > 1


def test_the_board_gives_the_last_version_to_a_newcomer(
    finished: tuple[dict[str, Any], str, Path], tmp_path: Path
) -> None:
    result, _, board = finished
    pulled = dw.Board(board).pull(tmp_path / "checkpoint")
    assert pulled.version == 8
    with Checkpoint.open(tmp_path / "checkpoint") as checkpoint:
        assert dw.state_digest(checkpoint).hex() == result["versions"][-1]["state"]
        names = set(checkpoint)
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names, "a tied tensor has one name"


def test_the_pulled_checkpoint_opens_in_transformers(
    finished: tuple[dict[str, Any], str, Path], tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    import torch

    from deltawire.demo.tiny import TinyConfig, TinyLlama

    dw.Board(finished[2]).pull(tmp_path / "checkpoint")
    theirs = transformers.LlamaForCausalLM.from_pretrained(
        tmp_path / "checkpoint", dtype=torch.float32, local_files_only=True
    ).eval()
    ours = TinyLlama(TinyConfig())
    ours.load_state_dict(theirs.state_dict())
    ids = torch.tensor([[1, 5, 9, 30, 38, 2], [7, 7, 3, 2, 1, 4]])
    with torch.no_grad():
        assert torch.allclose(ours(ids).logits, theirs(ids).logits, atol=1e-4)


def test_progress_is_plain_lines_in_a_pipe(
    finished: tuple[dict[str, Any], str, Path],
) -> None:
    _, err, _ = finished
    assert "\r" not in err
    assert "\x1b" not in err
    lines = [text for text in err.splitlines() if text.startswith("version ")]
    assert [int(text.split()[1].split("/")[0]) for text in lines] == list(range(9))
    assert all("followers ok ok" in text for text in lines)


def test_table_and_last_line(tmp_path: Path) -> None:
    done = run_demo("--versions", 2, "--keep", "--seed", 3, temporary=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == list(report.HEADINGS)
    assert [text.split()[0] for text in lines[1:4]] == ["0", "1", "2"]
    assert all(text.endswith("ok ok") for text in lines[1:4])
    assert lines[-1].startswith("demo ok: 2 versions, ")
    assert "both followers bit-identical to the trainer" in lines[-1]

    (work,) = leftovers(tmp_path)
    assert f"kept: {work}" in lines
    weights = [Checkpoint.open(work / f"follower-{n}" / "final") for n in (1, 2)]
    for name, view in weights[0].items():
        assert np.array_equal(view.data, weights[1][name].data)
    for n in (1, 2):
        for version in range(3):
            path = work / "spool" / "completions" / f"{version}-follower-{n}.json"
            assert json.loads(path.read_text())["version"] == version


@pytest.mark.parametrize("name", ["trainer", "follower-2"])
def test_a_killed_process_is_named_and_nothing_is_left(running: Running, name: str) -> None:
    os.kill(running.pids[name], signal.SIGKILL)
    status, err = running.end()
    assert status == 1
    assert f"{name} failed: killed by SIGKILL" in err
    log = re.search(r"its log is (\S+)", err)
    assert log is not None
    assert f"{name} starts" in Path(log[1]).read_text()
    running.wait_for_no_children()
    (work,) = leftovers(running.temporary)
    left = {entry.name for entry in work.iterdir() if entry.is_dir()}
    assert left == {"spool"}, "weights are removed, logs and records stay"


def test_children_end_when_the_launcher_is_killed(running: Running) -> None:
    running.process.kill()
    running.end()
    running.wait_for_no_children()


def test_children_end_when_the_launcher_is_killed_at_once(tmp_path: Path) -> None:
    demo = Running(tmp_path)
    demo.process.kill()
    demo.end()
    demo.wait_for_no_children()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_interrupted(running: Running, number: signal.Signals) -> None:
    running.process.send_signal(number)
    status, err = running.end()
    assert status == 128 + number
    assert "interrupted" in err
    running.wait_for_no_children()
    assert not leftovers(running.temporary), "the temporary directory was left behind"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--versions", "0"], "--versions must be at least 1"),
        (["--group", "1"], "--group must be at least 2"),
        (["--prompts", "1"], "--prompts must be at least 2"),
        (["--prompts", "99"], "--prompts must be at most 24"),
        (["--max-new-tokens", "0"], "--max-new-tokens must be at least 1"),
        (["--lr", "0"], "--lr must be between 0 and 1"),
        (["--timeout", "0"], "--timeout must be positive"),
    ],
)
def test_options_that_make_no_sense(tmp_path: Path, words: list[str], message: str) -> None:
    done = run_demo(*words, temporary=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert not leftovers(tmp_path)


def test_a_board_that_is_in_use_is_refused(tmp_path: Path) -> None:
    board = tmp_path / "board"
    board.mkdir()
    (board / "something").write_text("else")
    done = run_demo("--board", board, temporary=tmp_path)
    assert done.returncode == 2
    assert "new or empty" in done.stderr
    assert [entry.name for entry in board.iterdir()] == ["something"]


def test_the_example_runs(tmp_path: Path) -> None:
    script = Path(__file__).parents[1] / "examples" / "train_and_follow.py"
    for words in ([], [str(tmp_path / "board")]):
        done = subprocess.run(
            [sys.executable, str(script), *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert [text.split()[1] for text in lines[:-1]] == ["1:", "2:", "3:", "4:", "5:"]
        assert lines[-1] == "the replica holds the trainer's bits"
    assert dw.Board(tmp_path / "board").head() == 5
