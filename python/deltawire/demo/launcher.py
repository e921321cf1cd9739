"""Starts the demo's processes, watches them, checks the outcome and reports. No torch here."""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from ..board import Board
from ..checkpoint import Checkpoint
from . import report
from .child import peak_memory
from .errors import DemoError, DemoUsage
from .options import FOLLOWERS, DemoConfig, from_arguments
from .processes import Family
from .progress import Progress
from .spool import Spool

TICK_SECONDS = 0.1
DISK_BYTES = 3_000_000_000
NAMES = [f"follower-{number}" for number in range(1, FOLLOWERS + 1)]


def run(args: argparse.Namespace) -> int:
    """The whole demo. Returns 0, or raises a DeltawireError that says what failed."""
    _require_packages(args)
    _require_new(args.board)
    started = time.monotonic()
    work = Path(tempfile.mkdtemp(prefix="deltawire-demo-"))
    keep_logs = False
    try:
        config = from_arguments(args, work)
        _require_space(config, work)
        rows, peak = _live(config, work, started)
        _compare_with_board(config, work)
        board = config.board if args.board or args.keep else None
        model = "tiny" if config.tiny else "SmolLM2-135M"
        summary = report.Summary(model, rows, time.monotonic() - started, peak, board)
    except DemoUsage:
        raise
    except Exception:
        keep_logs = True
        raise
    finally:
        if not args.keep:
            _clear(work, logs=keep_logs)
    if args.json:
        print(json.dumps(summary.as_dict(), allow_nan=False))
    else:
        print(report.table(summary.rows))
        if args.keep:
            print(f"kept: {work}")
        print(summary.last_line(), flush=True)
    return 0


def _live(config: DemoConfig, work: Path, started: float) -> tuple[list[report.Row], int]:
    """Run trainer and followers to their end.

    Returns the rows, and the sum of all processes' peaks of memory in bytes: never less than
    what they held together.
    """
    spool = Spool(work / "spool", timeout=config.timeout)
    spool.create()
    rows: list[report.Row] = []
    seen: tuple[list[str], str] = ([], "")
    changed_at = time.monotonic()
    with Family(work) as family, Progress(sys.stderr) as progress:
        for name, command in _commands(config, work).items():
            family.start(name, command)
        who = ", ".join(f"{c.name} (process {c.process.pid})" for c in family.children)
        progress.line(f"started {who}; logs in {work}")
        progress.line(
            f"{'a tiny model' if config.tiny else 'SmolLM2-135M'}, {config.shape()} a version, "
            f"AdamW at {config.lr:g}, board {config.board}"
        )

        def take_rows() -> None:
            while (row := _row(spool, len(rows))) is not None:
                rows.append(row)
                elapsed = time.monotonic() - started
                progress.line(report.line(row, config.versions, elapsed))

        while family.running():
            now = time.monotonic()
            phase = _phase(config, spool, len(rows))
            version = min(len(rows), config.versions)
            progress.status(f"version {version}: {' and '.join(phase[0])}: {phase[1]}")
            if phase != seen:
                seen, changed_at = phase, now
            elif now - changed_at > config.timeout:
                raise _stall(config, family, version, phase)
            take_rows()
            time.sleep(TICK_SECONDS)
        take_rows()
    _require_all(config, rows)
    ends = [spool.get("done", name) for name in ("trainer", *NAMES)]
    return rows, peak_memory() + sum(int(end["peak_memory"]) for end in ends if end is not None)


def _commands(config: DemoConfig, work: Path) -> dict[str, list[str]]:
    """The processes' command lines, by name."""
    path = work / "config.json"
    config.save(path)
    # -P: what lies in the working directory is never imported.
    python = [sys.executable, "-P", "-m"]
    followers = {
        name: [*python, "deltawire.demo.follower", str(path), str(number)]
        for number, name in enumerate(NAMES, start=1)
    }
    return {"trainer": [*python, "deltawire.demo.trainer", str(path)], **followers}


