"""``deltawire diff``."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from . import text
from .arguments import CHECKPOINT, UsageError, add_encoding, add_report, add_threads, count
from .output import Output

if TYPE_CHECKING:
    from ..checkpoint import Checkpoint


def add_parsers(verbs: Any) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "diff",
        help="make a delta from two checkpoints",
        description="Write the delta that leads from checkpoint BASE to checkpoint NEW.",
    )
    parser.add_argument("base", metavar="BASE", type=Path, help=CHECKPOINT)
    parser.add_argument("new", metavar="NEW", type=Path, help="the same model, later")
    parser.add_argument(
        "-o", "--output", metavar="OUT.dw", required=True, help="the delta; - for stdout"
    )
    parser.add_argument("--base-version", type=count, metavar="A", help="version of BASE")
    parser.add_argument("--version", type=count, metavar="B", help="version of NEW (A + 1)")
    add_encoding(parser)
    add_threads(parser)
    add_report(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Make the delta; see the verb's description."""
    import deltawire as dw

    output = Output(arguments)
    base_version, version = _versions(arguments)
    with (
        dw.Checkpoint.open(arguments.base) as base,
        dw.Checkpoint.open(arguments.new) as new,
        _sink(arguments.output, output, [base, new]) as sink,
        output.progress("diff", new.nbytes) as advance,
    ):
        stats = dw.diff(
            base,
            new,
            sink,
            base_version=base_version,
            version=version,
            run=arguments.run_name,
            profile=arguments.profile,
            threads=arguments.threads,
            meta=arguments.meta,
            progress=advance,
        )
    output.result(
        {
            "path": arguments.output,
            "base_version": base_version,
            "version": version,
            "profile": arguments.profile,
            **stats.as_dict(),
        },
        [
            f"{arguments.output}: {text.versions(base_version, version)}, {arguments.profile}",
            *text.fields(
                [
                    ("changed", text.changes(stats.changed, stats.elements)),
                    ("size", text.cost(stats.bytes, stats.dense_bytes, stats.bits_per_change)),
                    ("time", text.duration(stats.seconds)),
                    ("base", text.state(stats.base_state)),
                    ("result", text.state(stats.result_state)),
                ]
            ),
        ],
    )
    return 0


def _versions(arguments: argparse.Namespace) -> tuple[int, int]:
    base, version = arguments.base_version, arguments.version
    if base is None:
        base = 0 if version is None else version - 1
    if version is None:
        version = base + 1
    if not 0 <= base < version:
        raise UsageError(f"version {version} does not follow base version {base}")
    return base, version


@contextlib.contextmanager
def _sink(name: str, output: Output, inputs: list[Checkpoint]) -> Iterator[Path | BinaryIO]:
    """Where the delta goes: a path that is replaced as a whole, or an open stream."""
    if name == "-":
        if sys.stdout.isatty():
            raise UsageError("a delta is binary and stdout is a terminal; name a file with -o")
        output.keep_stdout_for_data()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(name)
    if path.is_dir():
        raise UsageError(f"{name} is a directory; name a file with -o, such as {path / 'new.dw'}")
    if path.exists() and not path.is_file():
        # A device or a pipe: nothing could be put in its place.
        with path.open("wb") as stream:
            yield stream
        return
    for checkpoint in inputs:
        for file in checkpoint.files:
            if path.exists() and os.path.samefile(path, file):
                raise UsageError(f"{name} is an input; name another file with -o")
    yield path
