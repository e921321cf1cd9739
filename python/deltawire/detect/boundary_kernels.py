"""Triton kernels of the AdamW boundary test, which ``tests/boundary_twin.py`` defines.

Products and sums are rounded one by one unless ``CONTRACTED`` asks for a fused multiply-add. To
that end these kernels are launched with ``enable_fp_fusion=False``: products and sums then become
``mul.rn`` and ``add.rn``, which no later stage contracts either; a test reads that in the PTX.
Square root and quotient are correctly rounded, and no operation flushes subnormal numbers.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from .kernels import place, place_of, report

#: Kinds as in ``step.py``, and what turned out not to have changed.
CERTAIN = tl.constexpr(0)
EITHER = tl.constexpr(1)
UNKNOWN = tl.constexpr(2)
UNCHANGED = tl.constexpr(3)

INFINITY = tl.constexpr(0x7F800000)
MAGNITUDE = tl.constexpr(0x7FFFFFFF)


@triton.jit
def _flip(x: tl.tensor) -> tl.tensor:
    """Between the bits of a float32 and integers in total order; undoes itself."""
    return x ^ ((x >> 31) & MAGNITUDE)


@triton.jit
def _float(bits: tl.tensor) -> tl.tensor:
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _bits(x: tl.tensor) -> tl.tensor:
    return x.to(tl.int32, bitcast=True)


@triton.jit
def _bf16(x: tl.tensor) -> tl.tensor:
    """Patterns after rounding to the nearest, ties to even."""
    bits = x.to(tl.uint32, bitcast=True)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).to(tl.int32)


@triton.jit
def _neighbour(pattern: tl.tensor, by: tl.constexpr) -> tl.tensor:
    """The pattern ``by`` places up in total order."""
    order = tl.where(pattern >= 0x8000, ~(pattern & 0x7FFF), pattern) + by
    return tl.where(order < 0, (~order & 0x7FFF) | 0x8000, order)


@triton.jit
def _cell(pattern: tl.tensor) -> Any:
    """First and last ordered float32 that round to a pattern."""
    odd = pattern & 1
    magnitude = (pattern & 0x7FFF) << 16
    low = tl.maximum(magnitude - 0x8000 + odd, 0)
    high = tl.minimum(magnitude + 0x8000 - odd, INFINITY)
    negative = pattern >= 0x8000
    return tl.where(negative, ~high, low), tl.where(negative, ~low, high)


@triton.jit
def _update(
    m: tl.tensor,
    v: tl.tensor,
    alpha: tl.tensor,
    root: tl.tensor,
    eps: tl.tensor,
    FIRST: tl.constexpr,
) -> tl.tensor:
    """What is added to a weight."""
    scale = tl.cast(alpha, tl.float32)
    denominator = tl.div_rn(tl.sqrt_rn(v), tl.cast(root, tl.float32)) + tl.cast(eps, tl.float32)
    if FIRST:
        return scale * tl.div_rn(m, denominator)
    else:
        return tl.div_rn(scale * m, denominator)


@triton.jit
def _excluded(
    pattern: tl.tensor,
    w: tl.tensor,
    u: tl.tensor,
    decay: tl.tensor,
    margin: tl.tensor,
    ABOVE: tl.constexpr,
    CONTRACTED: tl.constexpr,
    EXACT: tl.constexpr,
) -> tl.tensor:
    """Whether the weight before lay nowhere above (or below) a pattern's cell.

    ``EXACT``: there is no margin. How far a result may be from ``F`` is then nothing, or not a
    number, which proves nothing, and integers are all it takes.
    """
    low, high = _cell(pattern)
    if ABOVE:
        order, beyond = high + 1, high >= INFINITY
    else:
        order, beyond = low - 1, low <= ~INFINITY
    before = _float(_flip(order))
    if CONTRACTED:
        value = tl.fma(before, decay, u)
    else:
        value = before * decay + u
    found, goal = _flip(_bits(value)), _flip(_bits(w))
    if ABOVE:
        past = found > goal
    else:
        past = found < goal
    if EXACT:
        finite = ((_bits(w) & MAGNITUDE) < INFINITY) & ((_bits(u) & MAGNITUDE) < INFINITY)
        past = past & ((u == 0) | finite)
    else:
        size = tl.abs(w.to(tl.float64)) + 2 * tl.abs(u.to(tl.float64))
        allowed = tl.cast(margin, tl.float64) * (size * 2.0**-23 + 2.0**-149)
        if ABOVE:
            far = value.to(tl.float64) > w.to(tl.float64) + allowed
        else:
            far = value.to(tl.float64) < w.to(tl.float64) - allowed
        past = tl.where(u == 0, past, far)
    # Nothing lies beyond infinity.
    return (past & (value == value) & (w == w)) | (beyond & (u == u))


@triton.jit(do_not_specialize=["cols", "w_stride", "m_stride", "v_stride", "margin"])
def unproved(
    w: tl.tensor,
    m: tl.tensor,
    v: tl.tensor,
    counts: tl.tensor,
    ends: tl.tensor,
    out: tl.tensor,
    n: tl.tensor,
    cols: tl.tensor,
    w_stride: tl.tensor,
    m_stride: tl.tensor,
    v_stride: tl.tensor,
    decay: tl.tensor,
    alpha: tl.tensor,
    root: tl.tensor,
    eps: tl.tensor,
    margin: tl.tensor,
    FIRST: tl.constexpr,
    CONTRACTED: tl.constexpr,
    EXACT: tl.constexpr,
    LAYOUT: tl.constexpr,
    WRITE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Elements whose served value is not known to be what it was."""
    if WRITE:  # noqa: SIM102 known when compiled, unlike the other
        if tl.load(counts + tl.program_id(0)) == 0:
            return
    start = tl.program_id(0).to(tl.int64) * BLOCK
    row, col = place(start, cols, LAYOUT, BLOCK)
    inside = start + tl.arange(0, BLOCK) < n
    weight = _float(tl.load(w + row * w_stride + col, mask=inside, other=0))
    first = _float(tl.load(m + row * m_stride + col, mask=inside, other=0))
    second = _float(tl.load(v + row * v_stride + col, mask=inside, other=0))
    u = _update(first, second, alpha, root, eps, FIRST)
    scale = tl.cast(decay, tl.float32)
    pattern = _bf16(weight)
    same = _excluded(pattern, weight, u, scale, margin, False, CONTRACTED, EXACT)
    same = same & _excluded(pattern, weight, u, scale, margin, True, CONTRACTED, EXACT)
    same = same & (weight == weight)
    report(inside & ~same, start, counts, ends, out, WRITE, BLOCK)