def _row(spool: Spool, version: int) -> report.Row | None:
    """All that was recorded of a version, once its completions are scored."""
    scores = spool.get("scores", str(version))
    published = spool.get("published", str(version))
    followers = [spool.get("followers", f"{version}-{name}") for name in NAMES]
    arrived = [f for f in followers if f is not None]
    if scores is None or published is None or len(arrived) < FOLLOWERS:
        return None
    return report.Row.of(published, arrived, scores)


def _phase(config: DemoConfig, spool: Spool, version: int) -> tuple[list[str], str]:
    """The processes that everything waits for right now, and what they do."""
    if version > config.versions:
        late = [name for name in NAMES if spool.get("done", name) is None]
        return (late, "write the final weights") if late else (["trainer"], "compare all bytes")
    if spool.get("published", str(version)) is None:
        return ["trainer"], "step and publish" if version else "load the policy"
    for kind, what in (("followers", "pull, apply and prove"), ("completions", "sample")):
        late = [name for name in NAMES if spool.get(kind, f"{version}-{name}") is None]
        if late:
            return late, what
    return ["trainer"], "score the completions"


def _stall(
    config: DemoConfig, family: Family, version: int, phase: tuple[list[str], str]
) -> DemoError:
    """What to tell when nothing has happened for too long."""
    names, what = phase
    logs = " and ".join(str(c.log) for c in family.children if c.name in names)
    return DemoError(
        f"{' and '.join(names)} failed: nothing happened for {config.timeout:g} s (--timeout) "
        f"while the others waited for it to {what}; log {logs}",
        version=version,
    )


def _require_all(config: DemoConfig, rows: list[report.Row]) -> None:
    if [row.version for row in rows] != list(range(config.versions + 1)):
        raise DemoError(
            f"{len(rows)} of {config.versions + 1} versions were recorded; see {config.work}"
        )
    for row in rows:
        if set(row.followers) != {"ok"}:
            raise DemoError(
                f"follower states {' '.join(row.followers)}; the trainer's is {row.state}",
                version=row.version,
                path=config.work,
            )


def _compare_with_board(config: DemoConfig, work: Path) -> None:
    """Pull the newest version into a new directory and compare it with a follower's weights.

    The trainer has compared both followers with its own weights; this adds the way that a
    newcomer takes, anchor plus all deltas.
    """
    board = Board(config.board)
    pulled = board.pull(work / "pulled", threads=config.trainer_threads)
    if pulled.version != config.versions:
        raise DemoError(
            f"the board's newest version is {pulled.version}, not {config.versions}",
            path=config.board,
        )
    mine = work / NAMES[0] / "final"
    with Checkpoint.open(work / "pulled") as ours, Checkpoint.open(mine) as theirs:
        if set(ours) != set(theirs):
            raise DemoError("a pull has other tensor names", path=str(mine))
        for name, view in ours.items():
            if not np.array_equal(view.data, theirs[name].data):
                raise DemoError(
                    "a pull of the newest version has other bits",
                    tensor=name,
                    version=config.versions,
                    path=str(mine),
                )


def _require_packages(args: argparse.Namespace) -> None:
    """Fail before anything starts, as an import would."""
    for name in ["torch"] if args.tiny else ["torch", "transformers", "accelerate", "gguf"]:
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _require_new(board: str | None) -> None:
    if board is not None and Path(board).exists():
        if not Path(board).is_dir():
            raise DemoUsage("--board must be a directory, new or empty", path=board)
        if any(Path(board).iterdir()):
            raise DemoUsage("--board must be new or empty; name another directory", path=board)


def _require_space(config: DemoConfig, work: Path) -> None:
    free = shutil.disk_usage(work).free
    if not config.tiny and free < DISK_BYTES:
        raise DemoUsage(
            f"{report.size(free)} free, but the demo needs {report.size(DISK_BYTES)}; free some "
            "space, or try --tiny",
            path=str(work),
        )


def _clear(work: Path, *, logs: bool) -> None:
    """Remove the working directory; after a failure all of it but logs and records."""
    if not logs:
        shutil.rmtree(work, ignore_errors=True)
        return
    for entry in work.iterdir():
        if entry.is_dir() and entry.name != "spool":
            shutil.rmtree(entry, ignore_errors=True)
