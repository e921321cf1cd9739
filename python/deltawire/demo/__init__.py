"""A live demonstration: one trainer, two followers, and a board between them.

``launcher`` starts the processes, watches them and reports; it needs no torch. ``trainer``
and ``follower`` are the two programs. They share ``policy`` (the model), ``task`` (prompts
and rewards), ``sampling`` and ``grpo`` (reinforcement learning), and talk through ``spool``
(text) and a ``deltawire.Board`` (weights).
"""

from __future__ import annotations

import argparse

from .options import add_arguments

__all__ = ["add_arguments", "run"]


def run(args: argparse.Namespace) -> int:
    """Run the demo with parsed arguments; returns 0 or raises a ``DeltawireError``."""
    from .launcher import run as launch

    return launch(args)
