"""How small a delta could be: entropies computed from the data itself.

The *exponent floor* assumes that a receiver knows the old value, that changes are independent given
the old exponent, and that a step's size and sign are independent given the old exponent. A coder
that knows nothing more cannot do better on average. The *absolute floor* is the same for a coder
that does not know the old value: independent positions, and independent new values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deltawire.tensors import TensorView

Bits = npt.NDArray[np.uint16]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Bounds:
    """Least bits per changed element of a BF16 delta; NaN without changes.

    Statistics are taken over all tensors together.

    Attributes:
        exponent: given the old values, through their exponents.
        absolute: given nothing.
    """

    exponent: float
    absolute: float


def binary_entropy(p: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Bits of one draw that is true with probability ``p``."""
    q = np.clip(p, 1e-300, 1)
    r = np.clip(1 - p, 1e-300, 1)
    return -(p * np.log2(q) + (1 - p) * np.log2(r))


def bits_of(counts: Counts) -> float:
    """Bits of all draws together, coded with their own frequencies."""
    seen = counts[counts > 0]
    return -float(np.sum(seen * np.log2(seen / seen.sum())))


def ordered(bits: Bits) -> npt.NDArray[np.int32]:
    """BF16 patterns as integers whose neighbours are one ULP apart."""
    signed = bits.view(np.int16)
    return np.where(signed < 0, signed ^ np.int16(0x7FFF), signed).astype(np.int32)


def bounds(base: Mapping[str, TensorView], new: Mapping[str, TensorView]) -> Bounds:
    """Both floors of the step from ``base`` to ``new``."""
    total = np.zeros(256, np.int64)
    changed = np.zeros(256, np.int64)
    values = np.zeros(1 << 16, np.int64)
    steps: dict[int, list[npt.NDArray[np.int32]]] = {}
    for name, view in base.items():
        old = view.contiguous().view(np.uint16)
        updated = new[name].contiguous().view(np.uint16)
        exponents = (old >> 7) & 0xFF
        total += np.bincount(exponents, minlength=256)
        where = np.flatnonzero(old != updated)
        of_changed = exponents[where]
        changed += np.bincount(of_changed, minlength=256)
        values += np.bincount(updated[where], minlength=1 << 16)
        step = ordered(updated[where]) - ordered(old[where])
        for exponent in np.unique(of_changed).tolist():
            steps.setdefault(exponent, []).append(step[of_changed == exponent])
    count = int(changed.sum())
    if not count:
        return Bounds(float("nan"), float("nan"))
    seen = total > 0
    positions = float(np.sum(total[seen] * binary_entropy(changed[seen] / total[seen])))
    step_bits = sum(
        bits_of(np.unique(np.concatenate(parts), return_counts=True)[1]) for parts in steps.values()
    )
    elements = int(total.sum())
    anywhere = elements * float(binary_entropy(np.array(count / elements)))
    return Bounds((positions + step_bits) / count, (anywhere + bits_of(values)) / count)
