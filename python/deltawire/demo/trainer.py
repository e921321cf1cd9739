"""The trainer: FP32 masters, GRPO with AdamW, one published version per optimizer step.

Started by the launcher as ``python -m deltawire.demo.trainer CONFIG``.

Strictly on-policy: step N + 1 begins when both followers have proven version N and handed
back completions that they sampled with it.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..board import Board, Publisher
from ..checkpoint import Checkpoint
from ..detect import AdamWBoundaryDetector, Detector
from ..tensors import as_view
from . import child, grpo, policy
from .errors import DemoError
from .follower import name_of, share
from .options import FOLLOWERS, DemoConfig
from .spool import Spool

NAMES = [name_of(number) for number in range(1, FOLLOWERS + 1)]


def train(config: DemoConfig, spool: Spool) -> None:
    """Publish version 0, then ``config.versions`` optimizer steps, then compare bit for bit."""
    torch.set_num_threads(config.trainer_threads)
    extra = Path(config.work) / "trainer" / "policy"
    started = time.perf_counter()
    mine = policy.create(config, extra)
    child.log(f"policy ready in {time.perf_counter() - started:.1f} s")
    optimizer = torch.optim.AdamW(
        mine.model.parameters(), lr=config.lr, betas=(0.9, 0.999), weight_decay=0.01
    )
    board = Board(config.board, create=True)
    with (
        # Keeps no copy of what receivers hold: the optimizer's state tells what changed.
        AdamWBoundaryDetector(
            dict(mine.model.named_parameters()), optimizer, threads=config.trainer_threads
        ) as detector,
        board.publisher(run="demo") as publisher,
    ):
        anchor = publisher.publish_anchor(
            0, policy.served(mine), extra_files=extra, threads=config.trainer_threads
        )
        state = anchor.result_state
        spool.put("published", "0", anchor.as_dict())
        for version in range(1, config.versions + 1):
            groups = _collect(config, spool, mine, version - 1, state)
            started = time.perf_counter()
            step = grpo.step(mine.model, optimizer, groups, config.temperature)
            seconds = time.perf_counter() - started
            child.log(f"step to version {version} in {seconds:.2f} s: {step}")
            state = _publish(config, spool, publisher, detector, version)
    _collect(config, spool, mine, config.versions, state)
    _compare(config, spool, policy.served(mine))


def _publish(
    config: DemoConfig, spool: Spool, publisher: Publisher, detector: Detector, version: int
) -> bytes:
    """Publish what the step changed. Returns the version's state."""
    stats = publisher.publish(version, detector=detector, threads=config.trainer_threads)
    spool.put("published", str(version), stats.as_dict())
    child.log(f"version {version}: {stats.changed} elements, {stats.bytes} bytes")
    return stats.result_state


def _collect(
    config: DemoConfig, spool: Spool, mine: policy.Policy, version: int, state: bytes
) -> list[grpo.Group]:
    """Both followers' completions of ``version``, with rewards, as one group per prompt.

    Raises DemoError when a follower sampled with another version or other bits.
    """
    problems = mine.task.problems(version, config.prompts)
    groups = [grpo.Group(mine.codec.encode(problem), [], [], []) for problem in problems]
    for number, name in enumerate(NAMES, start=1):
        answers = spool.wait(
            "completions",
            f"{version}-{name}",
            what=f"completions of version {version} from {name}",
        )
        path = str(spool.path("completions", f"{version}-{name}"))
        if answers["version"] != version or answers["state"] != state.hex():
            raise DemoError(
                f"{name} sampled with version {answers['version']} in state {answers['state']}, "
                f"the trainer is at version {version} in state {state.hex()}",
                path=path,
            )
        for answer in answers["completions"]:
            index = answer["problem"]
            if index not in share(config.prompts, number):
                raise DemoError(f"{name} answered problem {index}, not its own", path=path)
            # The token ids count; the text is derived again, so that neither can be made up.
            text = mine.codec.decode(answer["tokens"])
            group = groups[index]
            group.completions.append(answer["tokens"])
            group.logprobs.append(answer["logprobs"])
            group.rewards.append(mine.task.reward(problems[index], text, bool(answer["finished"])))
    for index, group in enumerate(groups):
        if len(group.completions) != config.group:
            raise DemoError(
                f"{len(group.completions)} completions of problem {index}, not {config.group}",
                version=version,
                path=str(spool.root / "completions"),
            )
    spool.put("scores", str(version), _scores(version, groups))
    return groups


def _scores(version: int, groups: list[grpo.Group]) -> dict[str, Any]:
    rewards = [reward for group in groups for reward in group.rewards]
    return {
        "version": version,
        "reward": float(np.mean(rewards)),
        "reward_std": float(np.std(rewards)),
        "completions": len(rewards),
        "tokens": sum(len(c) for group in groups for c in group.completions),
    }


def _compare(config: DemoConfig, spool: Spool, held: dict[str, Tensor]) -> None:
    """Compare the followers' written weights with the trainer's, byte by byte."""
    for name in NAMES:
        spool.wait("done", name, what=f"final weights of {name}")
        directory = Path(config.work) / name / "final"
        with Checkpoint.open(directory) as final:
            if set(final) != set(held):
                raise DemoError("other tensor names than the trainer's", path=str(directory))
            for tensor, mine in held.items():
                if not np.array_equal(final[tensor].data, as_view(mine).data):
                    raise DemoError(
                        f"{name}'s final weights differ from the trainer's",
                        tensor=tensor,
                        version=config.versions,
                        path=str(directory),
                    )
        child.log(f"{name}: every byte of {len(held)} tensors equals the trainer's")


if __name__ == "__main__":
    sys.exit(child.main("trainer", sys.argv[1], train))
