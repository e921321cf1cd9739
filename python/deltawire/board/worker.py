"""Work on versions that were just published, in a thread beside the publisher."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..errors import BrokenChain, DeltawireError, RolledBack, StoreError, WrongVersion
from .manifest import Manifest
from .pull import pull

if TYPE_CHECKING:
    from .board import Board


@dataclass(frozen=True)
class WorkerSettings:
    """How a thread works.

    Attributes:
        scratch: directory with room for one checkpoint; None: the system's temporary directory.
        threads: for folding, comparing and encoding.
        close: whether closing waits for work that has begun, or drops it.
    """

    scratch: str | os.PathLike[str] | None = None
    threads: int = 1
    close: Literal["wait", "cancel"] = "wait"


class Cancelled(Exception):
    """Ends the thread's work between two pieces of I/O."""


class Worker(ABC):
    """A thread that adds something to versions. While it works, only the newest waits."""

    #: What is added, for errors.
    what: str
    #: The option that names the scratch directory, for errors.
    scratch_option: str

    def __init__(self, board: Board, settings: WorkerSettings) -> None:
        """The thread starts with the first version that it is told of.

        Args:
            board: that is read; a signing publisher's trusts keys, for what is added is signed.
        """
        self._board = board
        self._settings = settings
        self._changed = threading.Condition()
        self._waiting: Manifest | None = None
        self._error: DeltawireError | None = None
        self._closing = False
        self._cancelled = threading.Event()
        self._thread: threading.Thread | None = None
        self._scratch: Path | None = None

    @abstractmethod
    def _wants(self, manifest: Manifest) -> bool:
        """Whether a version may be of interest, without looking at the board."""

    @abstractmethod
    def _work(self, manifest: Manifest) -> None:
        """Do what is due for a version."""

    @abstractmethod
    def _is_done(self, manifest: Manifest) -> bool:
        """Whether somebody else has done it."""

    @abstractmethod
    def _oldest(self, manifest: Manifest) -> int:
        """The oldest version that the work needs."""

    def committed(self, manifest: Manifest) -> None:
        """Take note of a new version; never waits for work."""
        if not self._wants(manifest):
            return
        with self._changed:
            self._waiting = manifest
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=f"deltawire-{self.what}", daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def check(self) -> None:
        """Raise the error of work that failed, once.

        Raises:
            DeltawireError: of the class that the work failed with, often StoreError. No delta
                is concerned, and a later version tries again.
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
                self._work(manifest)
            except Cancelled:
                return
            except Exception as error:  # noqa: BLE001 - told by the next call, see `check`
                if self._is_superseded(manifest, error):
                    continue
                with self._changed:
                    self._error = self._explained(manifest, error)

    def _folded(self, version: int) -> Path:
        """A checkpoint directory that holds a version, brought forward from the last such one."""
        if self._scratch is None:
            try:
                name = tempfile.mkdtemp(prefix="deltawire-", dir=self._settings.scratch)
            except OSError as error:
                place = self._settings.scratch or tempfile.gettempdir()
                raise StoreError(
                    f"no directory for a checkpoint can be made: {error.strerror or error}; name "
                    f"another with {self.scratch_option}",
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
            raise Cancelled

    def _is_superseded(self, manifest: Manifest, error: Exception) -> bool:
        """Whether there was nothing left to do: another did it, or the version went."""
        if isinstance(error, RolledBack):
            return False
        try:
            # A conflict too: the losing one of two.
            if self._is_done(manifest):
                return True
            if isinstance(error, WrongVersion | BrokenChain | StoreError):
                boundary = self._board.boundary()
                return boundary is not None and boundary > self._oldest(manifest)
        except DeltawireError:
            pass
        return False

    def _explained(self, manifest: Manifest, error: Exception) -> DeltawireError:
        message = error.message if isinstance(error, DeltawireError) else f"{error!r}"
        kind = type(error) if isinstance(error, DeltawireError) else StoreError
        explained = kind(
            f"the {self.what} of version {manifest.version}, made in the background, failed: "
            f"{message}. No delta is concerned; publish again to go on, a later version will try "
            "again",
            version=manifest.version,
            path=getattr(error, "path", None) or self._board.url,
        )
        explained.__cause__ = error
        return explained
