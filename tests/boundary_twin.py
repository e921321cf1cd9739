"""The AdamW boundary test, element by element as it is defined: the twin of the kernels.

``F(w)``, what a step makes of the weight ``w``, rises with ``w``. The served value of an element is
``b = bf16(w_after)``. It is known to be unchanged if the next weight below ``b``'s rounding cell
leads below ``w_after``, and the next one above it leads above. Weights are in total order: -0 lies
below +0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]

#: Old value known; one of two neighbours; unknown.
CERTAIN, EITHER, UNKNOWN = 0, 1, 2


@dataclass(frozen=True)
class Step:
    """Scalars of one step, as float32.

    ``d = sqrt(v) / root + eps``; ``u = (alpha * m) / d``, or ``alpha * (m / d)`` if
    ``divide_first``; ``F(w) = w * decay + u``, rounded once if ``contracted``.

    ``margin``: by how many units in the last place an optimizer's result may differ from ``F``.
    """

    decay: float
    alpha: float
    root: float
    eps: float
    divide_first: bool = False
    contracted: bool = False
    margin: int = 0


def ordered(x: F32) -> npt.NDArray[np.int64]:
    """Integers in the total order of the floats."""
    bits = x.view(np.int32).astype(np.int64)
    return np.where(bits < 0, ~(bits & 0x7FFFFFFF), bits)


def floats(order: npt.NDArray[np.int64]) -> F32:
    """The inverse of ``ordered``."""
    bits = np.where(order < 0, (~order & 0x7FFFFFFF) | 0x80000000, order)
    return bits.astype(np.uint32).view(np.float32)


def bf16(x: F32) -> npt.NDArray[np.uint16]:
    """Patterns after rounding to the nearest, ties to even. Not for NaN."""
    bits = x.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)).astype(
        np.uint16
    )


def cell(pattern: npt.NDArray[np.uint16]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """First and last ordered float32 that round to a pattern."""
    odd = (pattern & 1).astype(np.int64)
    magnitude = (pattern.astype(np.int64) & 0x7FFF) << 16
    low = np.maximum(magnitude - 0x8000 + odd, 0)
    high = np.minimum(magnitude + 0x8000 - odd, 0x7F800000)
    negative = pattern >= 0x8000
    return np.where(negative, ~high, low), np.where(negative, ~low, high)


def neighbour(pattern: npt.NDArray[np.uint16], by: int) -> npt.NDArray[np.uint16]:
    """The pattern ``by`` places up in total order."""
    signed = pattern.astype(np.int64)
    order = np.where(signed >= 0x8000, ~(signed & 0x7FFF), signed) + by
    return np.where(order < 0, (~order & 0x7FFF) | 0x8000, order).astype(np.uint16)


def _add_product(w: F32, c: Any, u: F32) -> F32:
    """``w * c + u``, rounded once: in double precision, rounded to odd in between."""
    product, term = w.astype(np.float64) * np.float64(c), u.astype(np.float64)
    total = product + term
    part = total - product
    error = (product - (total - part)) + (term - part)
    bits = total.view(np.int64)
    away = (error > 0) == (total > 0)
    inexact = np.isfinite(total) & np.isfinite(error) & (error != 0) & (bits & 1 == 0)
    return np.where(inexact, bits + np.where(away, 1, -1), bits).view(np.float64).astype(np.float32)


def update(step: Step, m: F32, v: F32) -> F32:
    """What is added to a weight."""
    f = np.float32
    denominator = np.sqrt(v) / f(step.root) + f(step.eps)
    if step.divide_first:
        return f(step.alpha) * (m / denominator)
    return (f(step.alpha) * m) / denominator


def after(step: Step, w: F32, u: F32) -> F32:
    """``F(w)``."""
    if step.contracted:
        return _add_product(w, np.float32(step.decay), u)
    return w * np.float32(step.decay) + u


def slack(step: Step, w: F32, u: F32) -> npt.NDArray[np.float64]:
    """How far a result may be from ``F``; nothing where nothing is added."""
    size = np.abs(w.astype(np.float64)) + 2 * np.abs(u.astype(np.float64))
    return np.where(u == 0, 0.0, step.margin * (2.0**-23 * size + 2.0**-149))


def _excluded(
    step: Step, w: F32, u: F32, pattern: npt.NDArray[np.uint16]
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Whether the weight before lay neither below nor above a pattern's cell."""
    first, last = cell(pattern)
    allowed = slack(step, w, u)

    def result(order: npt.NDArray[np.int64]) -> tuple[F32, npt.NDArray[np.float64]]:
        value = after(step, floats(order), u)
        return value, value.astype(np.float64)

    low, low_value = result(first - 1)
    high, high_value = result(last + 1)
    goal = w.astype(np.float64)
    exact = allowed == 0
    below = np.where(exact, ordered(low) < ordered(w), low_value < goal - allowed)
    above = np.where(exact, ordered(high) > ordered(w), high_value > goal + allowed)
    below &= ~np.isnan(low) & ~np.isnan(w)
    above &= ~np.isnan(high) & ~np.isnan(w)
    # Nothing lies beyond infinity.
    return (first <= ~0x7F800000) & ~np.isnan(u) | below, (last >= 0x7F800000) & ~np.isnan(
        u
    ) | above


@dataclass(frozen=True)
class Found:
    """Elements that may have changed: positions, and what is known of the value before.

    ``old`` is the value (``CERTAIN``), or one of ``old`` and ``other`` is (``EITHER``).
    """

    positions: npt.NDArray[np.int64]
    kinds: npt.NDArray[np.uint8]
    old: npt.NDArray[np.uint16]
    other: npt.NDArray[np.uint16]


def changes(step: Step, w: F32, m: F32, v: F32) -> Found:
    """All elements whose BF16 value may have changed in a step that left ``w``, ``m`` and ``v``."""
    with np.errstate(all="ignore"):
        u = update(step, m, v)
        new = bf16(w)
        sure = np.logical_and(*_excluded(step, w, u, new)) & ~np.isnan(w)
        at = np.flatnonzero(~sure)
        w, u, new = w[at], u[at], new[at]
        inverse = (w.astype(np.float64) - u) / np.float64(np.float32(step.decay))
        known = np.isfinite(inverse) & np.isfinite(u) & np.isfinite(w)
        guess = bf16(np.where(known, inverse, 0).astype(np.float32))
        low, high = guess, guess
        # Wider where a cell beyond is possible; two cells at most are told.
        not_below, _ = _excluded(step, w, u, guess)
        _, not_above = _excluded(step, w, u, guess)
        low = np.where(not_below, guess, neighbour(guess, -1))
        high = np.where(not_above, guess, neighbour(guess, 1))
        low_done, _ = _excluded(step, w, u, low)
        _, high_done = _excluded(step, w, u, high)
        two = (low == guess) | (high == guess)
        known &= low_done & high_done & two
        kinds = np.where(known, np.where(low == high, CERTAIN, EITHER), UNKNOWN).astype(np.uint8)
        keep = ~((kinds == CERTAIN) & (low == new))
        # The likelier one first.
        old = np.where(kinds == UNKNOWN, new, guess)
        other = np.where(kinds == UNKNOWN, new, np.where(low == guess, high, low))
    return Found(at[keep], kinds[keep], old[keep], other[keep])
