"""``StepwiseDetector``: compares around the optimizer's step, bucket by bucket."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..tensors import ITEMSIZE
from ..types import Tiling
from .base import Detector
from .journal import Found, Journal
from .served import Part
from .slices import exchanged, together, within
from .stepping import BUCKET_BYTES, Stepping, steps_alone

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist


def optimizers_of(optimizer: Any) -> list[torch.optim.Optimizer]:
    """One or several optimizers, or what wraps one, as a list."""
    if isinstance(optimizer, Sequence):
        return [one for several in optimizer for one in optimizers_of(several)]
    # What this rank steps of a sharded optimizer.
    if type(optimizer).__name__ == "ZeroRedundancyOptimizer":
        optimizer = optimizer.optim
    # accelerate and others wrap an optimizer under this name.
    while not hasattr(type(optimizer), "add_param_group") and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    if not hasattr(optimizer, "param_groups") or not callable(getattr(optimizer, "step", None)):
        raise TypeError(f"expected an optimizer with param_groups, got {type(optimizer).__name__}")
    return [optimizer]


class StepwiseDetector(Detector):
    """Compares around each bucket of the optimizer's step.

    Exact for any optimizer. It replaces ``optimizer.step`` on the given object: parameters are
    stepped in buckets, with what receivers serve of each bucket copied before. What is not changed
    by a step (frozen parameters, buffers) is proven unchanged by its digest.

    Args:
        model, view, tiling, threads, ranks: as for :class:`Detector`.
        optimizer: one, or several that each step some of the parameters. Call :meth:`close` to
            give their ``step`` back.
        bucket_bytes: served bytes of parameters that are stepped together, at least one parameter;
            None: all at once, which copies all that is served during the step. By default 32 MiB
            for the optimizers of torch, and all at once for others, of which nobody knows whether
            they look at all gradients together.
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
        several = optimizers_of(optimizer)
        stepped = {id(p) for one in several for g in one.param_groups for p in g["params"]}
        super().__init__(
            model, view=view, tiling=tiling, threads=threads, ranks=ranks, stepped=stepped
        )
        #: Of what is published here, and of what is stepped here.
        self._journals = {
            p.name: Journal(ITEMSIZE[p.dtype]) for p in self._parts.mine + self._parts.watched
        }
        self._at_write: dict[str, Found] = {}
        #: What other ranks found in what is published here.
        self._others: dict[str, Journal] = {}
        self._others_lost: dict[str, str] | None = None
        self._steppings = [
            Stepping(
                one,
                watched=lambda one=one: self._watched(one),  # type: ignore[misc]
                found=self._note,
                finished=lambda one=one: self._stepped(one),  # type: ignore[misc]
                bucket_bytes=(BUCKET_BYTES if steps_alone(one) else None)
                if bucket_bytes == -1
                else bucket_bytes,
            )
            for one in several
        ]

    def close(self) -> None:
        """Give the optimizers' ``step`` back."""
        for stepping in self._steppings:
            stepping.close()

    def _watched(self, optimizer: torch.optim.Optimizer) -> Iterable[Part]:
        """Parts to be compared around the step that begins."""
        return self._parts.watched

    def _note(self, part: Part, found: Found) -> None:
        if part.first:
            found = replace(found, positions=found.positions + part.first)
        self._journals[part.name].add(found)

    def _stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """A step is over."""

    def exchange(self) -> None:
        """Send what was found in tiles of other ranks to them; all ranks call it.

        ``publish_together`` does. Needed where ranks step slices (:class:`Slice`).
        """
        if not self._parts.sliced:
            return
        if self.ranks is None:
            self._others_lost = {}
            return
        kept = {
            part.name: _span(part) for part in self._parts.mine if part.name in self._parts.sliced
        }
        journals = {n: j for n, j in self._journals.items() if n in self._parts.sliced}
        self._others, self._others_lost = exchanged(journals, kept, self.ranks)

    def _found(self, part: Part) -> Found:
        found = self._journals[part.name].found
        if part.name not in self._parts.sliced:
            return found
        if self._others_lost is None:
            raise ValueError("ranks that step slices publish together: publish_together")
        return together(within(found, *_span(part)), self._others.get(part.name))

    def _lost(self, part: Part) -> str | None:
        others = self._others_lost or {}
        return self._journals[part.name].lost or others.get(part.name)

    def _wrote(self) -> None:
        self._at_write = {name: journal.found for name, journal in self._journals.items()}

    def _adopt(self) -> None:
        moved = [
            name
            for name, journal in self._journals.items()
            if journal.found is not self._at_write.get(name)
        ]
        self.settle()
        for name in moved:
            # It is known what was before the version that was written, not what is in it.
            self._journals[name].lose("a version was published although the store said otherwise")

    def _restart(self) -> None:
        for journal in self._journals.values():
            journal.clear()
        self._others, self._others_lost = {}, None


def _span(part: Part) -> tuple[int, int]:
    """First element of what is published of a part, and the one behind the last, in the tensor."""
    row, rows, _, cols = part.place
    return row * cols, (row + rows) * cols
