"""Rice streams."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .primitives import Cursor, corrupt
from .tensors import ceil_div

ESCAPE = 24


def pack_bits(values: Sequence[int], width: int) -> bytes:
    """Fixed-width numbers as a bit stream, from bit 0 of the first byte."""
    total = 0
    for index, value in enumerate(values):
        total |= value << (index * width)
    return total.to_bytes(ceil_div(len(values) * width, 8), "little")


def unpack_bits(cursor: Cursor, count: int, width: int) -> list[int]:
    data = cursor.take(ceil_div(count * width, 8))
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    if bits[count * width :].any():
        raise corrupt("F2", "unused bits are not zero", cursor.offset - 1)
    if width == 0:
        return [0] * count
    weights = np.uint64(1) << np.arange(width, dtype=np.uint64)
    grid = bits[: count * width].reshape(count, width).astype(np.uint64)
    return [int(value) for value in (grid * weights).sum(axis=1, dtype=np.uint64)]


def encode_rice(numbers: Sequence[int], k: int, *, escape_width: int | None = None) -> bytes:
    lows, unary, escapes = [], bytearray(), b""
    for number in numbers:
        q = number >> k
        if escape_width is not None and q >= ESCAPE:
            q = ESCAPE
            lows.append(0)
            escapes += number.to_bytes(escape_width, "little")
        else:
            lows.append(number & ((1 << k) - 1))
        unary += b"\0" * q + b"\1"
    packed = np.packbits(np.frombuffer(bytes(unary), np.uint8), bitorder="little").tobytes()
    return bytes([k]) + pack_bits(lows, k) + packed + escapes


def decode_rice(cursor: Cursor, count: int, *, escape_width: int | None = None) -> list[int]:
    """The numbers; the cursor ends behind the stream."""
    k = cursor.take(1)[0]
    if k > (ESCAPE if escape_width is None else 63):
        raise corrupt("F16", f"k is {k}", cursor.offset - 1)
    lows = unpack_bits(cursor, count, k)
    quotients = _unary(cursor, count)
    numbers = []
    for low, q in zip(lows, quotients, strict=True):
        if escape_width is None or q < ESCAPE:
            numbers.append((q << k) | low)
            continue
        if q > ESCAPE:
            raise corrupt("F17", f"{q} zero bits in a stream with escapes", cursor.offset)
        if low:
            raise corrupt("F2", "low bits beside an escape are not zero", cursor.offset)
        number = int.from_bytes(cursor.take(escape_width), "little")
        if number >> k < ESCAPE:
            raise corrupt("F17", f"{number} did not need an escape", cursor.offset - escape_width)
        numbers.append(number)
    return numbers


def _unary(cursor: Cursor, count: int) -> list[int]:
    """For each number, the zero bits before its one bit."""
    rest = np.frombuffer(cursor.data, np.uint8)[cursor.at :]
    bits = np.unpackbits(rest, bitorder="little")
    ones = np.flatnonzero(bits)[:count]
    if len(ones) < count:
        raise corrupt(
            cursor.rule, f"{len(ones)} of {count} numbers in a Rice stream", cursor.offset
        )
    used = ceil_div(int(ones[-1]) + 1, 8)
    if bits[int(ones[-1]) + 1 : used * 8].any():
        raise corrupt("F2", "unused bits are not zero", cursor.offset + used - 1)
    cursor.take(used)
    return [int(gap) for gap in np.diff(ones, prepend=-1) - 1]
