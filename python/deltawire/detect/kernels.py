"""Triton kernels: what ``device.py`` launches. Elements are compared and carried as bits.

A program handles ``BLOCK`` elements that follow one another row-major, and counts in 64 bits where
they begin, so tensors may have any size. Results do not depend on the order in which programs run:
what is found is counted first, then written to its place.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

#: How elements are found: in one piece; in rows with less than 2^30 elements; in longer ones.
FLAT = tl.constexpr(0)
NARROW = tl.constexpr(1)
WIDE = tl.constexpr(2)

#: Room for the classes of a block.
CLASSES = tl.constexpr(16)

# Constants of spec/digest-v1.md.
P = tl.constexpr((1 << 61) - 1)
G = tl.constexpr(0x9E3779B97F4A7C15)
S1 = tl.constexpr(0xBF58476D1CE4E5B9)
S2 = tl.constexpr(0x94D049BB133111EB)
#: Words that share one R.
SHARING = tl.constexpr(256)
LOW26 = tl.constexpr((1 << 26) - 1)
LOW29 = tl.constexpr((1 << 29) - 1)
LOW32 = tl.constexpr((1 << 32) - 1)
LOW35 = tl.constexpr((1 << 35) - 1)


@triton.jit
def place(start: tl.tensor, cols: tl.tensor, LAYOUT: tl.constexpr, BLOCK: tl.constexpr) -> Any:
    """Rows and columns of the elements from ``start`` on, with one 64-bit division a program."""
    local = tl.arange(0, BLOCK)
    if LAYOUT == FLAT:
        return tl.zeros([BLOCK], tl.int64), start + local
    across = cols.to(tl.int64)
    row = start // across
    first = start - row * across
    if LAYOUT == NARROW:
        at = first.to(tl.int32) + local
        down = at // across.to(tl.int32)
        return row + down, (at - down * across.to(tl.int32)).to(tl.int64)
    else:
        wide = first + local
        below = wide // across
        return row + below, wide - below * across


@triton.jit
def place_of(at: tl.tensor, cols: tl.tensor, LAYOUT: tl.constexpr) -> Any:
    """Rows and columns of single elements."""
    if LAYOUT == FLAT:
        return at * 0, at
    else:
        row = at // cols.to(tl.int64)
        return row, at - row * cols.to(tl.int64)


@triton.jit
def report(
    hit: tl.tensor,
    start: tl.tensor,
    counts: tl.tensor,
    ends: tl.tensor,
    out: tl.tensor,
    WRITE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Counts the hits of a program, or writes where they are."""
    program = tl.program_id(0)
    ones = hit.to(tl.int32)
    if WRITE:
        place = tl.load(ends + program) - tl.load(counts + program) + tl.cumsum(ones, 0) - 1
        tl.store(out + place, start + tl.arange(0, BLOCK), mask=hit)
    else:
        tl.store(counts + program, tl.sum(ones, 0))


