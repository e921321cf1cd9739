"""Geometric streams: numbers with a geometric distribution under static range coders (rANS)."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from .bits import BitReader, BitWriter
from .primitives import Cursor, corrupt
from .tensors import ceil_div

LARGEST = 191
LOWEST_STATE = 1 << 16
ESCAPES = 3
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


def lanes_of(changes: int) -> int:
    """Coders of a chunk with so many changes."""
    return 1 if changes < 4096 else 4


def fitted(numbers: Sequence[int]) -> int:
    """A parameter whose p is about that of the numbers: 1 / (mean + 1) = 2^(-q/8)."""
    mean = sum(numbers) / len(numbers)
    q = 0
    while q < LARGEST and 2 ** ((q + 0.5) / 8) < mean + 1:
        q += 1
    return q


@dataclass
class Encoder:
    """Collects the symbols and raw bits of a stream.

    ``final``: the states that a reader ends with, also wrong ones.
    """

    lanes: int
    final: Sequence[int] | None = None

    def __post_init__(self) -> None:
        self.symbols: list[tuple[int, int, int]] = []  # first slot, slots, coder
        self.raw = BitWriter()

    def symbol(self, first: int, slots: int, item: int) -> None:
        self.symbols.append((first, slots, item % self.lanes))

    def uniform(self, value: int, bits: int, item: int) -> None:
        for at in range(0, bits, 8):
            m = min(bits - at, 8)
            width = 1 << (12 - m)
            self.symbol((value >> at & ((1 << m) - 1)) * width, width, item)

    def number(self, q: int, number: int, item: int) -> None:
        this = table(q)
        self.raw.put(number & ((1 << this.low) - 1), this.low)
        h = number >> this.low
        for _ in range(ESCAPES):
            symbol = min(h, this.escape)
            self.symbol(this.start[symbol], this.slots(symbol), item)
            if h < this.escape:
                return
            h -= this.escape
        self.uniform(h.bit_length(), 7, item)
        self.uniform(h, h.bit_length(), item)

    def run(self, q: int, numbers: Sequence[int]) -> None:
        for item, number in enumerate(numbers):
            self.number(q, number, item)

    def stream(self) -> bytes:
        states = list(self.final or [LOWEST_STATE] * self.lanes)
        words: list[int] = []
        for first, slots, lane in reversed(self.symbols):
            if states[lane] >= slots << 20:
                words.append(states[lane] & 0xFFFF)
                states[lane] >>= 16
            states[lane] = (states[lane] // slots << 12) + first + states[lane] % slots
        packed = struct.pack(f"<{self.lanes}I", *states)
        return self.raw.padded() + packed + struct.pack(f"<{len(words)}H", *reversed(words))


class Decoder:
    """Reads a stream, to whose end the cursor goes at once. [F24]"""

    def __init__(self, cursor: Cursor, raw_bits: int, lanes: int) -> None:
        cursor.rule = "F24"
        at = cursor.offset
        self.raw = BitReader(cursor.take(ceil_div(raw_bits, 8)), at)
        self.raw.at = raw_bits
        if not self.raw.is_padded():
            raise corrupt("F2", "unused bits are not zero", cursor.offset - 1)
        self.raw.at = 0
        self.states = list(struct.unpack(f"<{lanes}I", cursor.take(4 * lanes)))
        if min(self.states) < LOWEST_STATE:
            raise corrupt("F24", f"a first state of {min(self.states):#x}", at)
        self.words = cursor

    def symbol(self, starts: Sequence[int], item: int) -> int:
        """``starts``: the first slot of each symbol, and 4096."""
        lane = item % len(self.states)
        x = self.states[lane]
        slot = x % 4096
        symbol = bisect_right(starts, slot) - 1
        x = (starts[symbol + 1] - starts[symbol]) * (x >> 12) + slot - starts[symbol]
        if x < LOWEST_STATE:
            x = x << 16 | int.from_bytes(self.words.take(2), "little")
        self.states[lane] = x
        return symbol

    def uniform(self, bits: int, item: int) -> int:
        value = 0
        for at in range(0, bits, 8):
            m = min(bits - at, 8)
            value |= self.symbol(range(0, 4097, 1 << (12 - m)), item) << at
        return value

    def number(self, q: int, item: int) -> int:
        this = table(q)
        h = 0
        for _ in range(ESCAPES):
            symbol = self.symbol(this.start, item)
            h += symbol
            if symbol < this.escape:
                break
        else:
            bits = self.uniform(7, item)
            if bits + this.low > 64:
                raise corrupt("F24", f"a number of {bits} + {this.low} bits", self.words.offset)
            rest = self.uniform(bits, item)
            if rest.bit_length() != bits:
                raise corrupt("F24", f"{rest} is not a number of {bits} bits", self.words.offset)
            h += rest
        number = h << this.low | self.raw.take(this.low)
        if number >> 64:
            raise corrupt("F24", f"a number of {number}", self.words.offset)
        return number

    def run(self, q: int, count: int) -> list[int]:
        return [self.number(q, item) for item in range(count)]

    def finish(self) -> None:
        self.words.finish("last number")
        if any(state != LOWEST_STATE for state in self.states):
            raise corrupt("F24", f"last states of {self.states}", self.words.offset)
