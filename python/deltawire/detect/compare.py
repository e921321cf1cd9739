"""Comparing what is served of a parameter with what was, tile by tile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _native
from ..tensors import ITEMSIZE
from .journal import Bits, Found, nothing
from .served import Box, Part

#: Served bytes that are compared at once.
_PIECE_BYTES = 4 << 20


def _boxes(part: Part) -> Iterator[Box]:
    """The part in boxes of some rows each."""
    row, rows, col, cols = part.place
    step = max(1, _PIECE_BYTES // max(1, cols * ITEMSIZE[part.dtype]))
    for first in range(0, rows, step):
        yield row + first, min(step, rows - first), col, cols


class Snapshot:
    """The served elements of a part at one moment: uint8 ``[rows, bytes of a row]``."""

    def __init__(self, part: Part) -> None:
        row, rows, _, cols = part.place
        self.data: npt.NDArray[np.uint8] = np.empty((rows, cols * ITEMSIZE[part.dtype]), np.uint8)
        source = part.source()
        for box in _boxes(part):
            matrix, _owner = part.read(source, box)
            self.data[box[0] - row : box[0] - row + box[1]] = matrix[0]
        part.origin.release()


def differences(part: Part, before: Snapshot) -> tuple[Found, Bits]:
    """Elements that are other bits than in a snapshot, with their old ones; and the new ones."""
    width = ITEMSIZE[part.dtype]
    bits = np.dtype(f"u{width}")
    source, (row, _, _, cols) = part.source(), part.place
    positions: list[Any] = []
    old: list[Any] = []
    new: list[Any] = []
    for box in _boxes(part):
        matrix, _owner = part.read(source, box)
        first = box[0] - row
        a, b = before.data[first : first + box[1]], np.ascontiguousarray(matrix[0])
        at = np.frombuffer(_native.differing(a, b, width), np.int64)
        if len(at):
            positions.append(at + first * cols)
            old.append(a.reshape(-1).view(bits)[at])
            new.append(b.reshape(-1).view(bits)[at])
    part.origin.release()
    if not positions:
        empty = nothing(width)
        return empty, empty.old
    return Found.certain(np.concatenate(positions), np.concatenate(old)), np.concatenate(new)
