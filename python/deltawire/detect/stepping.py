"""Running an optimizer's step in buckets, and looking at what each one changes.

Exact for any optimizer: what a bucket's parameters serve is copied, the bucket is stepped, and both
are compared. So no more than one bucket is ever copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import MethodType
from typing import TYPE_CHECKING, Any

from .compare import Snapshot, differences
from .journal import Found
from .served import Part

if TYPE_CHECKING:
    import torch

#: Served bytes of the parameters that are stepped together.
BUCKET_BYTES = 32 << 20


def steps_alone(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step of all parameters is one of each: so for the optimizers of torch.

    Others may look at all gradients together, such as for a norm, and are stepped as a whole.
    """
    step = getattr(type(optimizer).step, "__module__", "")
    return step.startswith("torch.optim") and type(optimizer).__name__ != "LBFGS"


class Stepping:
    """Takes an optimizer's ``step`` over until :meth:`close`.

    Args:
        optimizer: its ``step`` is replaced on this object alone.
        watched: parts to be compared around the step, asked at each one.
        found: called with what changed of a part.
        finished: called at the end of each step.
        bucket_bytes: served bytes of parameters stepped together; None: all.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        watched: Callable[[], Iterable[Part]],
        found: Callable[[Part, Found], None],
        finished: Callable[[], None],
        bucket_bytes: int | None,
    ) -> None:
        self._optimizer = optimizer
        self._watched, self._note, self._finished = watched, found, finished
        self._bucket_bytes = bucket_bytes
        self._inner = optimizer.step
        self._own = "step" in vars(optimizer)
        self._open = True

        def step(_: Any, closure: Callable[[], Any] | None = None) -> Any:
            return self._step(closure)

        # Schedulers mark what they have wrapped, and look for it.
        if hasattr(self._inner, "_wrapped_by_lr_sched"):
            step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
        # A bound method, as schedulers that wrap it in turn expect.
        self._replaced = MethodType(step, optimizer)
        optimizer.step = self._replaced

    def close(self) -> None:
        """Give ``step`` back, unless somebody has wrapped it since: then it is passed through."""
        if not self._open:
            return
        self._open = False
        if vars(self._optimizer).get("step") is self._replaced:
            if self._own:
                self._optimizer.step = self._inner
            else:
                del self._optimizer.step

    def _step(self, closure: Callable[[], Any] | None = None) -> Any:
        import torch

        if not self._open:
            return self._inner(closure) if closure is not None else self._inner()
        loss = None
        if closure is not None:
            # Once, for all buckets.
            with torch.enable_grad():
                loss = closure()
        stepped = [p for group in self._optimizer.param_groups for p in group["params"]]
        parts: dict[int, list[Part]] = {}
        for part in self._watched():
            parts.setdefault(id(part.origin.parameter), []).append(part)
        buckets = self._buckets(stepped, parts)
        grads = [(p, p.grad) for p in stepped]
        try:
            for number, bucket in enumerate(buckets):
                if len(buckets) > 1:
                    inside = {id(p) for p in bucket}
                    for p, grad in grads:
                        p.grad = grad if id(p) in inside else None
                here = [part for p in bucket for part in parts.get(id(p), ())]
                before = [Snapshot(part) for part in here]
                result = self._inner()
                loss = result if loss is None and number == 0 else loss
                for part, copy in zip(here, before, strict=True):
                    self._note(part, differences(part, copy)[0])
        finally:
            for p, grad in grads:
                p.grad = grad
        self._finished()
        return loss

    def _buckets(
        self, stepped: list[torch.Tensor], parts: dict[int, list[Part]]
    ) -> list[list[torch.Tensor]]:
        """Parameters that are stepped together; those that nobody watches in one go."""
        if self._bucket_bytes is None:
            return [stepped]
        rest = [p for p in stepped if id(p) not in parts or p.grad is None]
        buckets: list[list[torch.Tensor]] = []
        size = self._bucket_bytes
        for p in stepped:
            if id(p) not in parts or p.grad is None:
                continue
            nbytes = sum(part.nbytes for part in parts[id(p)])
            if size + nbytes > self._bucket_bytes or not buckets:
                buckets.append([])
                size = 0
            buckets[-1].append(p)
            size += nbytes
        if any(p.grad is not None for p in rest) or not buckets:
            buckets.append(rest)
        return buckets
