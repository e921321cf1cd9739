"""A follower: holds a BF16 model, follows the board in place, and samples with it.

Started by the launcher as ``python -m deltawire.demo.follower CONFIG NUMBER``.
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ..board import Board, Follower
from ..checkpoint import write_checkpoint
from . import child, policy
from .errors import DemoError
from .options import FOLLOWERS, DemoConfig
from .sampling import sample
from .spool import POLL_SECONDS, Spool


def name_of(number: int) -> str:
    return f"follower-{number}"


def share(count: int, number: int) -> range:
    """Which of ``count`` problems follower ``number`` (from 1) answers."""
    return range(number - 1, count, FOLLOWERS)


def follow(config: DemoConfig, spool: Spool, number: int) -> None:
    """Be follower ``number``, from the anchor to the last version."""
    torch.set_num_threads(config.follower_threads)
    name = name_of(number)
    directory = Path(config.work) / name / "checkpoint"
    directory.parent.mkdir(exist_ok=True)
    board = _open_board(config, spool)

    started = time.perf_counter()
    pulled = board.pull(directory, version=0, threads=config.follower_threads)
    pull_seconds = time.perf_counter() - started
    mine = policy.load(config, directory)
    child.log(f"version 0 pulled in {pull_seconds:.2f} s and loaded")

    # From here on the board writes into the live model's own parameters.
    follower = board.follower(mine.tensors(), version=0, threads=config.follower_threads)
    arrival = {"bytes": pulled.bytes, "pull_seconds": pull_seconds}
    for version in range(config.versions + 1):
        if version > 0:
            arrival = _advance(board, follower, version, spool.timeout)
        started = time.perf_counter()
        state = follower.prove()
        proven = {"state": state.hex(), "prove_seconds": time.perf_counter() - started}
        spool.put("followers", f"{version}-{name}", {"version": version, **arrival, **proven})
        child.log(f"version {version} proven: {state.hex()}")
        spool.put(
            "completions", f"{version}-{name}", _answers(config, mine, version, number, state)
        )

    final = Path(config.work) / name / "final"
    write_checkpoint(final, mine.tensors(), extra_files=directory)


def _open_board(config: DemoConfig, spool: Spool) -> Board:
    """The board, once the trainer has created it and committed version 0."""
    spool.wait("published", "0", what="version 0 from the trainer")
    return Board(config.board)


def _advance(board: Board, follower: Follower, version: int, timeout: float) -> dict[str, Any]:
    """Wait for ``version`` and apply it in place. Returns the times that it took."""
    if not board.wait(version, timeout=timeout, poll=POLL_SECONDS):
        raise DemoError(f"not on the board within {timeout:g} s", version=version, path=board.url)
    (stats,) = follower.advance(to=version)
    return {
        "bytes": stats.bytes,
        "changed": stats.changed,
        "pull_seconds": stats.pull_seconds,
        "stage_seconds": stats.stage_seconds,
        "commit_seconds": stats.commit_seconds,
    }


def _answers(
    config: DemoConfig, mine: policy.Policy, version: int, number: int, state: bytes
) -> dict[str, Any]:
    """Sample this follower's share of the version's problems."""
    problems = mine.task.problems(version, config.prompts)
    chosen = share(config.prompts, number)
    started = time.perf_counter()
    completions = sample(
        mine.model,
        [mine.codec.encode(problems[index]) for index in chosen],
        group=config.group,
        max_new_tokens=config.max_new_tokens,
        temperature=config.temperature,
        end_token=mine.codec.end_token,
        generator=torch.Generator().manual_seed(
            (config.seed * 1_000_003 + version) * FOLLOWERS + number
        ),
    )
    seconds = time.perf_counter() - started
    child.log(f"version {version}: {len(completions)} completions in {seconds:.2f} s")
    return {
        "version": version,
        "state": state.hex(),
        "sample_seconds": seconds,
        "completions": [
            {**asdict(c), "problem": chosen[c.prompt], "text": mine.codec.decode(c.tokens)}
            for c in completions
        ],
    }


if __name__ == "__main__":
    NUMBER = int(sys.argv[2])
    sys.exit(
        child.main(
            name_of(NUMBER), sys.argv[1], lambda config, spool: follow(config, spool, NUMBER)
        )
    )
