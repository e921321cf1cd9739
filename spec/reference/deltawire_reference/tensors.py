"""Tensors as matrices, tiles, and the ordered integers of dtypes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from math import prod
from operator import mul

from .primitives import ReferenceFault, corrupt

# [F9]
WIDTHS = {
    **dict.fromkeys(
        ["BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0"], 1
    ),
    **dict.fromkeys(["BF16", "F16", "I16", "U16"], 2),
    **dict.fromkeys(["F32", "I32", "U32"], 4),
    **dict.fromkeys(["F64", "I64", "U64", "C64"], 8),
}


# First bit and number of bits of the exponent field.
EXPONENTS = {
    "BF16": (7, 8), "F16": (10, 5), "F32": (23, 8), "F64": (52, 11),
    "F8_E4M3": (3, 4), "F8_E4M3FNUZ": (3, 4), "F8_E5M2": (2, 5), "F8_E5M2FNUZ": (2, 5),
}  # fmt: skip


def is_float(dtype: str) -> bool:
    return dtype == "BF16" or (dtype.startswith("F") and dtype != "F8_E8M0")


def matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns."""
    if len(shape) == 0:
        return 1, 1
    if len(shape) == 1:
        return shape[0], 1
    return prod(shape[:-1]), shape[-1]


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True)
class Tensor:
    """One entry of the tensor table."""

    name: str
    dtype: str
    width: int
    shape: tuple[int, ...]
    tile: tuple[int, int]

    @property
    def rows(self) -> int:
        return matrix(self.shape)[0]

    @property
    def cols(self) -> int:
        return matrix(self.shape)[1]

    @property
    def elements(self) -> int:
        return self.rows * self.cols

    @property
    def words_per_row(self) -> int:
        return ceil_div(self.cols * self.width, 8)

    @property
    def tiles(self) -> int:
        if self.elements == 0:
            return 0
        return ceil_div(self.rows, self.tile[0]) * ceil_div(self.cols, self.tile[1])

    def box(self, tile: int) -> tuple[int, int, int, int]:
        """First row, last row + 1, first column, last column + 1 of a tile."""
        across = ceil_div(self.cols, self.tile[1])
        row, col = tile // across * self.tile[0], tile % across * self.tile[1]
        return row, min(row + self.tile[0], self.rows), col, min(col + self.tile[1], self.cols)

    def check(self, offset: int) -> None:
        name = self.name.encode()
        if not 1 <= len(name) <= 4096:
            raise corrupt("F8", f"a tensor name of {len(name)} bytes", offset)
        if len(self.shape) > 32:
            raise corrupt("F8", f"{len(self.shape)} dimensions", offset)
        if self.dtype not in WIDTHS:
            raise ReferenceFault("unsupported", "F9", f"dtype {self.dtype!r}", offset)
        leading = accumulate(self.shape[:-1], mul)
        if self.elements * self.width >= 1 << 63 or any(rows >= 1 << 64 for rows in leading):
            raise corrupt("F8", f"shape {self.shape} is too large", offset)
        if self.elements == 0:
            if self.tile != (0, 0):
                raise corrupt("F4", f"tile {self.tile} of a tensor without elements", offset)
            return
        if min(self.tile) < 1:
            raise corrupt("F4", f"tile {self.tile}", offset)
        largest = min(self.tile[0], self.rows) * min(self.tile[1], self.cols)
        if largest > 1 << 22:
            raise corrupt("F5", f"a tile of {largest} elements", offset)
        if self.tiles > (1 << 32) - 1:
            raise corrupt("F5", f"{self.tiles} tiles", offset)
        if self.tile[1] < self.cols and self.tile[1] * self.width % 8:
            raise corrupt("F6", f"tile columns {self.tile[1]} of {self.width} bytes", offset)


def ordered(pattern: int, width: int, dtype: str) -> int:
    """The ordered integer of a bit pattern, modulo 2^w."""
    sign = 1 << (8 * width - 1)
    if is_float(dtype) and pattern & sign:
        return pattern ^ (sign - 1)
    return pattern


def step(old: int, new: int, width: int, dtype: str) -> int:
    """``ordered(new) - ordered(old)`` in [-2^(w-1), 2^(w-1) - 1]."""
    bits = 8 * width
    d = (ordered(new, width, dtype) - ordered(old, width, dtype)) % (1 << bits)
    return d - (1 << bits) if d >> (bits - 1) else d


def add_step(old: int, d: int, width: int, dtype: str) -> int:
    """The pattern that ``d`` leads to from ``old``."""
    moved = (ordered(old, width, dtype) + d) % (1 << (8 * width))
    return ordered(moved, width, dtype)  # the map is its own inverse
