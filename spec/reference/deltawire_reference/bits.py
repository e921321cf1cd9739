"""Bit streams, filled from bit 0 of their first byte."""

from __future__ import annotations

import numpy as np

from .primitives import corrupt


class BitWriter:
    def __init__(self) -> None:
        self.bits: list[int] = []

    def put(self, value: int, count: int) -> None:
        """The low ``count`` bits, which hold all of the value."""
        assert value >> count == 0
        self.bits += [value >> i & 1 for i in range(count)]

    def number(self, value: int, k: int) -> None:
        """An Exp-Golomb code."""
        whole = value + (1 << k)
        b = whole.bit_length() - 1
        self.put(1 << (b - k), b - k + 1)
        self.put(whole - (1 << b), b)

    def padded(self) -> bytes:
        return np.packbits(np.array(self.bits, np.uint8), bitorder="little").tobytes()


class BitReader:
    """Reads zeros behind the end; ``bytes_used`` tells whether that happened."""

    def __init__(self, data: bytes, offset: int) -> None:
        self.data = data
        self.offset = offset
        self.at = 0

    def take(self, count: int) -> int:
        first, shift = divmod(self.at, 8)
        window = int.from_bytes(self.data[first : first + 16], "little") >> shift
        self.at += count
        return window & ((1 << count) - 1)

    def number(self, k: int, rule: str) -> int:
        zeros = 0
        while self.take(1) == 0:
            zeros += 1
            if zeros + k >= 40:
                raise corrupt(rule, "a number of more than 40 bits", self.offset)
        b = zeros + k
        return self.take(b) + (1 << b) - (1 << k)

    @property
    def bytes_used(self) -> int:
        return -(-self.at // 8)

    def is_padded(self) -> bool:
        """Whether the rest of the last byte is zero."""
        return self.at % 8 == 0 or self.data[self.at // 8] >> self.at % 8 == 0
