"""``deltawire log``: the versions and readers of a board."""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from . import text
from .arguments import BOARD, add_report, count
from .keys import add_trust, trust_of
from .output import Output
from .store import add_store, store_options

if TYPE_CHECKING:
    from ..board.history import Entry, History, Reader

#: Versions shown unless the user says otherwise.
_SHOWN = 50
#: Columns that go first where the terminal is narrow, after the text of meta was cut.
_NARROW = ["meta", "state", "signer", "bits", "changed", "chain", "of dense"]
_LEAST_META = 12
_HEAD = ["version", "time", "kind", "changed", "size", "of dense", "bits", "chain", "state"]
_HEAD += ["signer", "meta"]
_ALIGN = ">><>>>>><<<"


def add_parsers(verbs: Any) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "log",
        help="list the versions and readers of a board",
        description="List the versions of BOARD, newest first, and the readers that hold a lease. "
        "'chain' is the bytes of the deltas since the last anchor.",
    )
    parser.add_argument("board", metavar="BOARD", help=BOARD)
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "-n",
        type=count,
        metavar="COUNT",
        default=_SHOWN,
        help="at most so many versions (default: %(default)s)",
    )
    group.add_argument("--all", action="store_true", help="all versions")
    add_trust(parser)
    add_store(parser)
    add_report(parser)
    parser.set_defaults(run=run_log)


def run_log(arguments: argparse.Namespace) -> int:
    """List versions; see the verb's description."""
    import deltawire as dw

    from ..board.history import read_history

    trust, options = trust_of(arguments), store_options(arguments)
    board = dw.Board(arguments.board, trust=trust, options=options)
    history = read_history(board, None if arguments.all else arguments.n)
    now = time.time()
    lines = [f"{arguments.board}: no version yet"]
    if history.head is not None:
        lines = _lines(history, now, _width(), verified=trust is not None)
    Output(arguments).result(
        {
            "board": arguments.board,
            "head": history.head,
            "boundary": history.boundary,
            "more": history.more,
            "verified": trust is not None,
            "versions": [_entry(entry) for entry in history.entries],
            "readers": None
            if history.readers is None
            else [_reader(reader, now) for reader in history.readers],
        },
        lines,
    )
    return 0


def _width() -> int | None:
    """Columns of the terminal; None where stdout is none."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (OSError, ValueError):
        return None


def _entry(entry: Entry) -> dict[str, Any]:
    manifest = entry.manifest
    dense = manifest.dense_bytes
    ratio = manifest.bytes / dense if manifest.objects and dense else None
    changed = manifest.changed / manifest.elements if manifest.elements else None
    return {
        **manifest.as_dict(),
        "parent_version": manifest.parent_version,
        "anchor": None if entry.anchor is None else entry.anchor.as_dict(),
        "anchor_bytes": None if entry.anchor is None else entry.anchor.bytes,
        "chain_bytes": entry.chain_bytes,
        "ratio": ratio,
        "changed_share": changed if manifest.objects else None,
    }


def _reader(reader: Reader, now: float) -> dict[str, Any]:
    return {
        **reader.lease.as_dict(),
        "expired": reader.lease.expires <= now,
        "lag_versions": reader.lag_versions,
        "lag_seconds": reader.lag_seconds,
    }


def _lines(history: History, now: float, width: int | None, *, verified: bool) -> list[str]:
    lines = _fitting([_row(entry, verified) for entry in history.entries], width)
    notes = []
    if history.more:
        notes.append("older versions are not shown (-n COUNT, --all)")
    if history.boundary is not None:
        notes.append(f"versions below {history.boundary} are collected")
    if history.readers is None:
        notes.append("a web server does not tell which readers hold a lease")
    elif history.readers:
        lines += ["", *_reader_table(history.readers, now, width)]
    if notes:
        lines += ["", *notes]
    return lines


def _row(entry: Entry, verified: bool) -> list[str]:
    manifest = entry.manifest
    delta = bool(manifest.objects)
    kind = "delta" if delta else "anchor"
    if delta and entry.anchor is not None:
        kind = "both"
    anchor_bytes = 0 if entry.anchor is None else entry.anchor.bytes
    return [
        str(manifest.version),
        time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(manifest.time)),
        kind,
        text.percent(manifest.changed, manifest.elements) if delta else "",
        text.size(manifest.bytes if delta else anchor_bytes),
        text.percent(manifest.bytes, manifest.dense_bytes) if delta else "",
        text.bits(manifest.bits_per_change) if delta else "",
        "?" if entry.chain_bytes is None else text.size(entry.chain_bytes),
        manifest.result_state.hex()[:8],
        # A name that was not checked is only what the record says of itself.
        text.one_line(manifest.signer) + ("" if verified or not manifest.signer else "?"),
        " ".join(f"{key}={value}" for key, value in manifest.meta.items()),
    ]


def _fitting(rows: list[list[str]], width: int | None) -> list[str]:
    """The table, without the columns for which the terminal is too narrow."""
    meta = _HEAD.index("meta")
    rows = [[*row[:meta], text.one_line(row[meta])] for row in rows]
    lines = text.table(_HEAD, rows, align=_ALIGN)
    if width is None:
        return lines
    too_wide = max(map(len, lines)) - width
    longest = max((len(row[meta]) for row in rows), default=0)
    if too_wide > 0 and longest - too_wide >= _LEAST_META:
        rows = [[*row[:meta], text.shortened(row[meta], longest - too_wide)] for row in rows]
        return text.table(_HEAD, rows, align=_ALIGN)
    for name in _NARROW:
        if max(map(len, lines)) <= width:
            break
        place = _HEAD.index(name)
        rows = [[*row[:place], "", *row[place + 1 :]] for row in rows]
        lines = text.table(_HEAD, rows, align=_ALIGN)
    return lines


def _reader_table(readers: list[Reader], now: float, width: int | None) -> list[str]:
    rows = []
    for reader in readers:
        lease = reader.lease
        left = lease.expires - now
        seconds = reader.lag_seconds
        ends = f"for {text.duration(left)}" if left > 0 else f"ended {text.duration(-left)} ago"
        rows.append(
            [
                text.one_line(lease.name) or lease.id[:8],
                "-" if lease.version is None else str(lease.version),
                "" if lease.target is None else str(lease.target),
                "-" if reader.lag_versions is None else text.number(reader.lag_versions, "version"),
                "-" if seconds is None else text.duration(seconds),
                ends,
            ]
        )
    head = ["reader", "version", "going to", "behind", "by", "lease"]
    lines = text.table(head, rows, align="<>>>>>")
    too_wide = 0 if width is None else max(map(len, lines)) - width
    if too_wide > 0:
        longest = max(len(row[0]) for row in rows)
        name = max(len(head[0]), longest - too_wide)
        rows = [[text.shortened(row[0], name), *row[1:]] for row in rows]
        lines = text.table(head, rows, align="<>>>>>")
    return lines
