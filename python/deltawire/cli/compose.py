"""``deltawire compose``: fold several versions of a board into one delta."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from . import text
from .arguments import BOARD, CHECKPOINT, PROFILES, UsageError, add_report, add_threads, count
from .keys import add_key, add_trust, trust_of
from .output import Output
from .store import add_store, store_options


def add_parsers(verbs: Any) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "compose",
        help="fold several versions of a board into one delta",
        description="Make the delta that leads from one version of BOARD straight to a later one, "
        "for readers that are far behind. It is smaller than the deltas that it folds, because "
        "elements change more than once.",
    )
    parser.add_argument("board", metavar="BOARD", help=BOARD)
    parser.add_argument(
        "--from", dest="base", type=count, metavar="A", required=True, help="version it starts from"
    )
    parser.add_argument(
        "--to", dest="version", type=count, metavar="B", required=True, help="version it leads to"
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the delta to FILE")
    where.add_argument(
        "--publish",
        action="store_true",
        help="add it to BOARD, where readers that hold A find it on their way to B",
    )
    parser.add_argument(
        "--base",
        dest="weights",
        type=Path,
        metavar="CHECKPOINT",
        help=f"the weights of version A: {CHECKPOINT} (default: pulled from the board if needed)",
    )
    parser.add_argument(
        "--scratch",
        type=Path,
        metavar="DIR",
        help="where deltas and weights are kept for a while (default: the system's)",
    )
    parser.add_argument(
        "--profile", choices=PROFILES, help="of the delta (default: the smallest possible)"
    )
    add_key(parser)
    add_trust(parser)
    add_store(parser)
    add_threads(parser)
    add_report(parser)
    parser.set_defaults(
        run=run_compose,
        hints={
            "wrong-base": "give the weights of version A with --base, or leave it out",
            "conflict": "readers use the one that is there",
            "broken-chain": "begin at a version after the one without a delta",
        },
    )


def run_compose(arguments: argparse.Namespace) -> int:
    """Fold; see the verb's description."""
    import deltawire as dw

    output = Output(arguments)
    if arguments.base >= arguments.version:
        raise UsageError("--from must be an earlier version than --to")
    if arguments.key is not None and not arguments.publish:
        raise UsageError("--key signs what is published; a file is not signed")
    key = None if arguments.key is None else dw.SigningKey.load(arguments.key)
    trust, options = trust_of(arguments), store_options(arguments)
    board = dw.Board(arguments.board, trust=trust, options=options)
    with output.progress("compose", None) as advance:
        ends = arguments.base, arguments.version
        how: dict[str, Any] = {
            "weights": arguments.weights,
            "profile": arguments.profile,
            "threads": arguments.threads,
            "scratch": arguments.scratch,
            "progress": advance,
        }
        if arguments.publish:
            stats: Any = board.add_skip(*ends, key=key, **how)
        else:
            stats = board.compose(*ends, arguments.output, **how)
    rows = [
        ("changed", text.changes(stats.changed, stats.elements)),
        ("size", text.cost(stats.bytes, stats.dense_bytes, stats.bits_per_change)),
    ]
    if arguments.publish:
        share = stats.bytes / stats.chain_bytes
        rows.append(("instead of", f"{text.size(stats.chain_bytes)} ({share:.0%} of it)"))
    rows.append(("time", text.duration(stats.seconds)))
    place = arguments.board if arguments.publish else str(arguments.output)
    first, last = ends
    output.result(
        {"board": arguments.board, "from": first, "to": last, "path": arguments.output}
        | stats.as_dict(),
        [f"{place}: a delta from version {first} to {last}", *text.fields(rows)],
    )
    return 0
