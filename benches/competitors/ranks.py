"""Positions as ranks among the elements with the same old exponent (PULSEPT1 format 3).

How likely an element changes follows from its exponent, and both sides know the old one. Each
exponent with changes is a class. Its changes are named by their rank, the number of elements of
the class before them, or, where more than half of the class changed, by the ranks of those that
did not. The gaps between ranks form one Rice block. A value is the difference of the bit patterns,
new less old, in zigzag order as one byte; 255 says that two bytes follow among the escapes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from . import rice
from .framing import Bits, Stream
from .sparse import changed, gaps_of, positions_of

#: One class in the index stream: exponent, whether unchanged elements are listed, how many ranks,
#: length of their block.
RECORD = np.dtype([("exponent", "u1"), ("complement", "u1"), ("count", "<u4"), ("length", "<u4")])

Exponents = npt.NDArray[np.uint8]


def exponents(bits: Bits) -> Exponents:
    """Exponent field of BF16 patterns."""
    # Shifting the sign out on the left leaves the exponent in the upper byte.
    return ((bits << 1) >> 8).astype(np.uint8)


def zigzag(old: Bits, new: Bits) -> npt.NDArray[np.uint16]:
    """0, -1, 1, -2, ... as 0, 1, 2, 3, ...; differences modulo 2^16."""
    difference = (new - old).view(np.int16)
    return ((difference << 1) ^ (difference >> 15)).view(np.uint16)


def unzigzag(old: Bits, codes: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint16]:
    """The new patterns."""
    return old + ((codes >> 1) ^ (0 - (codes & 1)))


class Ranks:
    """Class records, blocks of ranks, bytes of the values, their escapes."""

    def pack(self, old: Bits, new: Bits) -> Sequence[Stream]:
        where = changed(old, new)
        if not where.size:
            return []
        flat = old.reshape(-1)
        field = exponents(flat)
        of_changed = field[where]
        records, blocks = [], []
        for exponent in np.unique(of_changed).tolist():
            members = np.flatnonzero(field == exponent)
            ranks = np.searchsorted(members, where[of_changed == exponent])
            complement = 2 * ranks.size > members.size
            if complement:
                unchanged = np.ones(members.size, bool)
                unchanged[ranks] = False
                ranks = np.flatnonzero(unchanged)
            block = rice.encode(gaps_of(ranks))
            records.append((exponent, complement, ranks.size, block.size))
            blocks.append(block)
        codes = zigzag(flat[where], new.reshape(-1)[where])
        return [
            np.array(records, RECORD),
            np.concatenate(blocks),
            np.minimum(codes, 255).astype(np.uint8),
            codes[codes >= 255],
        ]

    def unpack(self, streams: Sequence[memoryview], target: Bits) -> None:
        flat = target.reshape(-1)
        field = exponents(flat)
        blocks = np.frombuffer(streams[1], np.uint8)
        found = []
        start = 0
        for exponent, complement, count, length in np.frombuffer(streams[0], RECORD).tolist():
            members = np.flatnonzero(field == exponent)
            ranks = positions_of(rice.decode(blocks[start : start + length], count))
            start += length
            if complement:
                named = np.ones(members.size, bool)
                named[ranks] = False
                found.append(members[named])
            else:
                found.append(members[ranks])
        where = np.sort(np.concatenate(found))
        codes = np.frombuffer(streams[2], np.uint8).astype(np.uint16)
        codes[codes == 255] = np.frombuffer(streams[3], np.uint16)
        flat[where] = unzigzag(flat[where], codes)
