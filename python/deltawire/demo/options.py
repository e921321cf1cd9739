"""The demo's settings: command line, dataclass, and the file that hands them to the children."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from .errors import DemoUsage

FOLLOWERS = 2


@dataclass(frozen=True)
class DemoConfig:
    """One run.

    ``work`` holds everything but the board; ``launcher`` is the parent of all processes, by
    its number; ``timeout`` is in seconds.
    """

    launcher: int
    work: str
    board: str
    versions: int
    lr: float
    group: int
    prompts: int
    max_new_tokens: int
    temperature: float
    seed: int
    tiny: bool
    timeout: float
    trainer_threads: int
    follower_threads: int

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> DemoConfig:
        return cls(**json.loads(path.read_text(encoding="utf-8")))

    def shape(self) -> str:
        """The sampling effort in words, for the first progress line."""
        return f"{self.prompts} prompts x {self.group} completions"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``deltawire demo``."""
    parser.add_argument(
        "--tiny",
        action="store_true",
        help="a small model made on the spot instead of SmolLM2-135M; done in seconds",
    )
    parser.add_argument(
        "--versions", type=int, default=8, metavar="N", help="optimizer steps (default 8)"
    )
    parser.add_argument("--lr", type=float, default=5e-6, help="AdamW learning rate (default 5e-6)")
    parser.add_argument(
        "--prompts", type=int, default=4, metavar="N", help="prompts per version (default 4)"
    )
    parser.add_argument(
        "--group", type=int, default=8, metavar="N", help="completions per prompt (default 8)"
    )
    parser.add_argument(
        "--max-new-tokens", type=int, default=24, metavar="N", help="per completion (default 24)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of prompts and sampling (default 0)")
    parser.add_argument(
        "--board",
        metavar="DIR",
        help="board directory, new or empty; it is kept (default: a temporary one)",
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep the temporary directory with logs and weights"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="give up when nothing happens for this long (default 300)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, no table")


def from_arguments(args: argparse.Namespace, work: Path) -> DemoConfig:
    """Check the options and complete them. Raises DemoUsage."""
    for name, least in (("versions", 1), ("prompts", FOLLOWERS), ("group", 2)):
        if getattr(args, name) < least:
            raise DemoUsage(f"--{name} must be at least {least}, not {getattr(args, name)}")
    if args.prompts > 24:
        raise DemoUsage(f"--prompts must be at most 24, not {args.prompts}")
    if args.max_new_tokens < 1:
        raise DemoUsage(f"--max-new-tokens must be at least 1, not {args.max_new_tokens}")
    if not 0 < args.lr < 1:
        raise DemoUsage(f"--lr must be between 0 and 1, not {args.lr}; 1e-6 to 5e-6 is usual")
    if not args.timeout > 0:
        raise DemoUsage(f"--timeout must be positive, not {args.timeout}")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cores = min(cores or 1, 16)
    return DemoConfig(
        launcher=os.getpid(),
        work=str(work),
        board=str(Path(args.board).absolute() if args.board else work / "board"),
        versions=args.versions,
        lr=args.lr,
        group=args.group,
        prompts=args.prompts,
        max_new_tokens=args.max_new_tokens,
        temperature=1.0 if args.tiny else 0.8,
        seed=args.seed,
        tiny=args.tiny,
        timeout=args.timeout,
        # The trainer and the followers take turns, so each side may use all cores.
        trainer_threads=1 if args.tiny else cores,
        follower_threads=1 if args.tiny else max(1, cores // FOLLOWERS),
    )
