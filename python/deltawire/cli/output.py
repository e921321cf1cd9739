"""What the verbs print: text or one JSON object on stdout, progress and errors on stderr."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any

Advance = Callable[[int], object]


class Output:
    """How this run reports, as its arguments say."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        """Use the arguments' ``json`` and ``quiet``, where the verb has them."""
        self.json: bool = getattr(arguments, "json", False)
        self.quiet: bool = getattr(arguments, "quiet", False)
        self._to_stderr = False

    def keep_stdout_for_data(self) -> None:
        """Print the report on stderr, because the delta itself goes to stdout."""
        self._to_stderr = True

    def result(self, value: Mapping[str, Any], lines: Iterable[str]) -> None:
        """Report success: ``value`` as one JSON object, or ``lines`` for people."""
        stream = sys.stderr if self._to_stderr else sys.stdout
        if self.json:
            print(to_json(value), file=stream)
        elif not self.quiet:
            for line in lines:
                print(line, file=stream)

    @contextlib.contextmanager
    def progress(self, label: str, total: int | None) -> Iterator[Advance]:
        """A bar on stderr while the block runs, where stderr is a terminal.

        Args:
            label: what is being done.
            total: bytes to do; None where that is not known before.

        Yields:
            A function to call with the number of bytes just done.
        """
        # Called in any case, so that signals are noticed between two pieces of native work.
        if self.quiet or total == 0 or not sys.stderr.isatty():
            yield _ignore
            return
        from tqdm import tqdm

        bar = tqdm(
            desc=label,
            total=total,
            unit="B",
            unit_scale=True,
            leave=False,
            dynamic_ncols=True,
            file=sys.stderr,
        )
        try:
            yield bar.update
        finally:
            bar.close()


def _ignore(_: int) -> None:
    return None


def to_json(value: Mapping[str, Any]) -> str:
    """One JSON object; digests as hexadecimal digits, undefined numbers as null."""
    return json.dumps(_plain(value), allow_nan=False, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (bytes, bytearray)):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, PurePath):
        return str(value)
    return value
