"""State digest version 1 (digest-v1.md)."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from .tensors import matrix

#: All sums are modulo this prime.
P = (1 << 61) - 1
M64 = (1 << 64) - 1
G = 0x9E3779B97F4A7C15
#: Words of a block, which share one ``R``.
BLOCK = 256

Lanes = tuple[int, int]
Words = NDArray[np.uint64]
Key = tuple[int, int, int, int]


def scramble(x: int) -> int:
    """``S``: splitmix64's finaliser."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & M64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & M64
    return x ^ (x >> 31)


#: Factors of the lower and of the upper halves of words, by their place in a block.
T, U = (
    np.array([scramble((2 * s + i) * G & M64) >> 12 | 1 for s in range(BLOCK)], np.uint64)
    for i in (1, 2)
)


def block_factor(k: int, b: int) -> int:
    """``R`` of block ``b``, of the lane with key ``k``."""
    return (scramble((k + b * G) & M64) >> 4) + 1


def key(name: str, dtype: str, shape: Iterable[int]) -> Key:
    """``k0, k1``, and the start value: ``c0`` and ``c1`` modulo ``P``."""
    dims = list(shape)
    text = b"deltawire digest v1\0"
    text += struct.pack("<I", len(name.encode())) + name.encode()
    text += struct.pack("<I", len(dtype.encode())) + dtype.encode()
    text += struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", dim) for dim in dims)
    k0, k1, c0, c1 = struct.unpack("<4Q", hashlib.sha256(text).digest())
    return k0, k1, c0 % P, c1 % P


def times(x: Words, shift: int) -> Words:
    """``x * 2^shift`` modulo ``P``, below ``2^61 + 2^(shift + 3)``."""
    u = np.uint64
    return (x >> u(61 - shift)) + ((x & u((1 << (61 - shift)) - 1)) << u(shift))


def mix(k0: int, k1: int, j: Words, w: Words) -> tuple[Words, Words]:
    """``y0`` and ``y1`` of words ``w`` with indices ``j`` (both uint64 arrays of one shape)."""
    u = np.uint64
    low26, low32 = u((1 << 26) - 1), u((1 << 32) - 1)
    lo, hi, s = w & low32, w >> u(32), (j % u(BLOCK)).astype(np.int64)
    # Products of 32 by 26 bits.
    t, f = T[s], U[s]
    below = lo * (t & low26) + hi * (f & low26)
    above = lo * (t >> u(26)) + hi * (f >> u(26))
    v = (below + times(above, 26)) % u(P)

    blocks, which = np.unique(j // u(BLOCK), return_inverse=True)

    def lane(k: int) -> Words:
        factors: Words = np.array([block_factor(k, int(b)) for b in blocks], np.uint64)
        r = factors[which.reshape(j.shape)]
        v0, v1, r0, r1 = v & low32, v >> u(32), r & low32, r >> u(32)
        # 2^64 is 8.
        y: Words = times(v0 * r0, 0) + times(v0 * r1 + v1 * r0, 32) + u(8) * (v1 * r1)
        return y % u(P)

    return lane(k0), lane(k1)


def total(y: Words) -> int:
    """Sum modulo ``P``."""
    high, low = (y >> np.uint64(32)).sum(), (y & np.uint64((1 << 32) - 1)).sum()
    return ((int(high) << 32) + int(low)) % P


def words(rows: NDArray[np.uint8]) -> Words:
    """Rows of bytes, padded with zeros to eight, as little-endian words."""
    padded = np.zeros((rows.shape[0], -(-rows.shape[1] // 8) * 8), np.uint8)
    padded[:, : rows.shape[1]] = rows
    return padded.view("<u8").astype(np.uint64)


def box_sum(
    k: Key, rows: NDArray[np.uint8], words_per_row: int, row0: int = 0, word0: int = 0
) -> Lanes:
    """Sum over a box of a tensor whose first byte is word ``word0`` of row ``row0``: a tile digest.

    ``rows`` holds the bytes of the box, shape (rows, bytes per row).
    """
    if rows.size == 0:
        return 0, 0
    w = words(rows)
    j = (np.arange(w.shape[0], dtype=np.uint64) + np.uint64(row0))[:, None] * np.uint64(
        words_per_row
    ) + (np.arange(w.shape[1], dtype=np.uint64) + np.uint64(word0))[None, :]
    y0, y1 = mix(k[0], k[1], j, w)
    return total(y0), total(y1)


def add(*digests: Lanes) -> Lanes:
    return sum(d[0] for d in digests) % P, sum(d[1] for d in digests) % P


def tensor_digest(name: str, dtype: str, shape: tuple[int, ...], data: bytes) -> Lanes:
    k = key(name, dtype, shape)
    rows, cols = matrix(shape)
    width = len(data) // (rows * cols) if rows * cols else 0
    grid = np.frombuffer(data, np.uint8).reshape(rows, cols * width)
    return add((k[2], k[3]), box_sum(k, grid, -(-cols * width // 8)))


def stored(digest: Lanes) -> bytes:
    return struct.pack("<2Q", *digest)


def loaded(data: bytes) -> Lanes:
    a, b = struct.unpack("<2Q", data)
    return a, b
