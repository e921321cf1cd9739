"""Anchors made in the background while deltas are published.

Nothing is asked of the trainer: the thread folds the board's own anchor and deltas into a directory
on disk, with the code of ``pull``, whose result is proven to be the version's bits, and publishes
that directory as the version's anchor. The directory is kept between anchors, so that each costs
the deltas since the last, one upload, and one checkpoint of disk space.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..errors import (
    BrokenChain,
    DeltawireError,
    RolledBack,
    StoreError,
    VersionConflict,
    WrongVersion,
)
from .manifest import Manifest
from .plan import find_anchor
from .pull import pull

if TYPE_CHECKING:
    from .board import Board

Source = Callable[[int], str | os.PathLike[str]]
Upload = Callable[[int, str | os.PathLike[str], int, Callable[[int], object]], object]


@dataclass(frozen=True)
class AnchorSettings:
    """When and how anchors are made; see :meth:`deltawire.Board.publisher`."""

    every: int | None = None
    outweighed: bool = False
    source: Source | None = None
    scratch: str | os.PathLike[str] | None = None
    threads: int = 1
    close: Literal["wait", "cancel"] = "wait"

    def __post_init__(self) -> None:
        if self.every is not None and self.every < 1:
            raise ValueError(f"anchor_every={self.every}: give a number of versions")
        if self.close not in ("wait", "cancel"):
            raise ValueError(f"anchor_close={self.close!r}: wait or cancel")

    @property
    def wanted(self) -> bool:
        """Whether any anchor is to be made."""
        return self.every is not None or self.outweighed


class _Cancelled(Exception):
    """Ends the thread's work between two pieces of I/O."""


class BackgroundAnchors:
    """A thread that makes anchors of versions that were just published."""

    def __init__(self, board: Board, settings: AnchorSettings, upload: Upload) -> None:
        """The thread starts with the first version that it is told of.

        Args:
            board: that is folded; a signing publisher's trusts keys, for the anchor is signed.
            upload: publishes a checkpoint as the anchor of a version that exists; gets the
                version, the path, the number of threads and a progress callback.
        """
        self._board = board
        self._settings = settings
        self._upload = upload
        self._changed = threading.Condition()
        self._waiting: Manifest | None = None
        self._error: DeltawireError | None = None
        self._closing = False
        self._cancelled = threading.Event()
        self._thread: threading.Thread | None = None
        self._scratch: Path | None = None
        # Newest anchor known, and the deltas after it.
        self._last: int | None = None
        self._bytes = 0
        self._counted: int | None = None

    def committed(self, manifest: Manifest) -> None:
        """Take note of a new version; never waits for an anchor."""
        with self._changed:
            self._waiting = manifest
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="deltawire-anchors", daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def check(self) -> None:
        """Raise the error of an anchor that failed, once.

        Raises:
            DeltawireError: of the class that the anchor failed with, often StoreError. No delta
                is concerned, and the next version tries again.
        """
        with self._changed:
            error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self, *, cancel: bool | None = None) -> None:
        """End the thread, after its work or, with ``cancel``, in the middle of it.

        Args:
            cancel: by default as the settings say.
        """
        if cancel is None:
            cancel = self._settings.close == "cancel"
        with self._changed:
            self._closing = True
            if cancel:
                self._waiting = None
                self._cancelled.set()
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._waiting is None and not self._closing:
                    self._changed.wait()
                manifest, self._waiting = self._waiting, None
            if manifest is None:
                return
            try:
                if self._is_due(manifest):
                    self._make(manifest)
            except _Cancelled:
                return
            except Exception as error:  # noqa: BLE001 - told by the next call, see `check`
                if self._is_superseded(manifest, error):
                    continue
                with self._changed:
                    self._error = self._explained(manifest, error)

    def _is_due(self, manifest: Manifest) -> bool:
        version = manifest.version
        anchors = [self._last]
        if manifest.anchor is not None:
            anchors.append(version)
        if manifest.last_anchor is not None:
            anchors.append(manifest.last_anchor.version)
        last = max((anchor for anchor in anchors if anchor is not None), default=None)
        if last is None:
            return True
        if last != self._last:
            self._last, self._bytes, self._counted = last, 0, last
        settings = self._settings
        if settings.every is not None and version - last >= settings.every:
            return True
        return settings.outweighed and self._chain_bytes(version) > manifest.dense_bytes

    def _chain_bytes(self, version: int) -> int:
        """Bytes of the deltas after the last anchor; only new manifests are read."""
        assert self._counted is not None
        if version > self._counted:
            try:
                manifests = self._board.records.chain(self._counted + 1, version, None)
            except BrokenChain:
                manifests = []  # collected: there is a newer anchor than the one that was known
            self._bytes += sum(manifest.bytes for manifest in manifests)
            self._counted = version
        return self._bytes

    def _make(self, manifest: Manifest) -> None:
        version = manifest.version
        own = self._board.manifest(version)
        if find_anchor(self._board, own, own) is None:
            path = self._checkpoint(version)
            self._upload(version, path, self._settings.threads, self._progress)
        self._last, self._bytes, self._counted = version, 0, version

    def _checkpoint(self, version: int) -> str | os.PathLike[str]:
        if self._settings.source is not None:
            return self._settings.source(version)
        if self._scratch is None:
            try:
                name = tempfile.mkdtemp(prefix="deltawire-anchor-", dir=self._settings.scratch)
            except OSError as error:
                place = self._settings.scratch or tempfile.gettempdir()
                raise StoreError(
                    f"no directory for an anchor can be made: {error.strerror or error}; name "
                    "another with anchor_scratch",
                    path=os.fspath(place),
                ) from error
            self._scratch = Path(name)
        directory = self._scratch / "checkpoint"
        for attempt in range(2):
            try:
                pull(
                    self._board,
                    directory,
                    version=version,
                    threads=self._settings.threads,
                    progress=self._progress,
                )
                break
            except RolledBack:
                raise  # what lies there remembers more than the board shows
            except DeltawireError:
                # What lies there is only ours; without it the next try starts from an anchor.
                existed = directory.exists()
                shutil.rmtree(directory, ignore_errors=True)
                if attempt or not existed:
                    raise
        return directory

    def _progress(self, _: int) -> None:
        if self._cancelled.is_set():
            raise _Cancelled

    def _is_superseded(self, manifest: Manifest, error: Exception) -> bool:
        """Whether there was nothing left to do: another made the anchor, or the version went."""
        if isinstance(error, RolledBack):
            return False
        try:
            if isinstance(error, VersionConflict):
                own = self._board.find_manifest(manifest.version)
                return own is not None and find_anchor(self._board, own, own) is not None
            if isinstance(error, WrongVersion | BrokenChain | StoreError):
                boundary = self._board.boundary()
                return boundary is not None and boundary > manifest.version
        except DeltawireError:
            pass
        return False

    def _explained(self, manifest: Manifest, error: Exception) -> DeltawireError:
        message = error.message if isinstance(error, DeltawireError) else f"{error!r}"
        kind = type(error) if isinstance(error, DeltawireError) else StoreError
        explained = kind(
            f"the anchor of version {manifest.version}, made in the background, failed: {message}. "
            "No delta is concerned; publish again to go on, a later version will try again",
            version=manifest.version,
            path=getattr(error, "path", None) or self._board.url,
        )
        explained.__cause__ = error
        return explained
