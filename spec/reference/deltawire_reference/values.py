"""Value codecs: each table row as a pair of functions."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from .positions import from_gaps, gaps_of
from .primitives import Cursor, corrupt, decode_stage, encode_stage, encode_varint
from .rice import decode_rice, encode_rice, pack_bits, unpack_bits
from .tensors import ceil_div

RAW, PLANES, STEP = 0, 1, 2
NAMES = {RAW: "raw", PLANES: "planes", STEP: "step"}


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


def decode_values(
    codec: int, stage: int, stored: bytes, count: int, width: int, offset: int
) -> list[int]:
    """New values (raw, planes) or steps, in the order of the positions."""
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
        indices = from_gaps(decode_rice(gaps, exceptions), count, at, "F15")
        gaps.finish("last exception")
        for index, size in zip(
            indices, decode_rice(cursor, exceptions, escape_width=width), strict=True
        ):
            sizes[index] = size + 2
    cursor.finish("last step")
    steps = [size if sign else -size for size, sign in zip(sizes, positive, strict=True)]
    return check_steps(steps, width, "F15", cursor.base)


def check_steps(steps: list[int], width: int, rule: str, offset: int) -> list[int]:
    half = 1 << (8 * width - 1)
    for d in steps:
        if not -half <= d < half:
            raise corrupt(rule, f"a step of {d} in {width} bytes", offset)
    return steps
