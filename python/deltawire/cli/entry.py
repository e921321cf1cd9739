"""Parse, run, and end with the right status."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from ..errors import DeltawireError, StoreError
from . import apply, board, compose, demo, diff, gc, inspect, keys, log
from .arguments import CommandError, Parser
from .output import to_json

EPILOG = """\
exit status: 0 done, 2 wrong usage, 3 corrupt or untrusted input, 4 wrong base or version,
5 store or network, 1 anything else
"""

# What a handler of the error would do; verbs may know better (`hints` of their parser).
HINTS = {
    "usage": "`deltawire VERB --help` lists the arguments of a verb",
    "corrupt": "fetch the delta again, or make it again with `deltawire diff`",
    "unsupported": "upgrade deltawire, or have the sender write an older format",
    "limit": "do not use the file unless you trust where it comes from",
    "untrusted": "do not use it; find out who can write to where it comes from",
    "checkpoint": "get a complete copy of the checkpoint",
    "wrong-base": "use the checkpoint that the delta starts from; `deltawire inspect` shows its "
    "version and state",
    "wrong-version": "`deltawire log BOARD` lists the versions",
    "layout": "use checkpoints of the same model, with the same names, shapes and dtypes",
    "conflict": "`deltawire log BOARD` shows the other writer's version; publish the next one",
    "broken-chain": "pull into a new directory, which starts from an anchor",
    "store": "correct the cause and run the same command again",
    "target": "allow writing, or name a new directory with -o",
    "torn": "run the same command again; what is done already is recognised",
    "rolled-back": "compare with another copy of the board; start anew only if you trust this one",
    "stale": "see whether the publisher runs; allow more with --max-age if it may pause",
    "key-file": "make keys with `deltawire keygen`; private ones end in .key, public ones in .pub",
    "memory": "use fewer --threads, or a machine with more memory",
    "internal": "this is a bug in deltawire; please report the lines above",
}


class _Stopped(KeyboardInterrupt):
    """A signal that asks the process to end; cleaned up after like Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    from .. import __version__

    parser = Parser(
        prog="deltawire",
        description="Small, lossless weight deltas: make, apply, publish and follow them.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"deltawire {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for module in (diff, apply, inspect, board, log, compose, gc, keys, demo):
        module.add_parsers(verbs)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status.

    Args:
        argv: arguments without the program's name; ``sys.argv`` by default.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    arguments = argparse.Namespace(json="--json" in words, hints={})
    try:
        with _ending_on_signals():
            build_parser().parse_args(words, arguments)
            status = int(arguments.run(arguments))
            # Here and not at exit, where a closed pipe could not be handled.
            sys.stdout.flush()
            return status
    except KeyboardInterrupt as error:
        number = error.number if isinstance(error, _Stopped) else int(signal.SIGINT)
        return _report(arguments, "interrupted", "interrupted", 128 + number)
    except SystemExit as error:  # --help and --version
        return _flushed(int(error.code or 0))
    except BrokenPipeError:
        return _closed_pipe()
    except CommandError as error:
        if error.hint is not None:
            arguments.hints = {**arguments.hints, error.kind: error.hint}
        return _report(arguments, error.kind, str(error), error.exit_status)
    except DeltawireError as error:
        if isinstance(error.__cause__, BrokenPipeError):
            return _closed_pipe()
        return _report(arguments, error.kind, error, error.exit_status)
    except OSError as error:
        wrapped = StoreError(error.strerror or str(error), path=_text(error.filename))
        return _report(arguments, wrapped.kind, wrapped, wrapped.exit_status)
    except MemoryError:
        return _report(arguments, "memory", "out of memory", 1)
    except Exception as error:  # noqa: BLE001 - the last line of defence, reported in full
        traceback.print_exc()
        return _report(arguments, "internal", f"{type(error).__name__}: {error}", 1)


def _report(
    arguments: argparse.Namespace, kind: str, error: str | DeltawireError, status: int
) -> int:
    """Print an error as text or JSON; returns ``status``."""
    if arguments.json:
        place = {"tensor": None, "version": None, "offset": None, "path": None}
        message = str(error)
        if isinstance(error, DeltawireError):
            message = error.message
            place = {name: getattr(error, name) for name in place}
        value = {"error": {"kind": kind, "message": message, **place}, "status": status}
        print(to_json(value))
        return _flushed(status)
    lines = [f"deltawire: error: {error}" if kind != "interrupted" else "deltawire: interrupted"]
    hint = arguments.hints.get(kind) or HINTS.get(kind)
    if hint is not None:
        lines.append(f"deltawire: hint: {hint}")
    with contextlib.suppress(BrokenPipeError):
        print("\n".join(lines), file=sys.stderr, flush=True)
    return status


def _flushed(status: int) -> int:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return _closed_pipe()
    return status


def _closed_pipe() -> int:
    """The reader has seen enough: end quietly, with the status of the signal's default."""
    # What is still buffered goes nowhere, instead of failing again at exit.
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 128 + int(signal.SIGPIPE)


def _text(name: Any) -> str | None:
    return None if name is None else os.fsdecode(name) if isinstance(name, bytes) else str(name)


@contextlib.contextmanager
def _ending_on_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind like Ctrl-C, so that temporary files are removed."""

    def stop(number: int, _: FrameType | None) -> None:
        raise _Stopped(number)

    replaced = []
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, stop)
                replaced.append(number)
    try:
        yield
    finally:
        for number in replaced:
            signal.signal(number, signal.SIG_DFL)
