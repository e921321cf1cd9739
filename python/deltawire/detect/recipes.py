"""What a step of an optimizer of the Adam family was, read from its state afterwards.

A recipe tells the scalars of the update ``w * decay + alpha * m / (sqrt(v) / root + eps)``, in
which order they were used, and by how many units in the last place a fused kernel may round
otherwise (:class:`AdamWStep`). What it does not know for certain it refuses, with a reason.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .step import AdamWStep

if TYPE_CHECKING:
    import torch

#: Fused Adam kernels of other packages, with the attribute that tells AdamW from Adam. They divide
#: and round in orders of their own, hence the margin.
_FUSED = {
    "apex.optimizers.fused_adam.FusedAdam": "adam_w_mode",
    "deepspeed.ops.adam.fused_adam.FusedAdam": "adam_w_mode",
    "deepspeed.ops.adam.cpu_adam.DeepSpeedCPUAdam": "adam_w_mode",
    "transformer_engine.pytorch.optimizers.fused_adam.FusedAdam": "adam_w_mode",
}
_FUSED_MARGIN = 4
#: ``torch.sqrt`` is one unit off now and then where a vector library does it; two units of the
#: result cover that. The fused kernel has roots of its own, but may be compiled with fused sums.
_SQRT_MARGIN, _CONTRACTED_MARGIN = 2, 1
#: On a GPU divisions become products with reciprocals, and products are fused into sums.
_DEVICE_MARGIN = 2


class Unknown(Exception):
    """A step that no recipe is exact for; says why."""


@dataclass(frozen=True)
class Update:
    """One parameter's step.

    Attributes:
        number: steps that the parameter has taken.
        step: its scalars.
        m, v: float32, the moments that it used.
    """

    number: int
    step: AdamWStep
    m: torch.Tensor
    v: torch.Tensor


class Recipe:
    """How one optimizer steps.

    Attributes:
        counts_alone: whether each parameter's steps are counted, not those of its group.
    """

    counts_alone = True

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def check(self, parameter: torch.Tensor, group: Mapping[str, Any]) -> None:
        """See that the recipe holds for a parameter, as far as it can be known before a step.

        Raises:
            Unknown: it does not.
        """
        if str(parameter.dtype) != "torch.float32":
            raise Unknown(f"is {str(parameter.dtype).removeprefix('torch.')}, not float32")
        if group.get("differentiable"):
            raise Unknown("is stepped differentiably")

    def number(self, parameter: torch.Tensor, group: Mapping[str, Any]) -> int:
        """How many steps a parameter has taken; 0 before the first."""
        raise NotImplementedError

    def update(self, parameter: torch.Tensor, group: Mapping[str, Any]) -> Update:
        """The last step of a parameter.

        Raises:
            Unknown: the state is not what it should be.
        """
        raise NotImplementedError

    def _moments(self, parameter: torch.Tensor, second: str) -> tuple[torch.Tensor, torch.Tensor]:
        state = self.optimizer.state[parameter]
        moments = []
        for name in ("exp_avg", second):
            moment = state.get(name)
            if moment is None:
                raise Unknown(f"has no {name} in its state, but {', '.join(map(str, state))}")
            if moment.dtype != parameter.dtype or moment.shape != parameter.shape:
                raise Unknown(
                    f"has an {name} of {str(moment.dtype).removeprefix('torch.')} and shape "
                    f"{list(moment.shape)}"
                )
            moments.append(moment)
        return moments[0], moments[1]


def _scalars(group: Mapping[str, Any], number: int, *, decoupled: bool) -> AdamWStep:
    """Scalars as torch computes them, in double precision (``torch.optim.adam``)."""
    lr, eps, decay = float(group["lr"]), float(group["eps"]), float(group["weight_decay"])
    beta1, beta2 = (float(beta) for beta in group["betas"])
    corrected = group.get("bias_correction", True)
    first = 1 - beta1**number if corrected else 1.0
    second = 1 - beta2**number if corrected else 1.0
    return AdamWStep(
        decay=1 - lr * decay if decoupled else 1.0,
        alpha=-(lr / first),
        root=second**0.5,
        eps=eps,
    )


class TorchAdam(Recipe):
    """``torch.optim.AdamW`` and ``Adam``: single tensors, foreach and fused."""

    def check(self, parameter: torch.Tensor, group: Mapping[str, Any]) -> None:
        super().check(parameter, group)
        if parameter.device.type not in ("cpu", "cuda"):
            raise Unknown(f"is on {parameter.device.type}")

    def number(self, parameter: torch.Tensor, group: Mapping[str, Any]) -> int:
        state = self.optimizer.state.get(parameter)
        if not state:
            return 0
        if "step" not in state:
            raise Unknown(f"has no step in its state, but {', '.join(map(str, state))}")
        return int(state["step"])

    def update(self, parameter: torch.Tensor, group: Mapping[str, Any]) -> Update:
        m, v = self._moments(parameter, "max_exp_avg_sq" if group.get("amsgrad") else "exp_avg_sq")
        number = self.number(parameter, group)
        step = _scalars(
            group, number, decoupled=bool(group.get("decoupled_weight_decay", _is_adamw(self)))
        )
        if parameter.device.type != "cpu":
            step = replace(step, margin=_DEVICE_MARGIN)
        else:
            margin = _CONTRACTED_MARGIN if group.get("fused") else _SQRT_MARGIN
            step = replace(step, margin=margin)
        return Update(number, step, m, v)


def _is_adamw(recipe: Recipe) -> bool:
    import torch

    return isinstance(recipe.optimizer, torch.optim.AdamW)


class FusedAdam(Recipe):
    """Fused kernels of other packages, which count the steps of a group."""

    counts_alone = False

    def number(self, parameter: torch.Tensor, group: Mapping[str, Any]) -> int:
        state = self.optimizer.state.get(parameter)
        if not state:
            return 0
        number = state.get("step", group.get("step"))
        if number is None:
            raise Unknown("has no step, in its state or its group")
        return int(number)

    def update(self, parameter: torch.Tensor, group: Mapping[str, Any]) -> Update:
        m, v = self._moments(parameter, "exp_avg_sq")
        number = self.number(parameter, group)
        mode = getattr(self.optimizer, _FUSED[_qualified(self.optimizer)])
        step = replace(_scalars(group, number, decoupled=bool(mode)), margin=_FUSED_MARGIN)
        return Update(number, step, m, v)


def _qualified(optimizer: Any) -> str:
    kind = type(optimizer)
    return f"{kind.__module__}.{kind.__qualname__}"


def recipe_of(optimizer: torch.optim.Optimizer) -> Recipe | None:
    """The recipe of an optimizer; None where none is known."""
    import torch

    # A subclass with a step of its own is something else. torch wraps the step of each class.
    if inspect.unwrap(type(optimizer).step) is inspect.unwrap(torch.optim.Adam.step):
        return TorchAdam(optimizer)
    if _qualified(optimizer) in _FUSED:
        return FusedAdam(optimizer)
    return None


def usable(step: AdamWStep) -> bool:
    """Whether the update rises with the weight: not where a huge learning rate turns it around."""
    return step.decay > 0 and all(map(math.isfinite, (step.decay, step.alpha, step.root, step.eps)))
