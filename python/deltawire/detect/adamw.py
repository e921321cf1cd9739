"""``AdamWBoundaryDetector``: what AdamW changed, from its state after the step alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _native
from ..types import Tiling
from .journal import Found
from .recipes import Recipe, Unknown, Update, recipe_of, usable
from .report import log
from .served import Part, local_of
from .stepwise import StepwiseDetector, optimizers_of

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist


class AdamWBoundaryDetector(StepwiseDetector):
    """Finds changes from the optimizer's state after the step; keeps no copy of anything.

    The update ``F(w)`` of an element rises with ``w``, and all else in it is known after the step.
    So the served value changed only if the weight just below its rounding cell, or the one just
    above, leads to what the weight is now or beyond it. No inverse is computed, and nothing can be
    missed while ``F`` is what the optimizer computes, up to a margin for fused kernels. The value
    before is found likewise; of about 2 in 10,000 changes it is one of two neighbours, and the
    base's digests tell which.

    Holds for FP32 parameters under ``torch.optim.AdamW`` and ``Adam`` (single, foreach, fused,
    amsgrad, maximize) and some fused kernels of other packages, served as BF16. All others, and
    tensors whose state is foreign, are compared around the step as by :class:`StepwiseDetector`,
    which one log line tells. Where steps were missed (a counter that moved by more than one), the
    tensor is sent whole if its digests say that it changed.

    Args as for :class:`StepwiseDetector`; ``model`` may map names to the FP32 masters that the
    optimizer holds.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        *,
        view: Any = None,
        tiling: Tiling | None = None,
        threads: int | None = None,
        ranks: dist.ProcessGroup | None = None,
        bucket_bytes: int | None = -1,
    ) -> None:
        super().__init__(
            model,
            optimizer,
            view=view,
            tiling=tiling,
            threads=threads,
            ranks=ranks,
            bucket_bytes=bucket_bytes,
        )
        #: Parts by parameter.
        self._of: dict[int, list[Part]] = {}
        for part in self._parts.watched:
            self._of.setdefault(id(part.origin.parameter), []).append(part)
        self._recipes: dict[int, Recipe | None] = {}
        self._seen: dict[int, int] = {}
        #: Why a parameter is compared around the step.
        self._fallback: dict[int, str] = {}
        stepped: set[int] = set()
        for one in optimizers_of(optimizer):
            self._recipes[id(one)] = recipe_of(one)
            stepped |= {id(p) for group in one.param_groups for p in group["params"]}
            self._look(one)
        self._tell_missing(stepped)

    def _tell_missing(self, stepped: set[int]) -> None:
        missing = [
            part.name
            for part in self._parts.mine
            if part.name not in self._parts.sliced
            and part.origin.parameter.requires_grad
            and id(part.origin.parameter) not in stepped
        ]
        if missing:
            log.warning(
                "%d parameters that require gradients are in no optimizer given, such as %s; if "
                "something else changes them, their tiles are sent whole",
                len(missing),
                missing[0],
            )

    def _look(self, optimizer: torch.optim.Optimizer) -> None:
        """Decide how each parameter of an optimizer is watched, where that is not decided."""
        recipe = self._recipes[id(optimizer)]
        reasons: dict[str, list[str]] = {}
        for group in optimizer.param_groups:
            for p in group["params"]:
                if id(p) not in self._of or id(p) in self._seen or id(p) in self._fallback:
                    continue
                try:
                    self._check(recipe, p, group)
                    self._seen[id(p)] = 0 if recipe is None else recipe.number(p, group)
                except Unknown as error:
                    self._fall_back(p, str(error), reasons)
        self._tell(optimizer, reasons)

    def _check(
        self, recipe: Recipe | None, parameter: torch.Tensor, group: Mapping[str, Any]
    ) -> None:
        if recipe is None:
            raise Unknown("the optimizer is not one whose steps are known")
        recipe.check(parameter, group)
        if any(not p.origin.casts or p.dtype != "BF16" for p in self._of[id(parameter)]):
            raise Unknown("is not served as BF16")
        if not local_of(parameter).is_contiguous():
            raise Unknown("is not contiguous")

    def _fall_back(self, parameter: torch.Tensor, why: str, reasons: dict[str, list[str]]) -> None:
        self._fallback[id(parameter)] = why
        for part in self._of[id(parameter)]:
            reasons.setdefault(why, []).append(part.name)

    def _tell(self, optimizer: torch.optim.Optimizer, reasons: dict[str, list[str]]) -> None:
        if not reasons:
            return
        told = "; ".join(
            f"{names[0]} and {len(names) - 1} more: {why}"
            if len(names) > 1
            else f"{names[0]}: {why}"
            for why, names in reasons.items()
        )
        log.warning("compared around each step of %s: %s", type(optimizer).__name__, told)

    def _watched(self, optimizer: torch.optim.Optimizer) -> Iterable[Part]:
        # Parameters may have been added since the last step, and counters loaded.
        self._look(optimizer)
        self._count(optimizer)
        return [p for p in self._parts.watched if id(p.origin.parameter) in self._fallback]

    def _count(self, optimizer: torch.optim.Optimizer) -> None:
        """Note where the counters are before a step."""
        recipe = self._recipes[id(optimizer)]
        if recipe is None:
            return
        for group in optimizer.param_groups:
            for p in group["params"]:
                before = self._seen.get(id(p))
                if before is None or id(p) in self._fallback:
                    continue
                with contextlib.suppress(Unknown):
                    self._seen[id(p)] = recipe.number(p, group)
                if self._seen[id(p)] != before:
                    now = self._seen[id(p)]
                    self._lose(self._of[id(p)], f"a step counter went from {before} to {now}")

    def _stepped(self, optimizer: torch.optim.Optimizer) -> None:
        recipe = self._recipes[id(optimizer)]
        if recipe is None:
            return
        reasons: dict[str, list[str]] = {}
        for group in optimizer.param_groups:
            for p in group["params"]:
                if id(p) in self._seen and id(p) not in self._fallback:
                    self._look_back(recipe, p, group, reasons)
        self._tell(optimizer, reasons)

    def _look_back(
        self,
        recipe: Recipe,
        parameter: torch.Tensor,
        group: Mapping[str, Any],
        reasons: dict[str, list[str]],
    ) -> None:
        """Find what the last step changed of a parameter."""
        parts = self._of[id(parameter)]
        before = self._seen[id(parameter)]
        try:
            number = recipe.number(parameter, group)
            self._seen[id(parameter)] = number
            if number == before:
                return
            if number != before + 1:
                self._lose(parts, f"a step counter went from {before} to {number} in one step")
                return
            if parameter.grad is None and not recipe.counts_alone:
                return
            update = recipe.update(parameter, group)
        except Unknown as error:
            # What this step changed is not known; from the next one on it is compared.
            self._fall_back(parameter, str(error), reasons)
            self._lose(parts, str(error))
            return
        if not usable(update.step):
            self._lose(parts, "the update does not rise with the weight: lr * weight_decay > 1")
            return
        for part in parts:
            self._note(part, _changes(local_of(parameter), update, part.origin.span, self._threads))

    def _lose(self, parts: list[Part], why: str) -> None:
        for part in parts:
            self._journals[part.name].lose(why)


def _changes(
    w: torch.Tensor, update: Update, span: tuple[int, int] | None, threads: int | None
) -> Found:
    """Elements that one step changed, of the parameter or a span of it."""
    m, v = local_of(update.m), local_of(update.v)
    if span is not None:
        w, m, v = (t.view(-1)[span[0] : span[0] + span[1]] for t in (w, m, v))
    if w.device.type != "cpu":
        from .device import boundary

        found = [t.cpu().numpy() for t in boundary(w, m, v, update.step)]
        return Found(found[0], found[1], found[2].view(np.uint16), found[3].view(np.uint16))
    flat = [t.contiguous().view(-1).numpy() for t in (w, m, v)]
    step = update.step
    got = _native.boundary(
        *flat,
        decay=step.decay,
        alpha=step.alpha,
        root=step.root,
        eps=step.eps,
        divide_first=step.divide_first,
        contracted=step.contracted,
        margin=step.margin,
        threads=threads,
    )
    assert got is not None  # `usable` has seen to it
    return Found(
        np.frombuffer(got[0], np.int64),
        np.frombuffer(got[1], np.uint8),
        np.frombuffer(got[2], np.uint16),
        np.frombuffer(got[3], np.uint16),
    )
