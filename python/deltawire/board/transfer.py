"""Objects on their way here: streamed, counted, their BLAKE3 checked."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ..errors import DeltawireError
from .manifest import ObjectRef

if TYPE_CHECKING:
    from .board import Board

#: Called with the number of bytes just done.
Progress = Callable[[int], object]


@contextlib.contextmanager
def of_version(version: int) -> Iterator[None]:
    """Errors name the version, where they do not name one yet."""
    try:
        yield
    except DeltawireError as error:
        if error.version is None:
            error.version = version
        raise


class Counting:
    """A sink that passes bytes on and reports their number."""

    def __init__(self, sink: object, progress: Progress) -> None:
        self._write: Callable[[bytes], int] = sink.write  # type: ignore[attr-defined]
        self._progress = progress

    def write(self, data: bytes) -> int:
        """Write and report."""
        written = self._write(data)
        self._progress(len(data))
        return written


def fetch_object(
    board: Board, item: ObjectRef, file: object | None, progress: Progress | None
) -> None:
    """Stream an object into ``file`` (None: only check it), its BLAKE3 checked.

    Raises:
        UntrustedDelta: other bytes than the manifest's. What was written is useless.
        StoreError: it cannot be read.
    """
    sink = file
    if progress is not None:
        sink = Counting(file if file is not None else _Nowhere(), progress)
    board.store.fetch(item.path, item.bytes, item.blake3, sink)


class _Nowhere:
    def write(self, data: bytes) -> int:
        return len(data)