@triton.jit(do_not_specialize=["cols", "w_stride", "m_stride", "v_stride", "margin"])
def resolve(
    w: tl.tensor,
    m: tl.tensor,
    v: tl.tensor,
    positions: tl.tensor,
    kinds: tl.tensor,
    old: tl.tensor,
    other: tl.tensor,
    n: tl.tensor,
    cols: tl.tensor,
    w_stride: tl.tensor,
    m_stride: tl.tensor,
    v_stride: tl.tensor,
    decay: tl.tensor,
    alpha: tl.tensor,
    root: tl.tensor,
    eps: tl.tensor,
    margin: tl.tensor,
    FIRST: tl.constexpr,
    CONTRACTED: tl.constexpr,
    EXACT: tl.constexpr,
    LAYOUT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """What is known of the values before at ``positions``."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    row, col = place_of(tl.load(positions + i, mask=inside, other=0), cols, LAYOUT)
    weight = _float(tl.load(w + row * w_stride + col, mask=inside, other=0))
    first = _float(tl.load(m + row * m_stride + col, mask=inside, other=0))
    second = _float(tl.load(v + row * v_stride + col, mask=inside, other=0))
    u = _update(first, second, alpha, root, eps, FIRST)
    scale = tl.cast(decay, tl.float32)
    new = _bf16(weight)
    inverse = (weight.to(tl.float64) - u.to(tl.float64)) / scale.to(tl.float64)
    known = (inverse - inverse == 0) & (u - u == 0) & (weight - weight == 0)
    guess = _bf16(tl.where(known, inverse, 0.0).to(tl.float32))
    # Wider where a cell beyond is possible; two cells at most are told.
    not_below = _excluded(guess, weight, u, scale, margin, False, CONTRACTED, EXACT)
    not_above = _excluded(guess, weight, u, scale, margin, True, CONTRACTED, EXACT)
    low = tl.where(not_below, guess, _neighbour(guess, -1))
    high = tl.where(not_above, guess, _neighbour(guess, 1))
    known = known & _excluded(low, weight, u, scale, margin, False, CONTRACTED, EXACT)
    known = known & _excluded(high, weight, u, scale, margin, True, CONTRACTED, EXACT)
    known = known & ((low == guess) | (high == guess))
    kind = tl.where(known, tl.where(low == high, CERTAIN, EITHER), UNKNOWN)
    kind = tl.where((kind == CERTAIN) & (low == new), UNCHANGED, kind)
    tl.store(kinds + i, kind.to(tl.uint8), mask=inside)
    # The likelier one first.
    neighbour = tl.where(low == guess, high, low)
    tl.store(old + i, tl.where(known, guess, new).to(tl.int16), mask=inside)
    tl.store(other + i, tl.where(known, neighbour, new).to(tl.int16), mask=inside)
