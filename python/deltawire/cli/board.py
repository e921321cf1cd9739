"""``deltawire publish`` and ``deltawire pull``."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoint import Checkpoint, durable
from . import text
from .arguments import (
    BOARD,
    CHECKPOINT,
    UsageError,
    add_encoding,
    add_report,
    add_threads,
    count,
    positive_seconds,
)
from .keys import add_key, add_trust, trust_of
from .output import Output
from .store import add_store, store_options

if TYPE_CHECKING:
    from .. import Board


def add_parsers(verbs: Any) -> None:
    """Add the verbs."""
    _add_publish(verbs)
    _add_pull(verbs)


def _add_publish(verbs: Any) -> None:
    parser = verbs.add_parser(
        "publish",
        help="publish a checkpoint as the next version of a board",
        description="Publish CHECKPOINT as a version of BOARD: as a delta from the version before, "
        "or whole (an anchor). The first version of a board is always an anchor.",
    )
    parser.add_argument("board", metavar="BOARD", help=BOARD)
    parser.add_argument("checkpoint", metavar="CHECKPOINT", type=Path, help=CHECKPOINT)
    parser.add_argument(
        "--version", type=count, metavar="N", help="version (default: the next, or 0)"
    )
    parser.add_argument("--anchor", action="store_true", help="publish the whole checkpoint")
    parser.add_argument(
        "--base",
        type=Path,
        metavar="CHECKPOINT",
        help="the board's newest version, for the delta (default: pulled from the board)",
    )
    parser.add_argument(
        "--scratch",
        type=Path,
        metavar="DIR",
        help="where the newest version is pulled to for a while, without --base "
        "(default: beside CHECKPOINT)",
    )
    add_encoding(parser)
    add_key(parser)
    add_trust(parser)
    add_store(parser)
    add_threads(parser)
    add_report(parser)
    parser.set_defaults(
        run=run_publish,
        hints={
            "wrong-base": "give the board's newest version with --base, or publish an --anchor",
            "wrong-version": "leave out --version to publish the next one",
        },
    )


def _add_pull(verbs: Any) -> None:
    parser = verbs.add_parser(
        "pull",
        help="bring a checkpoint directory to a version of a board",
        description="Make directory DIR hold a version of BOARD. A directory that was pulled "
        "before is brought forward in place, from the version that it holds.",
    )
    parser.add_argument("board", metavar="BOARD", help=BOARD)
    parser.add_argument(
        "-o", "--output", metavar="DIR", type=Path, required=True, help="checkpoint directory"
    )
    parser.add_argument("--version", type=count, metavar="N", help="version (default: the newest)")
    add_trust(parser)
    parser.add_argument(
        "--run", dest="run_name", metavar="NAME", help="the only run that is trusted"
    )
    parser.add_argument(
        "--memory",
        type=Path,
        metavar="FILE",
        help="keeps the newest version seen, as DIR itself does, where DIR may go away",
    )
    parser.add_argument(
        "--max-age",
        type=positive_seconds,
        metavar="DURATION",
        help="refuse a newest version that is older than this, such as 90s or 12h "
        "(default: any age)",
    )
    add_store(parser)
    add_threads(parser)
    add_report(parser)
    parser.set_defaults(run=run_pull)


def run_publish(arguments: argparse.Namespace) -> int:
    """Publish a version; see the verb's description."""
    import deltawire as dw

    output = Output(arguments)
    if arguments.anchor and arguments.base is not None:
        raise UsageError("--anchor publishes the whole checkpoint, --base is for a delta")
    # Opened first: a bad checkpoint must not leave a new board behind.
    with Checkpoint.open(arguments.checkpoint) as new:
        key = None if arguments.key is None else dw.SigningKey.load(arguments.key)
        trust, options = trust_of(arguments), store_options(arguments)
        board = dw.Board(
            arguments.board, create=arguments.base is None, trust=trust, options=options
        )
        head = board.head()
        first = head is None
        version = arguments.version
        if version is None:
            version = 0 if head is None else head + 1
        anchor = arguments.anchor or first
        if first and arguments.base is not None:
            raise UsageError("the board is empty, its first version needs no --base")
        with contextlib.ExitStack() as stack:
            base = None
            if not anchor:
                base = stack.enter_context(_newest(board, arguments, output))
            publisher = stack.enter_context(
                board.publisher(run=arguments.run_name or None, key=key)
            )
            advance = stack.enter_context(output.progress("publish", new.nbytes))
            if base is None:
                stats = publisher.publish_anchor(
                    version,
                    new,
                    meta=arguments.meta,
                    threads=arguments.threads,
                    progress=advance,
                )
            else:
                stats = publisher.publish(
                    version,
                    base=base,
                    new=new,
                    profile=arguments.profile,
                    meta=arguments.meta,
                    threads=arguments.threads,
                    progress=advance,
                )
    if first:
        kind = "the whole checkpoint, because it is the first"
    else:
        kind = "the whole checkpoint" if anchor else f"a delta from version {head}"
    rows = [("size", text.size(stats.bytes))]
    if not anchor:
        rows = [
            ("changed", text.changes(stats.changed, stats.elements)),
            ("size", text.cost(stats.bytes, stats.dense_bytes, stats.bits_per_change)),
        ]
    encode, publish = map(text.duration, (stats.encode_seconds, stats.publish_seconds))
    rows += [
        ("time", f"{'digest' if anchor else 'encode'} {encode}, publish {publish}"),
        ("state", stats.result_state.hex()),
    ]
    output.result(
        {"board": arguments.board, **stats.as_dict()},
        [f"{arguments.board}: version {version}, {kind}", *text.fields(rows)],
    )
    return 0


