"""Pulling a board into a checkpoint directory that any loader can read.

A new directory is made from an anchor and the deltas after it, beside its final name. An existing
one is brought forward in place. ``deltawire.json`` in it says what it holds, and, while files
are being changed, that they are: then a crash leaves a mixture that the next pull repairs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoint import Checkpoint
from ..checkpoint.durable import (
    new_directory,
    new_file,
    read_small,
    store_error,
    sync_directory,
)
from ..digest import state_digest
from ..errors import DeltawireError, StoreError, TargetError, UntrustedDelta, WrongBase
from ..types import Record
from .anchor import PLAIN_NAME
from .hop import Held
from .manifest import Manifest, State
from .overtaken import retried
from .plan import Anchor, find_path
from .plan import Path as Steps
from .records import Introduced
from .steps import AdvanceStats, DeltaRun
from .transfer import Progress, fetch_object, of_version
from .watch import OnStale, Watch, held_from_json, held_to_json, keys_from_json

if TYPE_CHECKING:
    from .board import Board

#: Name of the file that says what a pulled directory holds.
STATE_NAME = "deltawire.json"
_MAX_STATE = 16 << 20
# As ``durable.temporary_beside`` names them.
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{12}\.tmp")


@dataclass(frozen=True)
class PullStats(Record):
    """What a pull did.

    Attributes:
        version: that the directory holds now.
        from_version: that it held before; None: new, or started anew from an anchor.
        anchor: version of the anchor that was loaded, or None.
        versions: deltas applied.
        bytes: fetched.
        changed: elements written by deltas, without those of repaired tiles.
        pull_seconds, stage_seconds, commit_seconds: of the deltas.
        state: 16 bytes, the state of the version.
        repaired: tiles that held neither old nor new bits, and were rebuilt.
    """

    version: int
    from_version: int | None
    anchor: int | None
    versions: int
    bytes: int
    changed: int
    pull_seconds: float
    stage_seconds: float
    commit_seconds: float
    state: State
    repaired: int = 0


@dataclass(frozen=True)
class _State:
    """Content of ``deltawire.json``.

    Attributes:
        version, digest, state: of the version that the directory holds, or held before
            ``pending``; None before the first.
        files: names that were written from the anchor.
        pending: the version on the way to which files are being changed.
        loading: whether that is the loading of an anchor.
        seen: the newest version that was seen of the board, where it is not the one held.
        keys: keys that were introduced on the board.
    """

    version: int | None = None
    digest: str | None = None
    state: bytes | None = None
    files: tuple[str, ...] = ()
    pending: int | None = None
    loading: bool = False
    seen: Held | None = None
    keys: tuple[Introduced, ...] = ()

    @property
    def held(self) -> Held | None:
        """What deltas can start from."""
        if self.version is None or self.loading:
            return None
        return Held(self.version, self.digest, self.state)

    @property
    def remembered(self) -> Held | None:
        """The newest version that was seen of the board."""
        if self.seen is not None or self.version is None:
            return self.seen
        return Held(self.version, self.digest, self.state)

    def write(self, directory: Path) -> None:
        """Replace the file, durably."""
        value = {
            "format": 1,
            "version": self.version,
            "manifest": self.digest,
            "state": None if self.state is None else self.state.hex(),
            "files": list(self.files),
            "pending": None
            if self.pending is None
            else {"version": self.pending, "anchor": self.loading},
            "seen": held_to_json(self.seen),
            "keys": self.keys,
        }
        with new_file(directory / STATE_NAME) as file:
            file.write(json.dumps(value, indent=2).encode() + b"\n")

    @classmethod
    def read(cls, directory: Path) -> _State | None:
        """Read the file; None if there is none.

        Raises:
            TargetError: it is not such a file.
        """
        path = directory / STATE_NAME
        raw = read_small(path, _MAX_STATE)
        if raw is None:
            return None
        try:
            value = json.loads(raw)
            if value["format"] != 1:
                raise ValueError("another format")
            pending = value["pending"]
            state = value["state"]
            result = cls(
                version=_optional(value["version"], int),
                digest=_optional(value["manifest"], str),
                state=None if state is None else bytes.fromhex(state),
                files=tuple(str(name) for name in value["files"]),
                pending=None if pending is None else int(pending["version"]),
                loading=pending is not None and bool(pending["anchor"]),
                # Directories of before these were kept have neither.
                seen=held_from_json(value.get("seen")),
                keys=tuple(keys_from_json(value.get("keys", []))),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise TargetError(
                f"not a state that this version of deltawire wrote ({error}); remove the "
                "directory, or pull into another one",
                path=str(path),
            ) from None
        for name in result.files:
            if not Path(name).parts or not all(map(PLAIN_NAME.fullmatch, Path(name).parts)):
                raise TargetError(f"names {name!r}, which is no plain path", path=str(path))
        if result.version is None and result.pending is None:
            raise TargetError("holds neither a version nor a pending one", path=str(path))
        return result


def _optional(value: Any, kind: type[Any]) -> Any:
    if value is not None and type(value) is not kind:
        raise TypeError(f"{value!r} where {kind.__name__} was expected")
    return value


def pull(
    board: Board,
    directory: str | os.PathLike[str],
    *,
    version: int | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    memory: str | os.PathLike[str] | None = None,
    max_age: float | None = None,
    on_stale: OnStale | None = None,
    repair: bool = True,
) -> PullStats:
    """Bring a checkpoint directory to a version, by default the newest.

    A crash at any point leaves a directory that the same call repairs; a new directory has its
    name only once it is complete.

    Args:
        directory: does not exist or is empty, or was pulled before.
        threads: for decoding; by default all cores.
        progress: called with the number of bytes just fetched.
        memory: file that keeps the newest version seen, besides the directory itself, so that it
            outlives the directory.
        max_age: seconds that the newest version may be old, where that is what is pulled.
        on_stale: called with a ``Stale`` where it is older, and the pull goes on; None:
            ``StaleBoard`` is raised.
        repair: where a few tiles of the weights hold neither the old nor the new bits, rebuild them
            from an anchor and deltas.

    Raises:
        WrongVersion: no such version, or the directory has passed it.
        WrongBase: the directory's weights were changed by something else, and cannot be repaired.
        BrokenChain, UntrustedDelta, CorruptDelta: the board does not continue what the
            directory holds, was altered, or is not signed by a trusted key; the directory is as
            before.
        RolledBack: the board ends before, or differs from, what was seen of it.
        StaleBoard: its newest version is older than ``max_age``.
        TargetError: the directory was not pulled from a board, or another pull is at work.
        StoreError: reading the board, or a full disk.
    """
    path = Path(os.path.abspath(directory))
    watch = Watch(board, memory, max_age, on_stale)
    with contextlib.ExitStack() as locks:
        if path.is_dir():
            with _locked(path):
                state = _State.read(path)
                if state is not None:
                    watch.recall(state.remembered, [*state.keys])
                    return _Pull(board, path, state, watch, threads, progress, repair).run(version)
        _remove_leftovers(path)
        with new_directory(path) as temporary:
            # Held until it has its final name, so that nobody takes it for a leftover.
            locks.enter_context(_locked(temporary))
            return _Pull(board, temporary, _State(), watch, threads, progress, repair).run(version)


@dataclass
class _Pull:
    """One pull into a directory that this process has locked."""

    board: Board
    directory: Path
    state: _State
    watch: Watch
    threads: int | None
    progress: Progress | None
    repair: bool
    fetched: int = 0
    repair_failed: bool = False
    done: list[AdvanceStats] = field(default_factory=list)

    def run(self, to: int | None) -> PullStats:
        """Choose a path and walk it; another one if a collection takes it away meanwhile."""
        self._remove_temporaries()
        # What a try has written is recorded in the directory, and the next goes on from it.
        return retried(self.board, lambda oldest: self._try(to, oldest), lambda: None)

    def _try(self, to: int | None, oldest: int) -> PullStats:
        held = self.state.held
        before = None if held is None else held.version
        steps = self._path(to, oldest)
        self.watch.see(steps.goal, newest=to is None)
        unfinished = self.state.pending is not None
        if unfinished and steps.anchor is None and not steps.deltas:
            # Half way to a version beyond the one that is wanted.
            steps = self._path(to, oldest, from_anchor=True)
        if steps.anchor is None:
            try:
                self._deltas(steps)
            except DeltawireError as error:
                torn = unfinished and not self.done
                if isinstance(error, WrongBase) and not torn:
                    raise WrongBase(
                        f"{error.message}; the directory's weights were changed by something "
                        "else: remove it, or pull into another one",
                        tensor=error.tensor,
                        version=error.version,
                        path=str(self.directory),
                    ) from error
                if not torn or not (isinstance(error, WrongBase) or self.repair_failed):
                    raise
                # A crash left tiles with neither their old nor their new bits, and they cannot be
                # repaired.
                steps = self._path(to, oldest, from_anchor=True)
        if steps.anchor is not None:
            before = None
            self._load(steps.anchor)
            self._deltas(steps)
        return self._stats(steps, before)

    def _path(self, to: int | None, oldest: int, *, from_anchor: bool = False) -> Steps:
        return find_path(
            self.board,
            self.state.held,
            to,
            from_anchor=from_anchor,
            seen=self.watch.seen,
            oldest=oldest,
        )

    def _remove_temporaries(self) -> None:
        """Remove files that a crash kept from getting their names. Nobody else writes here."""
        for entry in os.scandir(self.directory):
            if _TEMPORARY.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)

    def _deltas(self, steps: Steps) -> None:
        base = self.state.state
        if not steps.deltas or base is None:
            return
        with (
            Checkpoint.open(self.directory, writable=True) as checkpoint,
            DeltaRun(
                self.board,
                steps.deltas,
                base,
                checkpoint,
                threads=self.threads,
                spool=self.directory.parent,
                progress=self.progress,
                repair=self.repair,
            ) as run,
        ):
            try:
                run.stage()
                for hop in steps.deltas:
                    self._write(dataclasses.replace(self.state, pending=hop.version))
                    step = run.commit()
                    checkpoint.flush()
                    self._arrive(hop.manifest, self.state.files)
                    self.done.append(step)
                    run.stage()
            finally:
                self.repair_failed = run.repair_failed

    def _load(self, anchor: Anchor) -> None:
        """Fetch all files of an anchor, replacing those of the one before."""
        self._write(dataclasses.replace(self.state, pending=anchor.manifest.version, loading=True))
        names = []
        for item in anchor.files.files:
            name = anchor.files.relative(item)
            if name == STATE_NAME:
                raise UntrustedDelta(
                    f"the anchor holds a {STATE_NAME}, which belongs to pulled directories only",
                    version=anchor.manifest.version,
                    path=f"{self.board.url.rstrip('/')}/{item.path}",
                )
            target = self.directory / name
            if target.parent != self.directory:
                target.parent.mkdir(parents=True, exist_ok=True)
            with new_file(target) as file, of_version(anchor.manifest.version):
                fetch_object(self.board, item, file, self.progress)
            names.append(name)
            self.fetched += item.bytes
        for name in set(self.state.files) - set(names):
            (self.directory / name).unlink(missing_ok=True)
        sync_directory(self.directory)
        with Checkpoint.open(self.directory) as checkpoint:
            found = state_digest(checkpoint, threads=self.threads)
        if found != anchor.manifest.result_state:
            raise UntrustedDelta(
                f"the anchor's state is {found.hex()}, its manifest says "
                f"{anchor.manifest.result_state.hex()}; tell the publisher",
                version=anchor.manifest.version,
                path=f"{self.board.url.rstrip('/')}/{anchor.files.path}",
            )
        self._arrive(anchor.manifest, tuple(names))

    def _arrive(self, manifest: Manifest, files: tuple[str, ...]) -> None:
        self._write(_State(manifest.version, manifest.digest, manifest.result_state, files))

    def _write(self, state: _State) -> None:
        keys = tuple(self.board.records.introduced) or self.state.keys
        state = dataclasses.replace(state, seen=self.watch.seen, keys=keys)
        state.write(self.directory)
        self.state = state

    def _stats(self, steps: Steps, before: int | None) -> PullStats:
        return PullStats(
            version=steps.goal.version,
            from_version=before,
            anchor=None if steps.anchor is None else steps.anchor.manifest.version,
            versions=len(self.done),
            bytes=self.fetched + sum(step.bytes for step in self.done),
            changed=sum(step.changed for step in self.done),
            pull_seconds=sum(step.pull_seconds for step in self.done),
            stage_seconds=sum(step.stage_seconds for step in self.done),
            commit_seconds=sum(step.commit_seconds for step in self.done),
            state=steps.goal.result_state,
            repaired=sum(step.repaired for step in self.done),
        )


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Keep other pulls out of a directory; the lock goes with the process."""
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise store_error(error, directory, "cannot be opened") from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TargetError(
                "another pull is at work in this directory; wait for it", path=str(directory)
            ) from None
        except OSError as error:
            raise store_error(error, directory, "cannot be locked") from error
        yield
    finally:
        os.close(fd)


def _remove_leftovers(directory: Path) -> None:
    """Remove temporary directories of pulls into the same name that did not end."""
    prefix, suffix = f".{directory.name[:100]}.", ".tmp"
    try:
        names = os.listdir(directory.parent)
    except OSError:
        return  # the pull itself will say what is wrong
    for name in names:
        leftover = directory.parent / name
        # Only with a state in it: others may be anybody's, or just about to be locked.
        if name.startswith(prefix) and name.endswith(suffix) and (leftover / STATE_NAME).is_file():
            with contextlib.suppress(TargetError, StoreError), _locked(leftover):
                shutil.rmtree(leftover, ignore_errors=True)
