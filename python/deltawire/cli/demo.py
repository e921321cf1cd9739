"""``deltawire demo``."""

from __future__ import annotations

import argparse
from typing import Any

from .arguments import MissingPackage


def add_parsers(verbs: Any) -> None:
    """Add the verb. Its arguments belong to the demo, which may not be installable here."""
    from ..demo import add_arguments

    parser = verbs.add_parser(
        "demo",
        help="train a small model and follow it from other processes",
        description="Train a small language model by reinforcement while other processes follow "
        "its versions bit for bit from a board on disk.",
    )
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the demo, which needs torch and transformers."""
    from .. import demo

    try:
        return demo.run(arguments)
    except ModuleNotFoundError as error:
        raise MissingPackage(
            f"the demo needs the package {error.name}: pip install 'deltawire[demo]'"
        ) from error
