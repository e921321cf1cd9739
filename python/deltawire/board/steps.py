"""Deltas on their way into a target: fetched, checked, staged, committed, one after the other."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..apply import Staged, Tile, stage
from ..closing import Closing
from ..errors import DeltawireError, WrongBase
from ..types import Record
from .fetch import FetchedDelta, fetch_deltas
from .hop import Hop
from .manifest import State
from .repair import Rebuilt, rebuild
from .transfer import Progress

if TYPE_CHECKING:
    from .board import Board


@dataclass(frozen=True)
class AdvanceStats(Record):
    """One step of a follower.

    Attributes:
        version: that the target holds now.
        bytes: fetched for the step, for repairs too; of an anchor those that were checked, which
            are then read once more.
        changed: elements written, without those of repaired tiles.
        pull_seconds: fetching.
        stage_seconds: reading, checking and decoding, while the target can still be used.
        commit_seconds: writing; the pause.
        state: 16 bytes, the target's state now.
        anchor: whether the whole checkpoint was loaded.
        repaired: tiles that held neither the old nor the new bits, and were rebuilt.
    """

    version: int
    bytes: int
    changed: int
    pull_seconds: float
    stage_seconds: float
    commit_seconds: float
    state: State
    anchor: bool = False
    repaired: int = 0


class DeltaRun(Closing):
    """Deltas that follow one another, fetched and checked. Use as a context manager."""

    def __init__(
        self,
        board: Board,
        hops: Sequence[Hop],
        base: bytes,
        target: Mapping[str, Any],
        *,
        threads: int | None = None,
        spool: str | os.PathLike[str] | None = None,
        progress: Progress | None = None,
        partial: bool = False,
        repair: bool = False,
    ) -> None:
        """Fetch and check all deltas; the target is not looked at.

        Args:
            hops: the deltas, each starting from the version that the one before leads to.
            base: 16 bytes, the state that the first starts from.
            target: name -> tensor, changed in place by :meth:`commit`.
            threads: for decoding; by default all cores.
            spool: directory for the deltas; by default the system's.
            progress: called with the number of bytes just fetched.
            partial: the target is one rank's part of the tensors; only that is fetched and changed.
            repair: rebuild tiles of the target that are damaged, see ``repair.py``.

        Raises:
            UntrustedDelta, CorruptDelta, UnsupportedDelta, LimitExceeded, StoreError.
        """
        self._board = board
        self._target = target
        self._threads = threads
        self._partial = partial
        self._spool = spool
        self._progress = progress
        self._repair = repair
        self._rebuilt: Rebuilt | None = None
        #: Whether an error came from a repair, and not from the deltas or the target.
        self.repair_failed = False
        #: Of a part: its state after the last commit, which adds up over the ranks.
        self.shard_state: bytes | None = None
        self._waiting = fetch_deltas(
            board,
            hops,
            base,
            spool=spool,
            progress=progress,
            only_for=target if partial else None,
        )
        self._staged: tuple[Staged, float] | None = None
        #: State that the last commit is proven to have led to; the next delta starts from it.
        self._proven: bytes | None = None

    @property
    def waiting(self) -> list[Hop]:
        """The deltas that are not committed yet."""
        return [delta.hop for delta in self._waiting]

    def stage(self) -> None:
        """Prepare the next delta, if there is one: all is checked, and nothing written.

        Raises:
            WrongBase: the target does not hold the base, and was not to be, or cannot be, repaired.
            UntrustedDelta, StoreError: what a repair needs cannot be used, or read.
            LayoutMismatch, TargetError: the target does not fit, or cannot be written.
        """
        if self._staged is not None or not self._waiting:
            return
        delta = self._waiting[0]
        started = time.perf_counter()
        try:
            staged = self._stage(delta, ())
        except WrongBase:
            self._rebuilt = self._rebuild(delta) if self._repair else None
            if self._rebuilt is None:
                raise
            # Of damage elsewhere it is known only now.
            staged = self._stage(delta, self._rebuilt.tiles)
        self._staged = staged, time.perf_counter() - started

    def _stage(self, delta: FetchedDelta, replaced: Sequence[Tile]) -> Staged:
        with delta.blamed():
            return stage(
                delta.path,
                self._target,
                base_state=None if replaced else self._proven,
                expect_result=delta.hop.result_state,
                threads=self._threads,
                partial=self._partial,
                replaced=replaced,
            )

    def _rebuild(self, delta: FetchedDelta) -> Rebuilt | None:
        try:
            return rebuild(
                self._board,
                delta,
                self._target,
                partial=self._partial,
                threads=self._threads,
                spool=self._spool,
                progress=self._progress,
            )
        except DeltawireError:
            self.repair_failed = True
            raise

    def commit(self) -> AdvanceStats:
        """Write the next delta.

        Raises:
            TargetTorn: writing failed half way; the same delta may be applied again.
        """
        self.stage()
        assert self._staged is not None
        (staged, stage_seconds), self._staged = self._staged, None
        rebuilt, self._rebuilt = self._rebuilt, None
        delta: FetchedDelta = self._waiting[0]
        started = time.perf_counter()
        # Of a target that is torn nothing is proven.
        self._proven = None
        with delta.blamed():
            self._proven = staged.commit().result_state
        if self._partial and staged.shard_states is not None:
            self.shard_state = staged.shard_states[1]
        commit_seconds = time.perf_counter() - started
        del self._waiting[0]
        delta.close()
        return AdvanceStats(
            delta.hop.version,
            delta.fetched + (0 if rebuilt is None else rebuilt.fetched),
            staged.changed,
            delta.pull_seconds,
            stage_seconds,
            commit_seconds,
            delta.hop.result_state,
            repaired=0 if rebuilt is None else len(rebuilt.tiles),
        )

    def close(self) -> None:
        """Drop what was fetched."""
        self._staged = self._rebuilt = None
        for delta in self._waiting:
            delta.close()
        self._waiting = []