@triton.jit(do_not_specialize=["cols", "a_stride", "b_stride"])
def differing(
    a: tl.tensor,
    b: tl.tensor,
    counts: tl.tensor,
    ends: tl.tensor,
    out: tl.tensor,
    n: tl.tensor,
    cols: tl.tensor,
    a_stride: tl.tensor,
    b_stride: tl.tensor,
    LAYOUT: tl.constexpr,
    WRITE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Elements with other bits."""
    if WRITE:  # noqa: SIM102 known when compiled, unlike the other
        if tl.load(counts + tl.program_id(0)) == 0:
            return
    start = tl.program_id(0).to(tl.int64) * BLOCK
    row, col = place(start, cols, LAYOUT, BLOCK)
    inside = start + tl.arange(0, BLOCK) < n
    x = tl.load(a + row * a_stride + col, mask=inside, other=0)
    y = tl.load(b + row * b_stride + col, mask=inside, other=0)
    report(x != y, start, counts, ends, out, WRITE, BLOCK)


# --- The state digest; spec/digest-v1.md defines it. ---------------------------------------


@triton.jit
def _folded(x: tl.tensor) -> tl.tensor:
    """uint64 modulo P, though up to P + 7."""
    return (x & P) + (x >> 61)


@triton.jit
def _loaded(
    block: tl.tensor,
    row: tl.tensor,
    col: tl.tensor,
    inside: tl.tensor,
    units: tl.tensor,
    stride: tl.tensor,
    UNIT: tl.constexpr,
    UNITS: tl.constexpr,
) -> tl.tensor:
    """Words, uint64, zero where not ``inside``; so is what is missing at the end of a row."""
    if UNIT == 8:
        word = tl.load(block + row * stride + col, mask=inside, other=0)
    else:
        word = col * 0
        for k in tl.static_range(UNITS):
            unit = col * (8 // UNIT) + k
            part = tl.load(block + row * stride + unit, mask=inside & (unit < units), other=0)
            word = word | ((part.to(tl.int64) & ((1 << (8 * UNIT)) - 1)) << (8 * UNIT * k))
    return word.to(tl.uint64, bitcast=True)


@triton.jit
def _value(w: tl.tensor, t: tl.tensor, u: tl.tensor) -> tl.tensor:
    """``v`` of words modulo P, up to P + 1, with factors ``t`` and ``u`` of 52 bits."""
    lo, hi = w & LOW32, w >> 32
    # Products of 32 by 26 bits: sums of two stay below 2^59.
    below = lo * (t & LOW26) + hi * (u & LOW26)
    above = lo * (t >> 26) + hi * (u >> 26)
    return _folded(below + (above >> 35) + ((above & LOW35) << 26))


@triton.jit
def _factor(k: tl.tensor, b: tl.tensor) -> tl.tensor:
    """``R`` of blocks ``b``: 1 to 2^60."""
    x = k.to(tl.int64).to(tl.uint64, bitcast=True) + b * G
    x = (x ^ (x >> 30)) * S1
    x = (x ^ (x >> 27)) * S2
    return ((x ^ (x >> 31)) >> 4) + 1


@triton.jit
def _times(v: tl.tensor, r: tl.tensor) -> tl.tensor:
    """Product modulo P, up to P + 1, of numbers up to 2^62 and 2^60."""
    low, high = v * r, tl.umulhi(v, r)
    return _folded((low & P) + ((low >> 61) | (high << 3)))


@triton.jit
def _summed(x: tl.tensor, AXIS: tl.constexpr) -> tl.tensor:
    """Sum modulo P, fully reduced, of fewer than 2^20 numbers below 2^62 along an axis."""
    low = tl.sum((x & LOW32).to(tl.int64, bitcast=True), AXIS).to(tl.uint64, bitcast=True)
    high = tl.sum((x >> 32).to(tl.int64, bitcast=True), AXIS).to(tl.uint64, bitcast=True)
    y = _folded(low + (high >> 29) + ((high & LOW29) << 32))
    return tl.where(y >= P, y - P, y)


@triton.jit(
    do_not_specialize=[
        "piece",
        "programs",
        "cols",
        "units",
        "stride",
        "words_per_row",
        "first",
        "k0",
        "k1",
    ]
)
def digest(
    block: tl.tensor,
    factors: tl.tensor,
    sums: tl.tensor,
    n: tl.tensor,
    piece: tl.tensor,
    programs: tl.tensor,
    cols: tl.tensor,
    units: tl.tensor,
    stride: tl.tensor,
    words_per_row: tl.tensor,
    first: tl.tensor,
    k0: tl.tensor,
    k1: tl.tensor,
    UNIT: tl.constexpr,
    UNITS: tl.constexpr,
    LAYOUT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Both lanes summed over the words of a program: ``sums[0, program]`` and ``sums[1, program]``.

    Pieces of ``piece`` words have ``programs`` programs each. A row has ``cols`` words, read as
    ``units`` integers of ``UNIT`` bytes, up to ``UNITS`` a word;
    what is missing at its end is zero. ``factors`` holds T, then U: int64 ``[2, SHARING]``.
    """
    program = tl.program_id(0)
    begin = (program // programs).to(tl.int64) * piece
    end = tl.minimum(begin + piece, n)
    at = (program % programs).to(tl.int64) * BLOCK
    if LAYOUT == FLAT:
        # Words that share an R are summed before they are multiplied by it: a row of this matrix.
        # The first may begin before the piece.
        s = tl.arange(0, SHARING)
        b = (first + begin + at) // SHARING + tl.arange(0, BLOCK // SHARING)
        number = b[:, None] * SHARING + s[None, :] - first
        inside = (number >= begin) & (number < end)
        w = _loaded(block, number * 0, number, inside, units, stride, UNIT, UNITS)
        t = tl.load(factors + s).to(tl.uint64, bitcast=True)[None, :]
        u = tl.load(factors + SHARING + s).to(tl.uint64, bitcast=True)[None, :]
        v = _summed(_value(w, t, u), 1)
    else:
        start = begin + at
        number = start + tl.arange(0, BLOCK)
        row, col = place(start, cols, LAYOUT, BLOCK)
        w = _loaded(block, row, col, number < end, units, stride, UNIT, UNITS)
        # Unsigned: divided by shifts.
        j = (first + row * words_per_row.to(tl.int64) + col).to(tl.uint64, bitcast=True)
        b, s = j // SHARING, j % SHARING
        t = tl.load(factors + s).to(tl.uint64, bitcast=True)
        u = tl.load(factors + SHARING + s).to(tl.uint64, bitcast=True)
        # A word of zeros adds nothing, wherever it would be.
        v = _value(w, t, u)
    which = b.to(tl.uint64, bitcast=True)
    y0 = _summed(_times(v, _factor(k0, which)), 0)
    y1 = _summed(_times(v, _factor(k1, which)), 0)
    tl.store(sums + program, y0.to(tl.int64, bitcast=True))
    tl.store(sums + tl.num_programs(0) + program, y1.to(tl.int64, bitcast=True))


# --- Classes of a tile. --------------------------------------------------------------------


@triton.jit
def _exponent(bits: tl.tensor, SHIFT: tl.constexpr, MASK: tl.constexpr) -> tl.tensor:
    return ((bits >> SHIFT) & MASK).to(tl.int32)


@triton.jit
def _class(
    bits: tl.tensor, top: tl.tensor, last: tl.tensor, SHIFT: tl.constexpr, MASK: tl.constexpr
) -> tl.tensor:
    return tl.minimum(tl.maximum(top - _exponent(bits, SHIFT, MASK), 0), last)


@triton.jit
def _ordered(bits: tl.tensor, BITS: tl.constexpr, FLOAT: tl.constexpr) -> tl.tensor:
    """Ordered integers of patterns, as in spec/format-v1.md."""
    if FLOAT:
        return bits ^ ((bits >> (BITS - 1)) & ((1 << (BITS - 1)) - 1))
    else:
        return bits


@triton.jit(do_not_specialize=["elements", "cols", "stride"])
def exponents(
    base: tl.tensor,
    positions: tl.tensor,
    histogram: tl.tensor,
    n: tl.tensor,
    elements: tl.tensor,
    cols: tl.tensor,
    stride: tl.tensor,
    SHIFT: tl.constexpr,
    MASK: tl.constexpr,
    LAYOUT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Adds the exponents of the elements at ``positions`` to a histogram of ``MASK + 1``."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    at = tl.load(positions + i, mask=i < n, other=-1)
    inside = (at >= 0) & (at < elements)
    row, col = place_of(at, cols, LAYOUT)
    bits = tl.load(base + row * stride + col, mask=inside, other=0)
    seen = tl.histogram(_exponent(bits, SHIFT, MASK), MASK + 1, mask=inside)
    tl.atomic_add(histogram + tl.arange(0, MASK + 1), seen.to(tl.int64), mask=seen > 0)


@triton.jit(do_not_specialize=["cols", "stride", "top", "last"])
def class_counts(
    base: tl.tensor,
    counts: tl.tensor,
    n: tl.tensor,
    cols: tl.tensor,
    stride: tl.tensor,
    top: tl.tensor,
    last: tl.tensor,
    SHIFT: tl.constexpr,
    MASK: tl.constexpr,
    LAYOUT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Elements of each class of a program: ``counts[program, class]``."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    row, col = place(start, cols, LAYOUT, BLOCK)
    inside = start + tl.arange(0, BLOCK) < n
    bits = tl.load(base + row * stride + col, mask=inside, other=0)
    number = _class(bits, top, last, SHIFT, MASK)
    for c in tl.static_range(CLASSES):
        own = (inside & (number == c)).to(tl.int32)
        tl.store(counts + tl.program_id(0) * CLASSES + c, tl.sum(own, 0))


@triton.jit(do_not_specialize=["cols", "stride", "top", "last"])
def ranks(
    base: tl.tensor,
    positions: tl.tensor,
    begins: tl.tensor,
    before: tl.tensor,
    out: tl.tensor,
    n: tl.tensor,
    cols: tl.tensor,
    stride: tl.tensor,
    top: tl.tensor,
    last: tl.tensor,
    SHIFT: tl.constexpr,
    MASK: tl.constexpr,
    LAYOUT: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """How many elements of its class precede each element at ``positions``.

    Those in a program are ``positions[begins[program]:begins[program + 1]]``; before it lie
    ``before[program, class]`` elements of each class.
    """
    program = tl.program_id(0)
    begin = tl.load(begins + program)
    end = tl.load(begins + program + 1)
    if begin == end:
        return
    start = program.to(tl.int64) * BLOCK
    row, col = place(start, cols, LAYOUT, BLOCK)
    inside = start + tl.arange(0, BLOCK) < n
    bits = tl.load(base + row * stride + col, mask=inside, other=0)
    number = _class(bits, top, last, SHIFT, MASK)
    rank = tl.zeros([BLOCK], tl.int32)
    for c in tl.static_range(CLASSES):
        own = number == c
        preceding = tl.load(before + program * CLASSES + c) + tl.cumsum(own.to(tl.int32), 0) - 1
        rank = tl.where(own, preceding, rank)
    for first in range(begin, end, GROUP):
        i = first + tl.arange(0, GROUP)
        at = tl.load(positions + i, mask=i < end, other=start) - start
        known = (at >= 0) & (at < BLOCK)
        found = tl.gather(rank, tl.where(known, at, 0).to(tl.int32), 0)
        tl.store(out + i, found, mask=known & (i < end))


@triton.jit(do_not_specialize=["elements", "cols", "stride", "new_stride", "top", "last"])
def moves(
    base: tl.tensor,
    new: tl.tensor,
    positions: tl.tensor,
    classes: tl.tensor,
    steps: tl.tensor,
    n: tl.tensor,
    elements: tl.tensor,
    cols: tl.tensor,
    stride: tl.tensor,
    new_stride: tl.tensor,
    top: tl.tensor,
    last: tl.tensor,
    SHIFT: tl.constexpr,
    MASK: tl.constexpr,
    BITS: tl.constexpr,
    FLOAT: tl.constexpr,
    DENSE: tl.constexpr,
    LAYOUT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Class and step of each change; where a position lies outside, both stay as they are.

    ``new`` is like ``base`` if ``DENSE``, else in the order of the positions.
    """
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    at = tl.load(positions + i, mask=i < n, other=-1)
    inside = (at >= 0) & (at < elements)
    row, col = place_of(at, cols, LAYOUT)
    old = tl.load(base + row * stride + col, mask=inside, other=0)
    if DENSE:
        after = tl.load(new + row * new_stride + col, mask=inside, other=0)
    else:
        after = tl.load(new + i, mask=inside, other=0)
    tl.store(classes + i, _class(old, top, last, SHIFT, MASK), mask=inside)
    step = _ordered(after, BITS, FLOAT) - _ordered(old, BITS, FLOAT)
    tl.store(steps + i, step, mask=inside)


#: Whether kernels run in Triton's interpreter, which was chosen before it was imported.
INTERPRETED = not isinstance(place, triton.JITFunction)
