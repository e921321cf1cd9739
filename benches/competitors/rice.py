"""Rice coding of whole arrays at once.

A number ``g`` is its low ``k`` bits and, in unary, ``g >> k``. The low bits of all numbers are
packed first, then the unary parts: as many zeros, then a one. Quotients of ``ESCAPE`` and more are
written as ``ESCAPE`` and the number again in four bytes at the end.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

ESCAPE = 32
MAX_K = 31


def best_k(numbers: Numbers) -> int:
    """The parameter with the fewest bits; near the logarithm of the mean."""
    near = int(np.log2(max(float(numbers.mean()) * np.log(2), 1)))
    tried = range(max(near - 1, 0), min(near + 2, MAX_K) + 1)

    def bits(k: int) -> int:
        high = numbers >> k
        escaped = high >= ESCAPE
        unary = int(np.minimum(high, ESCAPE).sum())
        return numbers.size * (k + 1) + unary + 32 * int(escaped.sum())

    return min(tried, key=bits)


def encode(numbers: Numbers) -> Bytes:
    """One block: a byte ``k``, low bits, unary bits, escapes. Empty for no numbers.

    Args:
        numbers: 0 to 2^32 - 1.
    """
    if not numbers.size:
        return np.zeros(0, np.uint8)
    k = best_k(numbers)
    low = (numbers[:, None] >> np.arange(k)) & 1
    high = numbers >> k
    escaped = high >= ESCAPE
    high = np.minimum(high, ESCAPE)
    ends = np.cumsum(high + 1) - 1
    unary = np.zeros(int(ends[-1]) + 1, np.uint8)
    unary[ends] = 1
    return np.concatenate(
        [
            np.array([k], np.uint8),
            np.packbits(low.astype(np.uint8).reshape(-1), bitorder="little"),
            np.packbits(unary, bitorder="little"),
            numbers[escaped].astype("<u4").view(np.uint8),
        ]
    )


def decode(block: Bytes, count: int) -> Numbers:
    """The ``count`` numbers of a block."""
    if not count:
        return np.zeros(0, np.int64)
    k = int(block[0])
    after_low = 1 + (count * k + 7) // 8
    low_bits = np.unpackbits(block[1:after_low], count=count * k, bitorder="little")
    low = low_bits.reshape(count, k).astype(np.int64) @ (1 << np.arange(k, dtype=np.int64))
    ends = np.flatnonzero(np.unpackbits(block[after_low:], bitorder="little"))[:count]
    high = np.diff(ends, prepend=-1) - 1
    numbers: Numbers = (high << k) | low
    escaped = high == ESCAPE
    start = after_low + int(ends[-1]) // 8 + 1
    wide = 4 * int(escaped.sum())
    numbers[escaped] = block[start : start + wide].copy().view("<u4")
    return numbers
