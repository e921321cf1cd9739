"""Readers that a collection overtakes choose another way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ..errors import BrokenChain, DeltawireError, RolledBack, StoreError, WrongVersion

if TYPE_CHECKING:
    from .board import Board

_T = TypeVar("_T")
#: Collections that may overtake one step of a reader.
_TRIES = 4


def retried(board: Board, step: Callable[[int], _T], undo: Callable[[], None]) -> _T:
    """Run ``step``, again if it failed because the boundary rose meanwhile.

    A collection that takes away what a reader has just chosen has drawn its boundary before; an
    error while the boundary stands still has other reasons. The boundary is looked for only after
    an error, and once before the next try.

    Args:
        step: gets the oldest version that it may rely on; leaves the target as it was if it fails,
            or such that it can be run again.
        undo: drops what a failed step left.
    """
    seen = 0
    for left in reversed(range(_TRIES)):
        try:
            return step(seen)
        except (BrokenChain, StoreError, WrongVersion) as error:
            undo()
            # No collection makes a board go back.
            if not left or isinstance(error, RolledBack):
                raise
            boundary = _boundary_after(board, error)
            if boundary is None or boundary <= seen:
                raise
            seen = boundary
    raise AssertionError("unreachable")


def _boundary_after(board: Board, error: DeltawireError) -> int | None:
    """The boundary, if what the error is about may lie below it."""
    try:
        boundary = board.boundary()
    except DeltawireError:
        raise error from None
    if boundary is None or (error.version is not None and error.version >= boundary):
        return None
    return boundary
