"""``Partition``: the boundary between who scans dense buffers and who packs bytes.

A scanner (CPU SIMD, or a GPU kernel) turns two states of a tile into a partition, the packer turns
that into a chunk and touches O(changes) only. On the other side the unpacker gives the partition
back, and whoever holds the base finds the elements. ``spec/format-v1.md`` defines every field.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import LayoutMismatch

_STEPS = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}


@dataclass(frozen=True, eq=False)
class Partition:
    """Changed elements of one tile, grouped by the exponent that they have in the base.

    An element with exponent field ``e`` in a row of group ``g`` is in class
    ``min(max(top - e, 0), classes - 1)`` of that group. Its *rank* is the number of elements of its
    class that precede it in the tile, row-major. With one group and one class, ranks are positions.

    Attributes:
        tile: number of the tile in its tensor.
        top: exponents from here on up are class 0; 0 with one group and one class.
        rows: uint8 ``[tile rows]``, group of each row; None with one group.
        counts: uint32 ``[groups, classes]``, changes of each class; 1 to 8 groups, 1 to 16 classes.
        ranks: uint32 ``[changes]``, class after class, group after group, ascending in each.
        steps: int8, int16, int32 or int64 by the element's width, ``[changes]`` in the order of the
            ranks: ULP steps in ordered-integer space modulo 2^bits, none zero.
        result: lane 0 of the tile's state digest after the change (``spec/digest-v1.md``).
    """

    tile: int
    top: int
    rows: npt.NDArray[np.uint8] | None
    counts: npt.NDArray[np.uint32]
    ranks: npt.NDArray[np.uint32]
    steps: npt.NDArray[np.signedinteger[Any]]
    result: int

    @property
    def changes(self) -> int:
        """Number of changed elements."""
        return len(self.ranks)


def from_parts(tile: int, parts: Any, itemsize: int, result: int) -> Partition:
    """From what the core gives: top, classes, and the arrays as bytes."""
    top, classes, rows, counts, ranks, steps = parts
    return Partition(
        tile=tile,
        top=top,
        rows=np.frombuffer(rows, np.uint8) if rows else None,
        counts=np.frombuffer(counts, np.uint32).reshape(-1, classes),
        ranks=np.frombuffer(ranks, np.uint32),
        steps=np.frombuffer(steps, _STEPS[itemsize]),
        result=result,
    )


def to_parts(partition: Partition, itemsize: int, tensor: str) -> tuple[Any, ...]:
    """What the core takes; it checks that the arrays fit together and fit the tile."""
    if partition.steps.dtype != _STEPS[itemsize] or partition.counts.ndim != 2:
        raise LayoutMismatch(
            f"steps of {itemsize}-byte elements are {np.dtype(_STEPS[itemsize])}, not "
            f"{partition.steps.dtype}, and counts have two dimensions",
            tensor=tensor,
        )
    rows = b"" if partition.rows is None else np.ascontiguousarray(partition.rows, np.uint8)
    return (
        partition.top,
        partition.counts.shape[1],
        bytes(rows),
        np.ascontiguousarray(partition.counts, np.uint32).tobytes(),
        np.ascontiguousarray(partition.ranks, np.uint32).tobytes(),
        np.ascontiguousarray(partition.steps).tobytes(),
    )
