"""Layouts that list the changed elements: positions in some form, then values as they are or XORed.

All positions are flat, row-major and ascending; a gap is the number of unchanged elements between
two changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .framing import Bits, Stream

Positions = npt.NDArray[np.int64]


def changed(old: Bits, new: Bits) -> Positions:
    """Flat positions whose bits differ."""
    return np.flatnonzero(old.reshape(-1) != new.reshape(-1))


def gaps_of(positions: Positions) -> Positions:
    """Unchanged elements before each position, counted from the one before it."""
    return np.diff(positions, prepend=-1) - 1


def positions_of(gaps: npt.NDArray[Any]) -> Positions:
    """Inverse of ``gaps_of``."""
    return np.cumsum(gaps, dtype=np.int64) + np.arange(gaps.size)


def read(stream: memoryview, dtype: type[np.generic]) -> npt.NDArray[Any]:
    """The numbers of a stream."""
    return np.frombuffer(stream, dtype)


class Coordinates:
    """int32 flat index and new value of each change: 48 bits, as AReaL-DTE and vLLM send them."""

    def pack(self, old: Bits, new: Bits) -> Sequence[Stream]:
        where = changed(old, new)
        if not where.size:
            return []
        if where[-1] > np.iinfo(np.int32).max:
            raise OverflowError("a flat index does not fit in 32 bits")
        return [where.astype(np.int32), new.reshape(-1)[where]]

    def unpack(self, streams: Sequence[memoryview], target: Bits) -> None:
        target.reshape(-1)[read(streams[0], np.int32)] = read(streams[1], np.uint16)


class RowsAndColumns:
    """Row steps, columns within the row, new values (PULSE in grail's format 3.1).

    A row step is the difference to the row of the change before; the column is the difference to
    the column before within a row, and the column itself where a row begins. Each of the two
    streams has the narrowest unsigned integers that hold it, columns at least two bytes.
    """

    @staticmethod
    def _narrow(numbers: Positions, least: type[np.unsignedinteger[Any]]) -> Stream:
        width = np.promote_types(np.min_scalar_type(int(numbers.max())), least)
        return numbers.astype(width)

    @staticmethod
    def _read(stream: memoryview, count: int) -> Positions:
        width = stream.nbytes // count
        return np.frombuffer(stream, np.dtype(f"<u{width}")).astype(np.int64)

    def pack(self, old: Bits, new: Bits) -> Sequence[Stream]:
        where = changed(old, new)
        if not where.size:
            return []
        rows, columns = np.divmod(where, old.shape[1])
        row_steps = np.diff(rows, prepend=0)
        begins = row_steps != 0
        begins[0] = True
        column_steps = np.where(begins, columns, np.diff(columns, prepend=0))
        return [
            self._narrow(row_steps, np.uint8),
            self._narrow(column_steps, np.uint16),
            new.reshape(-1)[where],
        ]

    def unpack(self, streams: Sequence[memoryview], target: Bits) -> None:
        values = read(streams[2], np.uint16)
        row_steps = self._read(streams[0], values.size)
        column_steps = self._read(streams[1], values.size)
        begins = row_steps != 0
        begins[0] = True
        # A sum over all columns, less what had been summed up where the row begins.
        columns = np.cumsum(column_steps)
        starts = np.flatnonzero(begins)
        columns -= (columns - column_steps)[starts][np.cumsum(begins) - 1]
        target.reshape(-1)[np.cumsum(row_steps) * target.shape[1] + columns] = values


class EscapedGaps:
    """Gaps of one or two bytes with the largest number as an escape; values raw or XORed.

    An escaped gap stands in the next wider stream: 8, 16, 32 bits.

    Args:
        first: width of the usual gap, ``np.uint8`` or ``np.uint16``.
        xor: values as old XOR new instead of new.
    """

    def __init__(self, first: type[np.unsignedinteger[Any]], *, xor: bool) -> None:
        widths = (np.uint8, np.uint16, np.uint32)
        self.widths = widths[widths.index(first) :]
        self.xor = xor

    def pack(self, old: Bits, new: Bits) -> Sequence[Stream]:
        where = changed(old, new)
        if not where.size:
            return []
        streams: list[Stream] = []
        rest = gaps_of(where)
        for width in self.widths:
            escape = np.iinfo(width).max
            if rest.size and width is np.uint32 and int(rest.max()) > escape:
                raise OverflowError("a gap does not fit in 32 bits")
            streams.append(np.minimum(rest, escape).astype(width))
            rest = rest[rest >= escape]
        values = new.reshape(-1)[where]
        if self.xor:
            values = values ^ old.reshape(-1)[where]
        return [*streams, values]

    def unpack(self, streams: Sequence[memoryview], target: Bits) -> None:
        gaps: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        for width, stream in zip(reversed(self.widths), reversed(streams[:-1]), strict=True):
            numbers = read(stream, width).astype(np.int64)
            if width is not np.uint32:
                numbers[numbers == np.iinfo(width).max] = gaps
            gaps = numbers
        where = positions_of(gaps)
        flat = target.reshape(-1)
        values = read(streams[-1], np.uint16)
        flat[where] = flat[where] ^ values if self.xor else values
