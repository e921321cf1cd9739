"""State digest version 1 (digest-v1.md)."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from .tensors import matrix

M64 = (1 << 64) - 1
G0, G1 = 0x9E3779B97F4A7C15, 0xD1B54A32D192ED03
MA, MB = 0x9FB21C651E98DF25, 0xD6E8FEB86659FD93

Lanes = tuple[int, int]
Words = NDArray[np.uint64]
Key = tuple[int, int, int, int]


def key(name: str, dtype: str, shape: Iterable[int]) -> Key:
    """``k0, k1, c0, c1``."""
    dims = list(shape)
    text = b"deltawire digest v1\0"
    text += struct.pack("<I", len(name.encode())) + name.encode()
    text += struct.pack("<I", len(dtype.encode())) + dtype.encode()
    text += struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", dim) for dim in dims)
    k0, k1, c0, c1 = struct.unpack("<4Q", hashlib.sha256(text).digest())
    return k0, k1, c0, c1


def mix(k0: int, k1: int, j: Words, w: Words) -> tuple[Words, Words]:
    """``y0`` and ``y1`` of words ``w`` with indices ``j`` (both uint64 arrays)."""
    u = np.uint64

    def ror(x: Words, s: int) -> Words:
        return (x >> u(s)) | (x << u(64 - s))

    def e(x: Words, m: int, r: int, s: int) -> Words:
        x = (x ^ ror(x, r) ^ ror(x, s)) * u(m)
        x = (x ^ ror(x, 24) ^ ror(x, 49)) * u(m)
        return x ^ (x >> u(28))

    with np.errstate(over="ignore"):
        t = u(k0) + j * u(G0)
        a = (t ^ (t >> u(32))) * u(MB)
        a = a ^ (a >> u(29))
        return e(w ^ a, MA, 18, 45), e(w + (u(k1) + j * u(G1)), MB, 27, 46)


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
    return int(y0.sum(dtype=np.uint64)), int(y1.sum(dtype=np.uint64))


def add(*digests: Lanes) -> Lanes:
    return sum(d[0] for d in digests) & M64, sum(d[1] for d in digests) & M64


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
