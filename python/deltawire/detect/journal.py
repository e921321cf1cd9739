"""Which elements of a tensor may have changed since the base, and what they were."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .step import CERTAIN

Bits = npt.NDArray[np.unsignedinteger]


@dataclass(frozen=True)
class Found:
    """Elements that may have changed.

    Attributes:
        positions: int64, ascending, flat in what this rank holds of the tensor.
        sure: uint8, ``CERTAIN``, ``EITHER`` or ``UNKNOWN``.
        old, other: bits of the served dtype before, unsigned integers of its width.
    """

    positions: npt.NDArray[np.int64]
    sure: npt.NDArray[np.uint8]
    old: Bits
    other: Bits

    @classmethod
    def certain(cls, positions: npt.NDArray[np.int64], old: Bits) -> Found:
        """Elements whose values before are known."""
        return cls(positions, np.full(len(positions), CERTAIN, np.uint8), old, old)

    def __len__(self) -> int:
        return len(self.positions)


def nothing(width: int) -> Found:
    """No element, of a dtype of ``width`` bytes."""
    old = np.empty(0, f"u{width}")
    return Found(np.empty(0, np.int64), np.empty(0, np.uint8), old, old)


class Journal:
    """Changes of one tensor over any number of steps. O(changes) of memory."""

    def __init__(self, width: int) -> None:
        self._width = width
        self.clear()

    def clear(self) -> None:
        """Begin anew: what the tensor holds now is the base."""
        self.found = nothing(self._width)
        #: Why changes may be missing, if they may.
        self.lost: str | None = None

    def lose(self, why: str) -> None:
        """Note that changes since the base are not known."""
        if self.lost is None:
            self.lost = why

    def add(self, later: Found) -> None:
        """Add the changes of a step. What an element was first is what it was in the base."""
        if not len(later):
            return
        first = self.found
        if not len(first):
            self.found = later
            return
        at = np.searchsorted(first.positions, later.positions)
        known = at < len(first)
        known[known] = first.positions[at[known]] == later.positions[known]
        fresh = ~known
        if not fresh.any():
            return
        order = np.argsort(np.concatenate([first.positions, later.positions[fresh]]), kind="stable")

        def merged(a: npt.NDArray, b: npt.NDArray) -> npt.NDArray:  # type: ignore[type-arg]
            return np.concatenate([a, b[fresh]])[order]

        self.found = Found(
            merged(first.positions, later.positions),
            merged(first.sure, later.sure),
            merged(first.old, later.old),
            merged(first.other, later.other),
        )
