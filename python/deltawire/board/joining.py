"""Deltas that several writers uploaded in parts, put together into one."""

from __future__ import annotations

import itertools
import os
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from .. import _native
from ..closing import Closing
from ..errors import LayoutMismatch, UntrustedDelta
from .hop import Hop
from .manifest import PartRef
from .ranged import Needs, fetch_ends, fetch_needed, needed_chunks
from .transfer import Progress, fetch_object

if TYPE_CHECKING:
    from .board import Board

#: Parts that are fetched at the same time; each object comes in parallel ranges already.
_AT_ONCE = 4


@dataclass(frozen=True)
class Heading:
    """What a joined delta says of itself; its parts know only their own tensors."""

    run: str
    version: int
    base_version: int
    base_state: bytes
    result_state: bytes
    meta: Mapping[str, str]

    @classmethod
    def of(cls, hop: Hop) -> Heading:
        """What the record of a delta says."""
        assert hop.base.state is not None
        return cls(
            hop.manifest.run,
            hop.version,
            hop.base.version,
            hop.base.state,
            hop.result_state,
            hop.manifest.meta,
        )


@dataclass(frozen=True)
class Fit:
    """Parts that fit together.

    Attributes:
        bytes: of the joined delta; 0 where it was not written.
        changed: elements that it changes.
        elements, dense_bytes: of the tensors in its table.
    """

    bytes: int
    changed: int
    elements: int
    dense_bytes: int


class Parts(Closing):
    """Parts of a delta, one after the other in one unnamed file. Use as a context manager."""

    def __init__(
        self, board: Board, parts: Sequence[PartRef], spool: str | os.PathLike[str] | None = None
    ) -> None:
        self._board = board
        self._parts = parts
        ends = list(itertools.accumulate((part.bytes for part in parts), initial=0))
        self._starts, size = ends[:-1], ends[-1]
        self._file = tempfile.TemporaryFile(dir=spool, prefix="deltawire-")  # noqa: SIM115
        try:
            self._file.truncate(size)
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Drop the file."""
        self._file.close()

    def fetch(self, progress: Progress | None = None) -> int:
        """Fetch all of them, their BLAKE3 checked; returns bytes."""
        return self._each(self._fetch_whole, progress)

    def fetch_needed(self, target: Needs, progress: Progress | None = None) -> int:
        """Fetch what a rank needs of them, as :func:`deltawire.board.ranged.fetch_needed`."""

        def needed(item: PartRef, at: int, progress: Progress | None) -> int:
            if item.records is None:
                return self._fetch_whole(item, at, progress)
            fetched = fetch_needed(self._board, item, target, self._file, at)
            if progress is not None:
                progress(fetched)
            return fetched

        return self._each(needed, progress)

    def fetch_ends(self) -> int:
        """Fetch headers and indexes; small parts, which have no hashes of records, as a whole."""

        def ends(item: PartRef, at: int, progress: Progress | None) -> int:
            if item.records is None:
                return self._fetch_whole(item, at, progress)
            return fetch_ends(self._board, item, self._file, at)

        return self._each(ends, None)

    def join(self, sink: object | None, heading: Heading, target: Needs | None = None) -> Fit:
        """Write the delta that the parts make; without a sink, only see that they fit.

        Args:
            target: of a rank: only the chunks that it needs.

        Raises:
            LayoutMismatch: they do not fit together, or the target does not fit.
            CorruptDelta, UnsupportedDelta, LimitExceeded: a part is no delta that can be used.
        """
        root = self._board.url.rstrip("/")
        paths = [f"{root}/{part.path}" for part in self._parts]
        sizes = [part.bytes for part in self._parts]
        own = f"/dev/fd/{self._file.fileno()}"
        deltas = _native.Delta.slices(own, list(zip(self._starts, sizes, paths, strict=True)))
        chunks: list[list[int] | None] = [None] * len(deltas)
        if target is not None:
            chunks = [[chunk for chunk, *_ in needed_chunks(d, target)] for d in deltas]
        return Fit(
            *_native.join(
                sink,
                list(zip(deltas, chunks, paths, strict=True)),
                run=heading.run,
                version=heading.version,
                base_version=heading.base_version,
                base_state=heading.base_state,
                result_state=heading.result_state,
                meta=dict(heading.meta),
            )
        )

    def _fetch_whole(self, item: PartRef, at: int, progress: Progress | None) -> int:
        fetch_object(self._board, item, _Place(self._file.fileno(), at), progress)
        return item.bytes

    def _each(
        self,
        work: Callable[[PartRef, int, Progress | None], int],
        progress: Progress | None,
    ) -> int:
        """Bytes that ``work`` fetched of all parts, several at a time."""
        report = None if progress is None else _one_at_a_time(progress)
        workers = min(_AT_ONCE, len(self._parts))
        with ThreadPoolExecutor(workers, thread_name_prefix="deltawire-parts") as pool:
            jobs = [
                pool.submit(work, part, at, report)
                for part, at in zip(self._parts, self._starts, strict=True)
            ]
            try:
                return sum(job.result() for job in jobs)
            except BaseException:
                for job in jobs:
                    job.cancel()
                raise


def fetch_joined(
    board: Board,
    hop: Hop,
    file: BinaryIO,
    spool: str | os.PathLike[str] | None,
    progress: Progress | None,
    only_for: Needs | None,
) -> int | None:
    """Write the delta that a hop's parts make into ``file``, for ``only_for`` what it needs.

    Returns:
        Bytes fetched for ``only_for``; None without.

    Raises:
        UntrustedDelta: other bytes than the manifest's, or parts that do not fit together.
        CorruptDelta, UnsupportedDelta, LimitExceeded, LayoutMismatch, StoreError, OSError.
    """
    with Parts(board, hop.parts, spool) as parts:
        fetched = None
        if only_for is None:
            parts.fetch(progress)
        else:
            fetched = parts.fetch_needed(only_for, progress)
        _join(parts, file, hop, only_for)
        return fetched


def fetch_whole(board: Board, hop: Hop, sink: object) -> int:
    """Write a delta into ``sink``, its BLAKE3 checked, its parts joined; returns its bytes.

    Errors are those of :func:`fetch_joined`.
    """
    if len(hop.parts) == 1:
        (item,) = hop.parts
        fetch_object(board, item, sink, None)
        return item.bytes
    with Parts(board, hop.parts) as parts:
        parts.fetch()
        return _join(parts, sink, hop, None).bytes


def _join(parts: Parts, sink: object, hop: Hop, only_for: Needs | None) -> Fit:
    if only_for is not None:
        return parts.join(sink, Heading.of(hop), only_for)
    try:
        return parts.join(sink, Heading.of(hop))
    except LayoutMismatch as error:
        raise UntrustedDelta(
            f"the parts of this version do not make one delta: {error.message}; tell the publisher",
            tensor=error.tensor,
            version=error.version,
            path=error.path,
        ) from error


def _one_at_a_time(progress: Progress) -> Progress:
    """The same for calls from several threads."""
    lock = threading.Lock()

    def report(count: int) -> None:
        with lock:
            progress(count)

    return report


class _Place:
    """A sink that writes into a file from some byte on, whoever else writes elsewhere."""

    def __init__(self, descriptor: int, at: int) -> None:
        self._descriptor = descriptor
        self._at = at

    def write(self, data: bytes) -> int:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._descriptor, view, self._at)
            self._at += written
            view = view[written:]
        return len(data)
