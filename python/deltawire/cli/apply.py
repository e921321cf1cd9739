"""``deltawire apply`` and ``deltawire verify``."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ..checkpoint import Checkpoint, durable
from ..errors import TargetError
from . import text
from .arguments import CHECKPOINT, UsageError, add_report, add_threads, delta_source
from .keys import add_trust, trust_of
from .output import Output
from .store import add_store, store_options

if TYPE_CHECKING:
    from .. import ApplyStats, DeltaInfo


def add_parsers(verbs: Any) -> None:
    """Add the verbs."""
    parser = verbs.add_parser(
        "apply",
        help="apply a delta to a checkpoint",
        description="Apply a delta to checkpoint BASE: to a copy of it, which appears once the "
        "result is proven, or in place.",
    )
    _add_common(parser)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        type=Path,
        help="new directory for the result; for a single file also a .safetensors name",
    )
    where.add_argument("--in-place", action="store_true", help="change BASE itself")
    parser.set_defaults(run=run_apply)

    parser = verbs.add_parser(
        "verify",
        help="check a delta against a checkpoint, writing nothing",
        description="Check every byte of a delta, that BASE is what it starts from, and that "
        "applying it would give the state it promises. Writes nothing.",
    )
    _add_common(parser)
    parser.add_argument(
        "--board",
        metavar="BOARD",
        help="check also that this is the very delta that BOARD has for its version",
    )
    add_trust(parser)
    add_store(parser)
    parser.set_defaults(run=run_verify)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("delta", metavar="OUT.dw", help="the delta; - for stdin")
    parser.add_argument("--base", metavar="BASE", type=Path, required=True, help=CHECKPOINT)
    add_threads(parser)
    add_report(parser)


def run_apply(arguments: argparse.Namespace) -> int:
    """Apply the delta; see the verb's description."""
    output = Output(arguments)
    with delta_source(arguments.delta) as source:
        if arguments.in_place:
            path = arguments.base
            info, stats = _change(source, path, path, arguments, output)
        else:
            path = arguments.output
            with _copy(source, arguments, output) as copy:
                info, stats = _change(source, copy, path, arguments, output)
    rows = [("changed", text.changes(stats.changed, info.elements))]
    if stats.skipped:
        rows.append(("skipped", f"{stats.skipped} of {stats.chunks} chunks, already there"))
    rows += [
        (
            "time",
            f"stage {text.duration(stats.stage_seconds)}, "
            f"commit {text.duration(stats.commit_seconds)}",
        ),
        ("proven", text.state(stats.result_state)),
    ]
    output.result(
        {
            "path": path,
            "version": info.version,
            "base_version": info.base_version,
            **stats.as_dict(),
        },
        [f"{path}: {text.versions(info.base_version, info.version)}", *text.fields(rows)],
    )
    return 0


def run_verify(arguments: argparse.Namespace) -> int:
    """Check the delta; see the verb's description."""
    import deltawire as dw

    output = Output(arguments)
    if arguments.board is None and arguments.trusted_keys is not None:
        raise UsageError("a delta file is not signed, its board's manifest is: name the --board")
    if arguments.board is not None and arguments.delta == "-":
        raise UsageError("--board compares a file with the board's; name the file")
    trust = trust_of(arguments)
    with delta_source(arguments.delta) as source, Checkpoint.open(arguments.base) as base:
        with output.progress("verify", base.nbytes) as advance:
            staged = dw.stage(
                source, base, threads=arguments.threads, progress=advance, read_only=True
            )
        info, state, result = staged.info, staged.base_state, staged.result_state
    signer = None
    origin = []
    if arguments.board is not None:
        board = dw.Board(arguments.board, trust=trust, options=store_options(arguments))
        signer = board.check_delta(arguments.delta, info.version).signer or None
        signed = f", signed by {signer}" if signer is not None and trust is not None else ""
        origin = [("board", f"the delta of {arguments.board}{signed}")]
    # Tiles that hold the result already are no fault: applying the delta would complete it.
    if info.base_state in (state, None):
        standing = "the checkpoint is its base"
    elif state == result:
        standing = "the checkpoint holds the result already"
    elif staged.skipped:
        standing = f"{staged.skipped} of {staged.chunks} chunks are applied already"
    else:
        standing = "the checkpoint is another base that it fits too"
    chunks = text.number(info.chunks, "chunk")
    output.result(
        {
            "path": arguments.delta,
            "version": info.version,
            "base_version": info.base_version,
            "bytes": info.bytes,
            "chunks": staged.chunks,
            "skipped": staged.skipped,
            "changed": staged.changed,
            "state": state,
            "base_state": info.base_state,
            "result_state": result,
            "board": arguments.board,
            "signer": signer,
            "verified": trust is not None,
        },
        [
            f"{arguments.delta}: valid, {text.versions(info.base_version, info.version)}, "
            f"{standing}",
            *text.fields(
                [
                    ("file", f"{text.size(info.bytes)}, {chunks}, all checksums right"),
                    ("changed", text.changes(info.changed, info.elements)),
                    ("state", f"{text.state(state)}  of {arguments.base}, read in full"),
                    ("result", f"{text.state(result)}  proven to follow"),
                    *origin,
                ]
            ),
        ],
    )
    return 0


def _change(
    source: Path | BinaryIO,
    path: Path,
    shown: Path,
    arguments: argparse.Namespace,
    output: Output,
) -> tuple[DeltaInfo, ApplyStats]:
    """Stage, commit, sync, and prove what is then in the files; ``shown`` names them."""
    import deltawire as dw

    with Checkpoint.open(path, writable=True) as target:
        with output.progress("stage", target.nbytes) as advance:
            staged = dw.stage(source, target, threads=arguments.threads, progress=advance)
        info = staged.info
        stats = staged.commit()
        target.flush()
        if stats.result_state is not None:
            held = {tensor.name: target[tensor.name] for tensor in info.tensors}
            with output.progress("prove", target.nbytes) as advance:
                state = dw.state_digest(held, threads=arguments.threads, progress=advance)
            if state != stats.result_state:
                raise TargetError(
                    f"the files hold state {state.hex()} and not {stats.result_state.hex()}: "
                    "something else wrote to them, or the storage is failing",
                    path=str(shown),
                    version=info.version,
                )
        return info, stats


@contextlib.contextmanager
def _copy(source: Path | BinaryIO, arguments: argparse.Namespace, output: Output) -> Iterator[Path]:
    """A copy of the base under a temporary name, renamed to the output if all goes well."""
    import deltawire as dw

    target: Path = arguments.output
    with Checkpoint.open(arguments.base) as base:
        # A single file may keep being one: `--base a.safetensors -o b.safetensors`.
        single = not base.path.is_dir() and target.suffix == ".safetensors"
        durable.refuse_existing(target)
        if isinstance(source, Path):
            # A damaged delta is found before a large checkpoint is copied for it.
            dw.inspect(source)
        place = durable.new_path if single else durable.new_directory
        with place(target) as temporary:
            durable.require_space(temporary.parent, sum(f.stat().st_size for f in base.files))
            with output.progress("copy", base.nbytes) as advance:
                if single:
                    durable.copy_file(base.path, temporary, progress=advance)
                else:
                    base.copy_into(temporary, progress=advance)
            yield temporary
