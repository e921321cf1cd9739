"""Following a board with tensors in memory, changed in place."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..closing import Closing
from ..digest import state_digest
from ..errors import DeltawireError, TargetError, WrongBase
from .anchor import AnchorLoader
from .hop import Held
from .lease import LeaseHolder
from .manifest import Manifest
from .overtaken import retried
from .plan import Path, find_path
from .ranged import is_partial
from .steps import AdvanceStats, DeltaRun
from .transfer import Progress
from .watch import OnStale, Watch

if TYPE_CHECKING:
    from .board import Board


class Follower(Closing):
    """Tensors that follow a board.

    ``advance`` does all; ``stage`` and ``commit`` are its halves, for a target that keeps
    serving while the next version is fetched and checked. With a lease, close it at the end, or use
    it as a context manager.
    """

    def __init__(
        self,
        board: Board,
        target: Mapping[str, Any],
        *,
        version: int | None = None,
        state: bytes | None = None,
        threads: int | None = None,
        spool: str | os.PathLike[str] | None = None,
        memory: str | os.PathLike[str] | None = None,
        max_age: float | None = None,
        on_stale: OnStale | None = None,
        lease: str | None = None,
        lease_seconds: float = 900.0,
        partial: bool = False,
        repair: bool = True,
    ) -> None:
        """Use :meth:`deltawire.Board.follower`.

        Raises:
            WrongBase: ``state`` is not that of ``version``.
            RolledBack: that version is not the one remembered.
            UntrustedDelta: no trusted key signed it.
        """
        self._board = board
        self._target = target
        self._threads = threads
        self._spool = spool
        self._partial = partial or is_partial(target)
        self._repair = repair
        self._shard_state: bytes | None = None
        self._loader: AnchorLoader | None = None
        self._run: DeltaRun | None = None
        self._watch = Watch(board, memory, max_age, on_stale)
        self._lease = None if lease is None else LeaseHolder(board, lease, lease_seconds)
        self._held = None if version is None else Held(version, None, state)
        own = None if version is None else board.find_manifest(version)
        if own is not None:
            if state is not None and state != own.result_state:
                raise WrongBase(
                    f"the target's state is {state.hex()}, but this version's is "
                    f"{own.result_state.hex()}; follow without a version to load an anchor",
                    version=version,
                    path=board.url,
                )
            self._watch.recall(Held(own.version, own.digest, own.result_state), [])
            self._watch.see(own, newest=False)
            self._arrive(own)

    @property
    def version(self) -> int | None:
        """The version that the target holds; None: unknown contents."""
        return None if self._held is None else self._held.version

    @property
    def state(self) -> bytes | None:
        """The state digest of that version, 16 bytes; None: not known."""
        return None if self._held is None else self._held.state

    @property
    def seen(self) -> int | None:
        """The newest version that was seen of the board; it must not go back behind it."""
        return None if self._watch.seen is None else self._watch.seen.version

    @property
    def target(self) -> Mapping[str, Any]:
        """The tensors that are changed."""
        return self._target

    def close(self) -> None:
        """Drop what was staged, and give the lease back. The target stays as it is."""
        self.discard()
        if self._lease is not None:
            with contextlib.suppress(DeltawireError):  # it ends by itself
                self._lease.release()

    def renew(self) -> None:
        """Renew the lease now.

        Polls do so by themselves; this is for a reader that does not poll for long, in the
        middle of an upload to devices, say.

        Raises:
            StoreError: the lease cannot be written.
        """
        if self._lease is not None:
            self._lease.renew()

    def advance(self, to: int | None = None) -> list[AdvanceStats]:
        """Bring the target to version ``to``, by default the newest.

        Every manifest, delta and anchor of the way is fetched and checked before the first
        byte of the target changes. A failure before a step is written leaves target and
        version as they were; steps written before it stay.

        Returns:
            One entry for each version (or anchor) applied; empty if the target holds ``to``.

        Raises:
            WrongVersion: ``to`` does not exist, or was passed.
            BrokenChain: the manifests do not link up from the version held.
            RolledBack: the board ends before, or differs from, what was seen of it.
            StaleBoard: its newest version is older than ``max_age``.
            UntrustedDelta, CorruptDelta: an object was altered; nothing was changed.
            WrongBase: the target does not hold the bits of its version, and cannot be repaired.
            LayoutMismatch: names, dtypes or shapes disagree.
            TargetTorn: writing failed half way; advance again.
        """
        self.stage(to)
        return self.commit()

    def stage(self, to: int | None = None, *, progress: Progress | None = None) -> list[int]:
        """Fetch and check all that is needed for version ``to``; the target is only read.

        Replaces what was staged before. Errors are those of :meth:`advance`.

        Args:
            progress: called with the number of bytes of deltas just fetched.

        Returns:
            The versions that :meth:`commit` will write.
        """
        self.discard()
        held, seen = self._held, self._watch.seen
        newest = held if held is None or seen is None or seen.version <= held.version else None
        if to is None and newest is not None and self._board.head() == newest.version:
            self._keep_lease(newest.version)
            self._watch.check_age()
            return []  # what most polls find
        return retried(self._board, lambda oldest: self._stage(to, oldest, progress), self.discard)

    def _stage(self, to: int | None, oldest: int, progress: Progress | None) -> list[int]:
        # The lease comes first: an old head is no reason to lose what is held.
        path = self._leased(self._find(to, oldest), to)
        self._watch.see(path.goal, newest=to is None)
        base = self.state
        loader = None
        if path.anchor is not None:
            loader = AnchorLoader(self._board, path.anchor, self._target, partial=self._partial)
            loader.check()
            base = path.anchor.manifest.result_state
        run = None
        if path.deltas and base is not None:
            run = DeltaRun(
                self._board,
                path.deltas,
                base,
                self._target,
                threads=self._threads,
                spool=self._spool,
                partial=self._partial,
                progress=progress,
                repair=self._repair,
            )
            try:
                if loader is None:
                    run.stage()
            except BaseException:
                run.close()
                raise
        self._loader, self._run = loader, run
        versions = [] if loader is None else [loader.manifest.version]
        return versions + [hop.version for hop in path.deltas]

    def commit(self) -> list[AdvanceStats]:
        """Write what :meth:`stage` has prepared; nothing if nothing is."""
        loader, run = self._loader, self._run
        done = []
        try:
            if loader is not None:
                done.append(self._load(loader))
            if run is not None:
                for hop in run.waiting:
                    done.append(run.commit())
                    self._arrive(hop.manifest)
                    self._shard_state = run.shard_state
        finally:
            self.discard()
            moved = loader is not None or run is not None
            if moved and self._lease is not None and self._held is not None:
                held = self._held.version
                with contextlib.suppress(DeltawireError):  # the older lease protects more
                    self._lease.hold(needs=held, version=held, target=None)
        return done

    def discard(self) -> None:
        """Drop what was staged."""
        if self._run is not None:
            self._run.close()
        self._loader = self._run = None

    def prove(self) -> bytes:
        """Compute the target's state in full, and compare it with the version's.

        A rank's part is compared with what it was when it was written last. Whether the parts of
        all ranks add up to the version's state is for them to see: ``combine`` what they return.

        Returns:
            The state, 16 bytes.

        Raises:
            WrongBase: the target holds other bits.
            TargetError: it is not known what the target should hold.
        """
        if self.state is None:
            what = "no version" if self.version is None else "a version whose state is not known"
            raise TargetError(f"the follower holds {what}; advance first", version=self.version)
        found = state_digest(self._target, threads=self._threads)
        wanted = self._shard_state if self._partial else self.state
        if wanted is not None and found != wanted:
            raise WrongBase(
                f"the target's state is {found.hex()}, the version's {wanted.hex()}: it was "
                "changed by something else; follow without a version to load an anchor",
                version=self.version,
                path=self._board.url,
            )
        return found

    def _keep_lease(self, held: int) -> None:
        if self._lease is None:
            return
        if self._lease.id is None:
            self._lease.hold(needs=held, version=held, target=None)
        else:
            self._lease.renew(only_due=True)

    def _find(self, to: int | None, oldest: int) -> Path:
        return find_path(self._board, self._held, to, seen=self._watch.seen, oldest=oldest)

    def _leased(self, path: Path, to: int | None) -> Path:
        """Write a lease on all that the path needs; may choose another path."""
        if self._lease is None:
            return path
        held = None if self._held is None else self._held.version
        if self._hold(self._lease, path, held) and path.first is not None:
            # A collection that began before the lease was there may be at work below its boundary.
            boundary = self._board.boundary()
            if boundary is not None and path.first < boundary:
                path = self._find(to, boundary)
                self._hold(self._lease, path, held)
        return path

    def _hold(self, lease: LeaseHolder, path: Path, held: int | None) -> bool:
        needs = path.goal.version if held is None else held
        if path.anchor is not None:
            needs = path.anchor.manifest.version
        return lease.hold(needs=needs, version=held, target=path.goal.version)

    def _load(self, loader: AnchorLoader) -> AdvanceStats:
        # From here on the target holds no version, until all of the anchor is in it.
        self._held = None
        started = time.perf_counter()
        self._shard_state = loader.load(self._threads)
        committed = time.perf_counter() - started
        self._arrive(loader.manifest)
        return AdvanceStats(
            loader.manifest.version,
            loader.bytes,
            loader.elements,
            loader.check_seconds,
            0.0,
            committed,
            loader.manifest.result_state,
            anchor=True,
        )

    def _arrive(self, manifest: Manifest) -> None:
        self._held = Held(manifest.version, manifest.digest, manifest.result_state)