@contextlib.contextmanager
def _newest(board: Board, arguments: argparse.Namespace, output: Output) -> Iterator[Checkpoint]:
    """The board's newest version: as given, or pulled into a directory that goes away again."""
    if arguments.base is not None:
        with Checkpoint.open(arguments.base) as base:
            yield base
        return
    scratch = arguments.scratch or arguments.checkpoint.absolute().parent
    try:
        directory = Path(tempfile.mkdtemp(prefix=".deltawire-", dir=scratch))
    except OSError as error:
        raise durable.store_error(
            error, scratch, "cannot hold the newest version; name another --scratch or --base"
        ) from error
    try:
        with output.progress("pull", None) as advance:
            board.pull(directory / "newest", threads=arguments.threads, progress=advance)
        with Checkpoint.open(directory / "newest") as base:
            yield base
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def run_pull(arguments: argparse.Namespace) -> int:
    """Pull a version; see the verb's description."""
    import deltawire as dw

    output = Output(arguments)
    trust, options = trust_of(arguments, arguments.run_name), store_options(arguments)
    board = dw.Board(arguments.board, trust=trust, options=options)
    with output.progress("pull", None) as advance:
        stats = board.pull(
            arguments.output,
            version=arguments.version,
            threads=arguments.threads,
            progress=advance,
            memory=arguments.memory,
            max_age=arguments.max_age,
        )
    if stats.anchor is not None:
        source = f"from the checkpoint of version {stats.anchor}"
    elif stats.version == stats.from_version:
        source = "was there already"
    else:
        source = f"from version {stats.from_version}"
    rows = [("read", f"{text.size(stats.bytes)}, {text.number(stats.versions, 'delta')}")]
    if stats.versions:
        rows += [
            ("changed", f"{stats.changed:,} elements"),
            (
                "time",
                f"pull {text.duration(stats.pull_seconds)}, "
                f"stage {text.duration(stats.stage_seconds)}, "
                f"commit {text.duration(stats.commit_seconds)}",
            ),
        ]
    rows.append(("proven", stats.state.hex()))
    output.result(
        {"board": arguments.board, "path": arguments.output, **stats.as_dict()},
        [f"{arguments.output}: version {stats.version}, {source}", *text.fields(rows)],
    )
    return 0
