"""A version that several writers publish together: begun and committed by one of them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ..closing import Closing
from ..digest import combine
from ..errors import DeltawireError, LayoutMismatch, StoreError, WrongBase
from .attempt import Attempt, PublishStats
from .joining import Heading, Parts
from .manifest import Manifest
from .parts import PublishTicket, UploadedPart, in_order

if TYPE_CHECKING:
    from .board import Board

#: Commits a checked version: the parts by rank, the elements and bytes of all tensors.
Commit = Callable[[Attempt, list[UploadedPart]], object]


class PendingVersion(Closing):
    """A version whose parts are being uploaded. Use as a context manager.

    Nothing of it is visible before :meth:`commit`, and all of it after. Whatever ends it without a
    commit removes the parts.
    """

    def __init__(self, board: Board, head: Manifest, ticket: PublishTicket, commit: Commit) -> None:
        """Use :meth:`deltawire.Publisher.begin`."""
        self._board = board
        self._head = head
        self._ticket = ticket
        self._commit = commit
        self._attempt = Attempt(board.store, ticket.version, ticket.write_id)
        self._told: list[str] = []
        self._open = True

    @property
    def ticket(self) -> PublishTicket:
        """What every rank needs for :meth:`deltawire.Board.upload_part`."""
        return self._ticket

    @property
    def version(self) -> int:
        """The version to be."""
        return self._ticket.version

    @property
    def open(self) -> bool:
        """Whether it was neither committed nor given up."""
        return self._open

    def commit(self, parts: Iterable[UploadedPart]) -> PublishStats:
        """Publish the version, once every rank has uploaded its part.

        On any error no version was committed, and the parts are removed as by :meth:`abandon`.

        Args:
            parts: what ``upload_part`` returned, one of each rank, in any order.

        Raises:
            LayoutMismatch: a part is missing or there twice, or parts do not fit together: the
                ranks' shards must have every element of every tensor exactly once.
            WrongVersion: a part of another attempt.
            WrongBase: the ranks' bases together are not the head's bits.
            VersionConflict: another publisher was opened, or committed this version first.
            UntrustedDelta, StoreError: a part is not on the board as it was uploaded.
        """
        if not self._open:
            raise StoreError(
                "this version was committed or given up; begin another",
                version=self.version,
                path=self._board.url,
            )
        started = time.perf_counter()
        parts = list(parts)
        self._told = [path for part in parts for path in part.paths]
        try:
            ordered = in_order(self._ticket, parts)
            result = self._check_states(ordered)
            self._check_stored(ordered, result)
            self._commit(self._attempt, ordered)
        except BaseException as error:
            self._end(error)
            raise
        self._open = False
        return PublishStats(
            self.version,
            sum(part.bytes for part in ordered),
            sum(part.changed for part in ordered),
            sum(part.elements for part in ordered),
            sum(part.dense_bytes for part in ordered),
            max(part.seconds for part in ordered),
            time.perf_counter() - started,
            result,
        )

    def abandon(self) -> None:
        """Give the version up, and remove what was uploaded as far as the store tells and allows.

        A rank that is still uploading leaves its part, for :meth:`deltawire.Board.collect` with
        ``sweep``. Does nothing after a commit.
        """
        self._end(None)

    def close(self) -> None:
        """As :meth:`abandon`."""
        self._end(None)

    def _end(self, error: BaseException | None) -> None:
        if not self._open:
            return
        self._open = False
        paths = {path for path in self._told if self._ticket.owns(path)}
        with contextlib.suppress(DeltawireError):
            # Also those of ranks that have failed before they could tell.
            stored = self._board.store.list_all(f"objects/{self.version}")
            paths |= {path for path, _ in stored if self._ticket.owns(path)}
        self._attempt.paths = sorted(paths)
        self._attempt.undo(error)

    def _check_states(self, parts: list[UploadedPart]) -> bytes:
        """The bases must be the head, all of it and nothing twice; returns the result's state."""
        head = self._head
        held = sum(part.elements for part in parts)
        if head.elements and held != head.elements:
            raise LayoutMismatch(
                f"the ranks' shards have {held} elements, the head has {head.elements}; every "
                "element must be in the shards of exactly one rank: of tensors that several ranks "
                "have whole, one of them uploads its copy",
                version=self.version,
            )
        base = combine(*(part.base_sum for part in parts))
        if base != head.result_state:
            raise WrongBase(
                f"the ranks' bases add up to the state {base.hex()}, the head's is "
                f"{head.result_state.hex()}: some rank does not have the head's bits, or an "
                "element is in the shards of two ranks and another in none",
                version=head.version,
                path=self._board.url,
            )
        return combine(*(part.result_sum for part in parts))

    def _check_stored(self, parts: list[UploadedPart], result: bytes) -> None:
        """Every part must be there, and readers must be able to join them."""
        ticket = self._ticket
        with Parts(self._board, [part.ref for part in parts]) as stored:
            stored.fetch_ends()
            fit = stored.join(
                None,
                Heading(
                    ticket.run,
                    ticket.version,
                    ticket.base_version,
                    ticket.base_state,
                    result,
                    ticket.meta,
                ),
            )
        held = sum(part.elements for part in parts)
        changed = sum(part.changed for part in parts)
        if (fit.elements, fit.changed) != (held, changed):
            raise LayoutMismatch(
                f"the parts are of tensors with {fit.elements} elements and change {fit.changed}, "
                f"but the ranks say {held} and {changed}",
                version=self.version,
            )
