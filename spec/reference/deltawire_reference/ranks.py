"""Position codec ``ranks``: positions counted within exponent classes of the base."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .geometric import LARGEST, decode_geometric, encode_geometric, fitted
from .primitives import Cursor, corrupt, encode_varint

MOST_CLASSES = 16
# First bit and number of bits of the exponent field.
EXPONENTS = {
    "BF16": (7, 8), "F16": (10, 5), "F32": (23, 8), "F64": (52, 11),
    "F8_E4M3": (3, 4), "F8_E4M3FNUZ": (3, 4), "F8_E5M2": (2, 5), "F8_E5M2FNUZ": (2, 5),
}  # fmt: skip


@dataclass(frozen=True)
class Ranks:
    """Ranks by class, ascending; ``top`` is None where there is one class."""

    groups: list[list[int]]
    top: int | None = None


def exponents(patterns: NDArray[np.uint64], dtype: str) -> NDArray[np.int64]:
    first, count = EXPONENTS[dtype]
    fields = (patterns >> np.uint64(first)) & np.uint64((1 << count) - 1)
    return fields.astype(np.int64)


def class_members(
    patterns: NDArray[np.uint64], dtype: str, classes: int, top: int
) -> list[NDArray[np.int64]]:
    """The elements of each class, from the patterns before the delta, shape (elements,)."""
    numbers = np.clip(top - exponents(patterns, dtype), 0, classes - 1)
    return [np.flatnonzero(numbers == k).astype(np.int64) for k in range(classes)]


def ranks_of(
    positions: Sequence[int], patterns: NDArray[np.uint64], dtype: str, classes: int, top: int
) -> tuple[Ranks, list[list[int]]]:
    """Ranks, and the positions in the same order."""
    wanted = np.array(positions, np.int64)
    groups, places = [], []
    for members in class_members(patterns, dtype, classes, top):
        ranks = np.flatnonzero(np.isin(members, wanted))
        groups.append([int(rank) for rank in ranks])
        places.append([int(x) for x in members[ranks]])
    return Ranks(groups, top), places


def gaps_of(ranks: Sequence[int]) -> list[int]:
    return [b - a - 1 for a, b in pairwise([-1, *ranks])]


def encode_ranks(ranks: Ranks, q: int | None = None) -> bytes:
    """``q`` for every class, or fitted to each."""
    out = bytes([len(ranks.groups)])
    if ranks.top is not None:
        out += struct.pack("<H", ranks.top)
    numbers: list[tuple[int, int]] = []
    for group in ranks.groups:
        out += encode_varint(len(group))
        if group:
            gaps = gaps_of(group)
            this = fitted(gaps) if q is None else q
            out += bytes([this])
            numbers += [(gap, this) for gap in gaps]
    return out + encode_geometric(numbers)


def decode_ranks(cursor: Cursor, count: int, elements: int, dtype: str) -> Ranks:
    """[F24] [F25], without what only the base can tell."""
    cursor.rule = "F25"
    at = cursor.offset
    classes = cursor.take(1)[0]
    if not 1 <= classes <= MOST_CLASSES:
        raise corrupt("F25", f"{classes} classes", at)
    top = None
    if classes > 1:
        if dtype not in EXPONENTS:
            raise corrupt("F25", f"{classes} classes of {dtype}", at)
        top = struct.unpack("<H", cursor.take(2))[0]
    counts, parameters = [], []
    for _ in range(classes):
        counts.append(cursor.varint())
        parameters.append(parameter(cursor, "F25") if counts[-1] else 0)
    if sum(counts) != count:
        raise corrupt("F25", f"{sum(counts)} changes in the classes, {count} in all", at)
    numbers = iter(
        decode_geometric(
            cursor, [q for q, n in zip(parameters, counts, strict=True) for _ in range(n)]
        )
    )
    groups = [ascending(numbers, n, elements, "F25", at) for n in counts]
    return Ranks(groups, top)


def parameter(cursor: Cursor, rule: str) -> int:
    q = cursor.take(1)[0]
    if q > LARGEST:
        raise corrupt(rule, f"a parameter of {q}", cursor.offset - 1)
    return q


def ascending(gaps: Iterator[int], count: int, bound: int, rule: str, offset: int) -> list[int]:
    """The next ``count`` numbers below ``bound`` from an iterator of gaps."""
    found = []
    at = -1
    for _ in range(count):
        at += next(gaps) + 1
        if at >= bound:
            raise corrupt(rule, f"{at}, with {bound} to choose from", offset)
        found.append(at)
    return found


def located(ranks: Ranks, patterns: NDArray[np.uint64], dtype: str, offset: int) -> list[list[int]]:
    """The positions of each class in a tile of ``patterns``. [F25]"""
    if ranks.top is None:
        return ranks.groups
    places = []
    for group, members in zip(
        ranks.groups, class_members(patterns, dtype, len(ranks.groups), ranks.top), strict=True
    ):
        if group and group[-1] >= len(members):
            raise corrupt("F25", f"rank {group[-1]} in a class of {len(members)}", offset)
        places.append([int(x) for x in members[group]])
    return places
