"""``deltawire gc``: remove old versions from a board."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from . import text
from .arguments import BOARD, add_report, count, seconds
from .keys import add_trust, trust_of
from .output import Output
from .store import add_store, store_options

if TYPE_CHECKING:
    from ..board.collect import CollectStats

_LIMITS = {
    "keep": "the newest versions are kept",
    "age": "the others are too young",
    "lease": "a reader's lease needs the others",
    "anchor": "no complete anchor is nearer; publish one to collect more",
}


def add_parsers(verbs: Any) -> None:
    """Add the verb."""
    from ..board.collect import GRACE, KEEP, SAFETY_AGE

    parser = verbs.add_parser(
        "gc",
        help="remove old versions from a board",
        description="Remove versions of BOARD that neither these settings nor a reader's lease "
        "keep, back to an anchor from which all that stay can be read. Safe while others "
        "publish and read. A DURATION is a number with s, m, h or d.",
    )
    parser.add_argument("board", metavar="BOARD", help=BOARD)
    parser.add_argument(
        "--keep",
        type=count,
        default=KEEP,
        metavar="N",
        help="newest versions to keep (default: %(default)s)",
    )
    parser.add_argument(
        "--older-than",
        type=seconds,
        default=0.0,
        metavar="DURATION",
        help="and those younger than this, by the store's dates",
    )
    parser.add_argument(
        "--sweep",
        action="store_true",
        help="also look for what failed attempts left at versions that stay; lists all of BOARD",
    )
    parser.add_argument(
        "--safety-age",
        type=seconds,
        default=SAFETY_AGE,
        metavar="DURATION",
        help="leave such leftovers alone if younger; longer than any upload (default: 1d)",
    )
    parser.add_argument(
        "--grace",
        type=seconds,
        default=GRACE,
        metavar="DURATION",
        help="respect leases for so long after their end (default: 5m)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="change nothing, only say what would be done"
    )
    add_trust(parser)
    add_store(parser)
    add_report(parser)
    parser.set_defaults(run=run_gc)


def run_gc(arguments: argparse.Namespace) -> int:
    """Collect; see the verb's description."""
    import deltawire as dw

    from .arguments import UsageError

    if arguments.keep < 1:
        raise UsageError("--keep is at least 1: the newest version always stays")
    trust, options = trust_of(arguments), store_options(arguments)
    stats = dw.Board(arguments.board, trust=trust, options=options).collect(
        keep=arguments.keep,
        older_than=arguments.older_than,
        safety_age=arguments.safety_age,
        grace=arguments.grace,
        sweep=arguments.sweep,
        dry_run=arguments.dry_run,
    )
    Output(arguments).result(
        {"board": arguments.board, **stats.as_dict()}, _lines(arguments.board, stats)
    )
    return 0


def _lines(board: str, stats: CollectStats) -> list[str]:
    if stats.head is None or stats.limit is None:
        return [f"{board}: no version yet, nothing to collect"]
    verb = "would be removed" if stats.dry_run else "removed"
    title = f"{board}: {text.number(stats.versions, 'version')} {verb}"
    if stats.versions:
        last = stats.until - 1
        title += f" ({stats.first})" if last == stats.first else f" ({stats.first} to {last})"
    rows = [
        ("freed", f"{text.size(stats.bytes)}, {text.number(stats.objects, 'object')}"),
        ("kept", f"{stats.until} to {stats.head}; {_LIMITS[stats.limit]}"),
    ]
    if stats.until < (stats.boundary or 0):
        rows.append(("promised", f"from {stats.boundary} on; a lease keeps what is before it"))
    if stats.leases:
        rows.append(("leases", f"{stats.leases:,} respected"))
    if stats.leftovers:
        leftovers = text.number(stats.leftovers, "object")
        rows.append(("leftovers", f"{leftovers}, {text.size(stats.leftover_bytes)}"))
    rows.append(("time", text.duration(stats.seconds)))
    return [title, *text.fields(rows)]
