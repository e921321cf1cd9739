"""What AdamW's steps do to elements of one exponent: parameters of a class by its distance."""

from __future__ import annotations

RANKS = (
    0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4,
    4, 5, 5, 6, 6, 7, 8, 8, 9, 10, 11, 11, 12, 13, 14, 15,
)  # fmt: skip
SIZES = (
    34, 33, 32, 31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 17, 16, 15, 14, 13, 12,
    11, 11, 10, 9, 8, 8, 7, 6, 5, 5, 5, 4, 4, 3, 3, 3, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1,
    1,
)  # fmt: skip


def rank_law(distance: int) -> int:
    """The parameter of the ranks."""
    if distance < -32:
        return 0
    return RANKS[distance + 32] if distance <= 15 else min(distance, 191)


def size_law(distance: int) -> int:
    """One more than the parameter of the sizes; 0: all steps are 1 or -1."""
    if distance < -32:
        return min(2 - distance, 192)
    return SIZES[distance + 32] if distance <= 23 else 0
