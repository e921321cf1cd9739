"""Value codecs: each table row as a pair of functions."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from .geometric import decode_geometric, encode_geometric, fitted
from .primitives import RECORD_LIMIT, Cursor, corrupt, decode_stage, encode_stage, encode_varint
from .ranks import ascending, gaps_of, parameter
from .rice import decode_rice, encode_rice, pack_bits, unpack_bits
from .tensors import ceil_div

RAW, PLANES, STEP, GROUPED = 0, 1, 2, 3
NAMES = {RAW: "raw", PLANES: "planes", STEP: "step", GROUPED: "grouped"}
LARGEST_SIZE = (1 << 22) - 1  # of abs(d) - 2 in grouped steps


def encode_raw(values: Sequence[int], width: int) -> bytes:
    return b"".join(value.to_bytes(width, "little") for value in values)


def encode_planes(values: Sequence[int], width: int, stages: Sequence[int] | None = None) -> bytes:
    """``stages``: one stage per plane, most significant plane first."""
    out = b""
    for index in range(width):
        plane = bytes(value >> (8 * (width - 1 - index)) & 0xFF for value in values)
        stage = stages[index] if stages else 0
        kept = encode_stage(stage, plane)
        out += struct.pack("<I", len(kept) | stage << 31) + kept
    return out


def encode_steps(steps: Sequence[int], width: int, k_gaps: int = 2, k_sizes: int = 1) -> bytes:
    exceptions = [i for i, d in enumerate(steps) if abs(d) > 1]
    out = pack_bits([int(d > 0) for d in steps], 1) + encode_varint(len(exceptions))
    if exceptions:
        gaps = encode_rice(gaps_of(exceptions), k_gaps)
        sizes = encode_rice([abs(steps[i]) - 2 for i in exceptions], k_sizes, escape_width=width)
        out += encode_varint(len(gaps)) + gaps + sizes
    return out


def fits_grouped(steps: Sequence[int]) -> bool:
    return all(abs(d) - 2 <= LARGEST_SIZE for d in steps)


def encode_grouped(
    groups: Sequence[Sequence[int]], q_gaps: int | None = None, q_sizes: int | None = None
) -> bytes:
    """``groups``: the steps of each class. Parameters for every class, or fitted to each."""
    out = pack_bits([int(d > 0) for group in groups for d in group], 1)
    numbers: list[tuple[int, int]] = []
    for group in groups:
        if not group:
            continue
        exceptions = [i for i, d in enumerate(group) if abs(d) > 1]
        out += encode_varint(len(exceptions))
        if exceptions:
            gaps, sizes = gaps_of(exceptions), [abs(group[i]) - 2 for i in exceptions]
            q, r = (
                fitted(found) if given is None else given
                for given, found in ((q_gaps, gaps), (q_sizes, sizes))
            )
            out += bytes([q, r])
            numbers += [(gap, q) for gap in gaps] + [(size, r) for size in sizes]
    return out + encode_geometric(numbers)


def decode_values(
    codec: int, stage: int, stored: bytes, counts: Sequence[int], width: int, offset: int
) -> list[int]:
    """New values (raw, planes) or steps, one per change; ``counts`` are changes per class.

    Grouped steps come class after class, all else in the order of the positions.
    """
    count = sum(counts)
    if codec not in NAMES:
        raise corrupt("F2", f"value codec {codec} is reserved", offset)
    if codec == PLANES:
        if stage != 0:
            raise corrupt("F2", "byte planes with a value stage", offset)
        return _decode_planes(Cursor(stored, offset, "F15"), count, width)
    if codec == RAW:
        stream = decode_stage(stage, stored, count * width, offset)
        if len(stream) != count * width:
            raise corrupt("F15", f"{len(stream)} bytes for {count} values", offset)
        return [int.from_bytes(stream[i * width : (i + 1) * width], "little") for i in range(count)]
    if codec == GROUPED:
        stream = decode_stage(stage, stored, RECORD_LIMIT, offset)
        return _decode_grouped(Cursor(stream, offset, "F26"), counts, width)
    return _decode_steps(
        Cursor(decode_stage(stage, stored, _longest_steps(count, width), offset), offset, "F15"),
        count,
        width,
    )


def _decode_planes(cursor: Cursor, count: int, width: int) -> list[int]:
    values = [0] * count
    for _ in range(width):
        word = struct.unpack("<I", cursor.take(4))[0]
        at = cursor.offset
        plane = decode_stage(word >> 31, cursor.take(word & 0x7FFFFFFF), count, at)
        if len(plane) != count:
            raise corrupt("F15", f"{len(plane)} bytes in a plane of {count} values", at)
        values = [value << 8 | byte for value, byte in zip(values, plane, strict=True)]
    cursor.finish("last plane")
    return values


def _longest_steps(count: int, width: int) -> int:
    """Signs, both varints, gaps with k = 24, sizes with k = 63 and all escaped. [F18]"""
    gaps = 1 + 3 * count + ceil_div(2 * count, 8)
    sizes = 1 + 8 * count + ceil_div(25 * count, 8) + width * count
    return ceil_div(count, 8) + 20 + gaps + sizes


def _decode_steps(cursor: Cursor, count: int, width: int) -> list[int]:
    positive = unpack_bits(cursor, count, 1)
    sizes = [1] * count
    exceptions = cursor.varint()
    if exceptions > count:
        raise corrupt("F15", f"{exceptions} exceptions in {count} changes", cursor.offset)
    if exceptions:
        length = cursor.varint()
        at = cursor.offset
        gaps = Cursor(cursor.take(length), at, "F15")
        where = -1
        indices = []
        for gap in decode_rice(gaps, exceptions):
            where += gap + 1
            if where >= count:
                raise corrupt("F15", f"exception {where} in {count} changes", at)
            indices.append(where)
        gaps.finish("last exception")
        for index, size in zip(
            indices, decode_rice(cursor, exceptions, escape_width=width), strict=True
        ):
            sizes[index] = size + 2
    cursor.finish("last step")
    return _signed(sizes, positive, width, "F15", cursor.base)


def _signed(
    sizes: Sequence[int], positive: Sequence[int], width: int, rule: str, offset: int
) -> list[int]:
    steps = [size if sign else -size for size, sign in zip(sizes, positive, strict=True)]
    half = 1 << (8 * width - 1)
    for d in steps:
        if not -half <= d < half:
            raise corrupt(rule, f"a step of {d} in {width} bytes", offset)
    return steps


def _decode_grouped(cursor: Cursor, counts: Sequence[int], width: int) -> list[int]:
    """[F24] [F26]"""
    positive = unpack_bits(cursor, sum(counts), 1)
    classes = []  # changes, exceptions, parameters of places and sizes
    for count in counts:
        exceptions = cursor.varint() if count else 0
        if exceptions > count:
            raise corrupt("F26", f"{exceptions} exceptions in {count} changes", cursor.offset)
        q, r = (parameter(cursor, "F26") for _ in range(2)) if exceptions else (0, 0)
        classes.append((count, exceptions, q, r))
    at = cursor.offset
    numbers = iter(
        decode_geometric(cursor, [p for _, n, q, r in classes for p in [q] * n + [r] * n])
    )
    sizes: list[int] = []
    for count, exceptions, _, _ in classes:
        group = [1] * count
        for index in ascending(numbers, exceptions, count, "F26", at):
            group[index] = 0
        for index, size in enumerate(group):
            if size == 0:
                extra = next(numbers)
                if extra > LARGEST_SIZE:
                    raise corrupt("F26", f"a step of 2 + {extra}", at)
                group[index] = extra + 2
        sizes += group
    return _signed(sizes, positive, width, "F26", cursor.base)
