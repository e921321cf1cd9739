"""Arguments that several verbs share."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, NoReturn

CHECKPOINT = "a .safetensors file or a Hugging Face checkpoint directory"
BOARD = "URL or path of the board"
PROFILES = ("compact", "fast", "overwrite")


class CommandError(Exception):
    """An error of the command line itself, with the same fields as the library's."""

    kind: ClassVar[str]
    exit_status: ClassVar[int]

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(CommandError):
    """Arguments that are wrong or contradict each other."""

    kind = "usage"
    exit_status = 2


class MissingPackage(CommandError):
    """A verb that needs an optional package that is not installed."""

    kind = "missing-package"
    exit_status = 1


class Parser(argparse.ArgumentParser):
    """A parser that raises instead of printing, so that ``--json`` covers wrong usage too."""

    def error(self, message: str) -> NoReturn:
        """Raise :class:`UsageError`."""
        raise UsageError(message, hint=f"`{self.prog} --help` shows how it is used")


def count(text: str) -> int:
    """A number of 0 or more, below 2^63."""
    value = int(text)
    if not 0 <= value < 1 << 63:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 to 2^63 - 1")
    return value


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(text: str) -> float:
    """A duration: a number of seconds, or one with s, m, h or d."""
    digits, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS else (text, "s")
    value = float(digits) * _UNITS[unit]
    if not 0 <= value < 1e11:
        raise argparse.ArgumentTypeError(f"{text} is not a duration, such as 90s, 15m, 12h or 7d")
    return value


def positive_seconds(text: str) -> float:
    """A duration above 0."""
    value = seconds(text)
    if not value:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds above 0")
    return value


def threads(text: str) -> int:
    """A number of threads."""
    value = int(text)
    if not 1 <= value <= 1024:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 to 1024")
    return value


class KeyValue(argparse.Action):
    """Collects repeated ``KEY=VALUE`` arguments into a dictionary."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Add one pair."""
        key, equals, value = str(values).partition("=")
        collected = dict(getattr(namespace, self.dest) or {})
        if not key or not equals:
            parser.error(f"argument {option_string}: {values!r} is not KEY=VALUE")
        if key in collected:
            parser.error(f"argument {option_string}: {key!r} is given twice")
        collected[key] = value
        setattr(namespace, self.dest, collected)


def add_report(parser: argparse.ArgumentParser) -> None:
    """``--json`` and ``--quiet``."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--json", action="store_true", help="print one JSON object")
    group.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")


def add_threads(parser: argparse.ArgumentParser) -> None:
    """``--threads``."""
    parser.add_argument(
        "--threads", type=threads, metavar="N", help="worker threads (default: all cores)"
    )


def add_encoding(parser: argparse.ArgumentParser) -> None:
    """``--profile``, ``--run`` and ``--meta``."""
    parser.add_argument(
        "--profile",
        choices=PROFILES,
        default="compact",
        help="compact: smallest; fast: highest throughput; overwrite: needs no base "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--run", dest="run_name", default="", metavar="NAME", help="name of the training run"
    )
    parser.add_argument(
        "--meta", action=KeyValue, metavar="KEY=VALUE", help="free metadata; may be repeated"
    )


@contextlib.contextmanager
def delta_source(text: str) -> Iterator[Path | BinaryIO]:
    """The delta behind an argument: a path, or stdin for ``-``."""
    if text != "-":
        yield Path(text)
    elif sys.stdin.isatty():
        raise UsageError("'-' reads the delta from stdin, which is a terminal; pipe one in")
    else:
        yield sys.stdin.buffer
