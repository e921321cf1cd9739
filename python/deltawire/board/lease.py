"""Leases: a reader's request that what it still needs is not collected."""

from __future__ import annotations

import contextlib
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import _native
from ..errors import DeltawireError, StoreError
from ..types import Record

if TYPE_CHECKING:
    from .board import Board

#: A lease is renewed by a poll once this share of it has passed.
_RENEW_AFTER = 1 / 3


@dataclass(frozen=True)
class Lease(Record):
    """A reader as the board knows it.

    Attributes:
        id: of the lease, drawn at random.
        name: the reader's own text.
        version: that it holds; None before its first.
        target: that it is on its way to; None while it holds what it wants.
        needs: oldest version whose records and objects it asks to keep.
        expires: when the lease ends, seconds since 1970; not more than a week after it was written.
        renewed: when it was written, by the reader's clock.
    """

    id: str
    name: str
    version: int | None
    target: int | None
    needs: int
    expires: float
    renewed: float


def read_leases(store: _native.BoardStore) -> list[Lease]:
    """All leases on a board, expired ones included, ordered by id.

    Raises:
        UntrustedDelta, UnsupportedDelta: an object among them that is no lease, or a newer one.
        StoreError: the store failed.
    """
    return [
        Lease(id, name, version, target, needs, expires_ms / 1000, time_ms / 1000)
        for id, name, version, target, needs, expires_ms, time_ms in _native.board_leases(store)
    ]


class LeaseHolder:
    """The lease of one reader."""

    def __init__(self, board: Board, name: str, seconds: float) -> None:
        """Nothing is written before :meth:`hold`.

        Args:
            name: free text, at most 256 bytes.
            seconds: for which each renewal is good.
        """
        if not seconds > 0:
            raise ValueError(f"a lease of {seconds} seconds")
        self._board = board
        self._name = name
        self._seconds = seconds
        self._id: str | None = None
        self._written = self._ends = 0.0
        self._what: tuple[int | None, int | None, int] | None = None

    @property
    def id(self) -> str | None:
        """Of the lease held; None where there is none."""
        return self._id

    def hold(self, *, needs: int, version: int | None, target: int | None) -> bool:
        """Write the lease.

        Returns:
            Whether it is a new one. Then a collection may already be at work on what is
            needed, and the board's boundary tells.

        Raises:
            StoreError: it cannot be written.
        """
        now = time.time()
        # An ended lease may be removed at any moment, also between this write and the next.
        fresh = self._id is None or now >= self._ends
        id = secrets.token_hex(16) if fresh or self._id is None else self._id
        ends = now + self._seconds
        try:
            _native.write_lease(
                self._board.store,
                id,
                self._name,
                version=version,
                target=target,
                needs=needs,
                expires_ms=round(ends * 1000),
                time_ms=round(now * 1000),
            )
        except StoreError as error:
            error.message += "; follow without a lease where the board cannot be written"
            error.args = (error.message,)
            raise
        if self._id is not None and self._id != id:
            with contextlib.suppress(DeltawireError):
                _native.remove_lease(self._board.store, self._id)
        self._id, self._written, self._ends = id, now, ends
        self._what = (version, target, needs)
        return fresh

    def renew(self, *, only_due: bool = False) -> None:
        """Write the same lease again, if there is one.

        Args:
            only_due: not before a third of it has passed.
        """
        if self._what is None:
            return
        if only_due and time.time() < self._written + self._seconds * _RENEW_AFTER:
            return
        version, target, needs = self._what
        self.hold(version=version, target=target, needs=needs)

    def release(self) -> None:
        """Remove the lease."""
        id, self._id, self._what = self._id, None, None
        if id is not None:
            _native.remove_lease(self._board.store, id)
