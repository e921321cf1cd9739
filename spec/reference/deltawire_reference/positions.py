"""Position codecs: each table row as a pair of functions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from .primitives import Cursor, corrupt, decode_stage, encode_varint
from .rice import decode_rice, encode_rice
from .tensors import ceil_div

ALL, RUNS, BITMAP, GAPS, RICE = 1, 2, 3, 4, 5
NAMES = {ALL: "all", RUNS: "runs", BITMAP: "bitmap", GAPS: "gaps", RICE: "rice"}


def gaps_of(positions: Sequence[int]) -> list[int]:
    return [b - a - 1 for a, b in pairwise([-1, *positions])]


def from_gaps(gaps: Sequence[int], elements: int, offset: int, rule: str = "F14") -> list[int]:
    positions = []
    at = -1
    for gap in gaps:
        at += gap + 1
        if at >= elements:
            raise corrupt(rule, f"position {at} in a tile of {elements}", offset)
        positions.append(at)
    return positions


def runs_of(positions: Sequence[int]) -> list[tuple[int, int]]:
    """(unchanged elements before, length) of each maximal run."""
    runs: list[tuple[int, int]] = []
    for gap in gaps_of(positions):
        if gap == 0 and runs:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((gap, 1))
    return runs


def encode_positions(codec: int, positions: Sequence[int], elements: int, k: int = 3) -> bytes:
    """The stream of a position codec, before its stage. ``k`` is Rice's."""
    if codec == ALL:
        return b""
    if codec == RUNS:
        return b"".join(
            encode_varint(gap) + encode_varint(length - 1) for gap, length in runs_of(positions)
        )
    if codec == BITMAP:
        bits = np.zeros(elements, np.uint8)
        bits[list(positions)] = 1
        return np.packbits(bits, bitorder="little").tobytes()
    if codec == GAPS:
        return b"".join(encode_varint(gap) for gap in gaps_of(positions))
    if codec == RICE:
        return encode_rice(gaps_of(positions), k)
    raise ValueError(f"no position codec {codec}")


def longest(codec: int, count: int, elements: int) -> int:
    """The longest stream that ``count`` positions of ``elements`` can need. [F18]"""
    if codec == ALL:
        return 0
    if codec == BITMAP:
        return ceil_div(elements, 8)
    if codec in (RUNS, GAPS):
        return 4 * count + 4  # gaps and lengths are below 2^22: four bytes; runs alternate
    return 1 + 3 * count + ceil_div(count + elements, 8) + 2


def decode_positions(
    codec: int, stage: int, stored: bytes, count: int, elements: int, offset: int
) -> list[int]:
    """The positions of a chunk. [F14]"""
    if codec not in NAMES:
        raise corrupt("F2", f"position codec {codec} is reserved", offset)
    stream = decode_stage(stage, stored, longest(codec, count, elements), offset)
    cursor = Cursor(stream, offset, "F14")
    if codec == ALL:
        positions = list(range(elements))
    elif codec == RUNS:
        positions = _decode_runs(cursor, count, elements)
    elif codec == BITMAP:
        positions = _decode_bitmap(cursor, elements)
    elif codec == GAPS:
        positions = from_gaps([cursor.varint() for _ in range(count)], elements, offset)
    else:
        positions = from_gaps(decode_rice(cursor, count), elements, offset)
    if len(positions) != count:
        raise corrupt("F14", f"{len(positions)} positions, {count} changes", offset)
    cursor.finish("last position")
    return positions


def _decode_runs(cursor: Cursor, count: int, elements: int) -> list[int]:
    positions: list[int] = []
    at = 0
    while len(positions) < count:
        gap = cursor.varint()
        if positions and gap == 0:
            raise corrupt("F14", "two runs touch", cursor.offset)
        length = cursor.varint() + 1
        if at + gap + length > elements:
            raise corrupt("F14", "a run leaves the tile", cursor.offset)
        at += gap
        positions.extend(range(at, at + length))
        at += length
    return positions


def _decode_bitmap(cursor: Cursor, elements: int) -> list[int]:
    data = cursor.take(ceil_div(elements, 8))
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    if bits[elements:].any():
        raise corrupt("F2", "unused bits are not zero", cursor.offset - 1)
    return [int(x) for x in np.flatnonzero(bits)]
