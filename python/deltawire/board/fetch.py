"""Bringing deltas near, and checking all there is to check before a target changes."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, BinaryIO

from ..errors import DeltawireError, StoreError, UntrustedDelta, WrongVersion
from ..reader import inspect
from ..sources import open_delta
from .hop import Hop
from .joining import fetch_joined, fetch_whole
from .manifest import Manifest
from .ranged import Needs, fetch_needed
from .transfer import Progress, fetch_object, of_version

if TYPE_CHECKING:
    from .board import Board


class FetchedDelta:
    """A delta in an unnamed file, its BLAKE3 checked.

    Attributes:
        hop: which delta.
        pull_seconds: that fetching took.
        fetched: bytes that it brought; less than the delta's where a shard needs less.
    """

    def __init__(
        self,
        hop: Hop,
        place: str,
        file: BinaryIO,
        seconds: float,
        fetched: int | None = None,
    ) -> None:
        self.hop = hop
        self.pull_seconds = seconds
        self.fetched = hop.bytes if fetched is None else fetched
        self._whole = fetched is None
        self._place = place
        self._file = file

    @property
    def path(self) -> str:
        """A path that opens the file as long as this object is open."""
        return f"/dev/fd/{self._file.fileno()}"

    @contextlib.contextmanager
    def blamed(self) -> Iterator[None]:
        """Errors about the file name the object that it was fetched from, and the version."""
        try:
            yield
        except DeltawireError as error:
            if error.path is None or error.path == self.path:
                error.path = self._place
            if error.version is None:
                error.version = self.hop.version
            raise

    def check(self, base: bytes) -> None:
        """Check that the delta is sound and what its manifest says, from state ``base``.

        Raises:
            UntrustedDelta: another version or state.
            CorruptDelta, UnsupportedDelta, LimitExceeded: it is no delta that can be used.
        """
        with self.blamed():
            # Verifies every checksum; the records of a part were checked one by one.
            info = inspect(self.path) if self._whole else self._header()
            hop = self.hop
            claims = [
                ("version", hop.version, info.version),
                ("base version", hop.base.version, info.base_version),
                ("base state", base, info.base_state),
                ("base state", hop.base.state, info.base_state),
                ("result state", hop.result_state, info.result_state),
            ]
            for what, wanted, found in claims:
                # An overwrite delta need not name a base.
                if found != wanted and not (found is None and what.startswith("base")):
                    raise UntrustedDelta(
                        f"the delta's {what} is {_text(found)}, its record says "
                        f"{_text(wanted)}; tell the publisher"
                    )

    def _header(self) -> SimpleNamespace:
        delta, _ = open_delta(self.path)
        return SimpleNamespace(**delta.info())

    def close(self) -> None:
        """Drop the file."""
        self._file.close()


def fetch_deltas(
    board: Board,
    hops: Sequence[Hop],
    base: bytes,
    *,
    spool: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    only_for: Needs | None = None,
) -> list[FetchedDelta]:
    """Fetch deltas that follow one another, the first starting from state ``base``.

    All checksums are checked. Files are unnamed, so that a crash leaves nothing behind. With
    ``only_for``, targets of shards, just what they need is fetched where that is worth it.

    Raises:
        UntrustedDelta, CorruptDelta, UnsupportedDelta, LimitExceeded, StoreError.
    """
    fetched: list[FetchedDelta] = []
    try:
        for hop in hops:
            fetched.append(_fetch(board, hop, spool, progress, only_for))
        for delta in fetched:
            delta.check(base)
            base = delta.hop.result_state
    except BaseException:
        for delta in fetched:
            delta.close()
        raise
    return fetched


def _fetch(
    board: Board,
    hop: Hop,
    spool: str | os.PathLike[str] | None,
    progress: Progress | None,
    only_for: Needs | None,
) -> FetchedDelta:
    fetched = None
    started = time.perf_counter()
    item = hop.parts[0]
    try:
        file = tempfile.TemporaryFile(dir=spool, prefix="deltawire-")  # noqa: SIM115
        try:
            with of_version(hop.version):
                if len(hop.parts) > 1:
                    fetched = fetch_joined(board, hop, file, spool, progress, only_for)
                elif only_for is None or item.records is None:
                    fetch_object(board, item, file, progress)
                else:
                    file.truncate(item.bytes)
                    fetched = fetch_needed(board, item, only_for, file)
                    if progress is not None:
                        progress(fetched)
            file.flush()
        except BaseException:
            file.close()
            raise
    except OSError as error:
        place = tempfile.gettempdir() if spool is None else os.fspath(spool)
        raise StoreError(
            f"the delta of {hop.bytes} bytes cannot be kept: {error.strerror or error}; free "
            "some space, or choose another directory",
            path=place,
        ) from error
    # What is wrong with one of several parts was noticed when they were joined.
    path = item.path if len(hop.parts) == 1 else os.path.dirname(item.path)
    place = f"{board.url.rstrip('/')}/{path}"
    return FetchedDelta(hop, place, file, time.perf_counter() - started, fetched)


def check_file(board: Board, manifest: Manifest, path: str | os.PathLike[str]) -> None:
    """Check that a file is the very delta of a manifest; of several parts, as they are joined.

    Raises:
        WrongVersion: the version has no delta.
        UntrustedDelta: the file, or what lies on the board, has other bytes than the manifest says.
        StoreError: one of them cannot be read.
    """
    if not manifest.objects:
        raise WrongVersion(
            "this version has no delta, only an anchor", version=manifest.version, path=board.url
        )
    try:
        # What is fetched is checked against the manifest, and the file against what is fetched.
        with open(path, "rb") as file, of_version(manifest.version):
            same = _Same(file)
            fetch_whole(board, Hop.of(manifest), same)
            if same.differs or file.read(1):
                raise UntrustedDelta(
                    f"this is not the delta that {board.url} has for its version: do not use it; "
                    "pull from the board",
                    path=os.fspath(path),
                )
    except OSError as error:
        raise StoreError(
            f"cannot be read: {error.strerror or error}", path=os.fspath(path)
        ) from error


class _Same:
    """A sink that compares what it is given with a file, from its beginning."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.differs = False

    def write(self, data: bytes) -> int:
        self.differs = self.differs or self._file.read(len(data)) != data
        return len(data)


def _text(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
