"""One AdamW step, as the boundary test needs it."""

from __future__ import annotations

from dataclasses import dataclass

#: Value before the step known; one of two neighbours; unknown.
CERTAIN, EITHER, UNKNOWN = 0, 1, 2


@dataclass(frozen=True)
class AdamWStep:
    """Scalars of one step, used as float32, each operation rounded to float32.

    With the moments ``m`` and ``v`` after the step, a weight ``w`` became ``F(w)``::

        d = sqrt(v) / root + eps
        u = (alpha * m) / d             or  alpha * (m / d)      if divide_first
        F(w) = w * decay + u            rounded once (a fused multiply-add) if contracted

    which is AdamW (Loshchilov and Hutter 2019) with ``decay = 1 - lr * weight_decay``,
    ``alpha = -lr / (1 - beta1 ** t)`` and ``root = sqrt(1 - beta2 ** t)``.

    Attributes:
        decay: factor of the weight.
        alpha: factor of the first moment, negative.
        root: divisor of the second moment's root.
        eps: added to the denominator.
        divide_first: which of the two quotients.
        contracted: whether product and sum are rounded once.
        margin: by how many units in the last place an optimizer's result may differ from ``F``.

    Raises:
        ValueError: a margin below 0 or above 2^20.
    """

    decay: float
    alpha: float
    root: float
    eps: float
    divide_first: bool = False
    contracted: bool = False
    margin: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.margin <= 1 << 20:
            raise ValueError(f"a margin is 0 to 2^20 units in the last place, not {self.margin}")
