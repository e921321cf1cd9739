"""Geometric streams: numbers with a geometric distribution under a static range coder (rANS)."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from .primitives import Cursor, corrupt
from .tensors import ceil_div

LARGEST = 191
LOWEST_STATE = 1 << 23
STATE_END = 1 << 31
F = (
    4294967296, 3938502376, 3611622603, 3311872529, 3037000500, 2784941738, 2553802834, 2341847524,
)  # fmt: skip


@dataclass(frozen=True)
class Table:
    """Symbol ``s`` has the slots ``start[s]`` to ``start[s + 1] - 1``; ``escape`` is E."""

    low: int
    start: tuple[int, ...]

    @property
    def escape(self) -> int:
        return len(self.start) - 2

    def slots(self, symbol: int) -> int:
        return self.start[symbol + 1] - self.start[symbol]

    def symbols(self, number: int) -> list[int]:
        h = number >> self.low
        return [self.escape] * (h // self.escape) + [h % self.escape]


@cache
def table(q: int) -> Table:
    low = max(q // 8 - 3, 0)
    theta = (1 << 32) - (F[q % 8] >> (q // 8))
    for _ in range(low):
        theta = (theta * theta) >> 32
    tail = 1 << 32
    start = [0]
    for s in range(255):
        tail = (tail * theta) >> 32
        following = min(4096 - (tail >> 20), 4095)
        if following == start[s]:
            break
        start.append(following)
    return Table(low, (*start, 4096))


def fitted(numbers: Sequence[int]) -> int:
    """A parameter whose p is about that of the numbers: 1 / (mean + 1) = 2^(-q/8)."""
    mean = sum(numbers) / len(numbers)
    q = 0
    while q < LARGEST and 2 ** ((q + 0.5) / 8) < mean + 1:
        q += 1
    return q


def encode_geometric(numbers: Sequence[tuple[int, int]], state: int = LOWEST_STATE) -> bytes:
    """``numbers`` are (number, its parameter). ``state``: what the reader ends with."""
    packed, at = 0, 0
    for number, q in numbers:
        low = table(q).low
        packed |= (number & ((1 << low) - 1)) << at
        at += low
    x = state
    tail = bytearray()
    for number, q in reversed(numbers):
        this = table(q)
        for symbol in reversed(this.symbols(number)):
            slots = this.slots(symbol)
            while x >= slots << 19:
                tail.append(x & 0xFF)
                x >>= 8
            x = (x // slots << 12) + this.start[symbol] + x % slots
    return packed.to_bytes(ceil_div(at, 8), "little") + struct.pack("<I", x) + bytes(tail[::-1])


def decode_geometric(cursor: Cursor, parameters: Sequence[int]) -> list[int]:
    """One number for each parameter; the cursor must end with the stream. [F24]"""
    cursor.rule = "F24"
    bits = sum(table(q).low for q in parameters)
    lows = cursor.take(ceil_div(bits, 8))
    if bits % 8 and lows[-1] >> bits % 8:
        raise corrupt("F2", "unused bits are not zero", cursor.offset - 1)
    at_state = cursor.offset
    x: int = struct.unpack("<I", cursor.take(4))[0]
    if not LOWEST_STATE <= x < STATE_END:
        raise corrupt("F24", f"a first state of {x:#x}", at_state)
    numbers = []
    at = 0
    for q in parameters:
        this = table(q)
        h = 0
        symbol = this.escape
        while symbol == this.escape:
            slot = x & 0xFFF
            symbol = bisect_right(this.start, slot) - 1
            x = this.slots(symbol) * (x >> 12) + slot - this.start[symbol]
            while x < LOWEST_STATE:
                x = x << 8 | cursor.take(1)[0]
            h += symbol
        window = int.from_bytes(lows[at // 8 : at // 8 + 4], "little") >> at % 8
        numbers.append(h << this.low | window & ((1 << this.low) - 1))
        at += this.low
    if x != LOWEST_STATE:
        raise corrupt("F24", f"a last state of {x:#x}", at_state)
    cursor.finish("last number")
    return numbers
