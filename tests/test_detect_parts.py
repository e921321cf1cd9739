"""Journals, placements and recipes: each against a naive twin or the thing itself."""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard

import deltawire as dw
from deltawire.detect import AdamWBoundaryDetector, placement, slices
from deltawire.detect.journal import Found, Journal
from deltawire.detect.parts import Held, _owners
from deltawire.detect.recipes import recipe_of
from detect_runs import backward, follow, made

pytestmark = pytest.mark.hypothesis


def found(entries: dict[int, tuple[int, int]]) -> Found:
    positions = np.array(sorted(entries), np.int64)
    old = np.array([entries[p][0] for p in sorted(entries)], np.uint16)
    sure = np.array([entries[p][1] for p in sorted(entries)], np.uint8)
    return Found(positions, sure, old, old + np.uint16(1))


ENTRIES = st.dictionaries(st.integers(0, 60), st.tuples(st.integers(0, 999), st.integers(0, 2)))


@given(st.lists(ENTRIES, max_size=6))
def test_the_first_value_of_an_element_is_the_base(steps: list[dict[int, tuple[int, int]]]) -> None:
    journal = Journal(2)
    naive: dict[int, tuple[int, int]] = {}
    for entries in steps:
        journal.add(found(entries))
        naive = {**entries, **naive}
    expected = found(naive)
    for name, column in vars(journal.found).items():
        assert np.array_equal(column, getattr(expected, name)), name
    journal.lose("first")
    journal.lose("second")
    assert journal.lost == "first"
    journal.clear()
    assert (len(journal.found), journal.lost) == (0, None)


@given(ENTRIES, st.integers(0, 61), st.integers(0, 61))
def test_spans_of_what_was_found(entries: dict[int, tuple[int, int]], a: int, b: int) -> None:
    a, b = min(a, b), max(a, b)
    inner = slices.within(found(entries), a, b)
    outer = slices.outside(found(entries), a, b)
    assert list(inner.positions + a) == [p for p in sorted(entries) if a <= p < b]
    assert list(outer.positions) == [p for p in sorted(entries) if not a <= p < b]
    assert len(inner.sure) == len(inner.old) == len(inner.other) == len(inner)


@given(
    st.integers(0, 30),
    st.integers(1, 9),
    st.integers(1, 8),
    st.lists(st.integers(0, 270), max_size=4),
)
def test_bands_of_slices_cover_the_rows_once(
    rows: int, cols: int, tile_rows: int, cuts: list[int]
) -> None:
    whole = rows * cols
    ends = [0, *sorted(min(cut, whole) for cut in cuts), whole]
    covered: list[int] = []
    for start, stop in pairwise(ends):
        row, n, _, width = slices.band(rows, cols, tile_rows, start, stop - start)
        assert width == cols
        covered += range(row, row + n)
        if n:
            assert row % tile_rows == 0
            assert start <= row * cols < stop
    assert covered == list(range(rows))


PLACEMENTS = st.sampled_from([Replicate(), Shard(0), Shard(1), "strided"])


@given(
    st.tuples(st.integers(1, 40), st.integers(1, 24)),
    st.lists(st.tuples(st.integers(1, 4), PLACEMENTS), min_size=1, max_size=3),
)
def test_placements_are_torchs(shape: tuple[int, int], mesh: list[tuple[int, Any]]) -> None:
    sizes = tuple(n for n, _ in mesh)
    placements: list[Any] = []
    for i, (_, one) in enumerate(mesh):
        # As FSDP over tensor parallelism: the mesh dimensions to the right split first.
        right = [n for n, other in mesh[i + 1 :] if other == Shard(0)]
        strided = _StridedShard(0, split_factor=int(np.prod(right)))
        placements.append(one if one != "strided" else strided if right else Shard(0))
    for at in product(*(range(n) for n in sizes)):
        local, offset = _compute_local_shape_and_global_offset(shape, sizes, list(at), placements)
        ours = placement._local(shape, sizes, at, placements)
        if ours is None:
            continue
        assert tuple(ours[0]) == tuple(local)
        if 0 not in local:
            assert tuple(ours[1]) == tuple(offset)


def test_a_shard_with_gaps_is_refused() -> None:
    sizes, placements = (2, 2), [Shard(0), _StridedShard(0, split_factor=2)]
    assert placement._local((8, 4), sizes, (0, 0), placements) is None
    with pytest.raises(dw.LayoutMismatch, match="first or its last"):
        placement._box((8, 4), sizes, (0, 0), placements, "w")
    with pytest.raises(dw.LayoutMismatch, match="first or its last"):
        placement._box((4, 6, 4), (2,), (0,), [Shard(1)], "w")
    assert placement._box((4, 6, 4), (2,), (1,), [Shard(0)], "w") == (12, 12, 0, 4)


def held(name: str, place: placement.Box, *, stepped: bool = False) -> Held:
    return Held(name, "BF16", (8, 4), place, (None, None), stepped)


def test_who_publishes_what_several_hold() -> None:
    top, low, all_ = (0, 4, 0, 4), (4, 4, 0, 4), (0, 8, 0, 4)
    by_name = {
        "copies": [(rank, held("copies", all_)) for rank in range(3)],
        "shards": [(0, held("shards", top)), (1, held("shards", low)), (2, held("shards", top))],
        "stepped": [(0, held("stepped", all_)), (2, held("stepped", all_, stepped=True))],
    }
    owners = _owners(by_name, 3, complete=True)
    assert owners["stepped", all_] == 2
    assert owners["shards", low] == 1
    assert {owners["copies", all_], owners["shards", top]} == {0, 2}
    missing = {"w": [(0, held("w", top))]}
    with pytest.raises(dw.LayoutMismatch, match="16 of 32 elements"):
        _owners(missing, 2, complete=True)
    assert _owners(missing, 2, complete=False) == {("w", top): 0}
    other = Held("w", "F32", (8, 4), all_, (None, None), False)
    with pytest.raises(dw.LayoutMismatch, match="on rank 1"):
        _owners({"w": [(0, held("w", all_)), (1, other)]}, 2, complete=True)


class FusedAdam(torch.optim.Optimizer):
    """The order of operations of a widespread fused kernel, and its group-wide step counter."""

    def __init__(self, params: Any, lr: float, weight_decay: float, adam_w_mode: bool) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "bias_correction": True,
                "betas": (0.9, 0.99),
                "eps": 1e-8,
                "weight_decay": weight_decay,
            },
        )
        self.adam_w_mode = int(adam_w_mode)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """One step."""
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                    state["exp_avg_sq"] = torch.zeros_like(p)
                m, v, g = state["exp_avg"], state["exp_avg_sq"], p.grad
                if not self.adam_w_mode:
                    g = g + group["weight_decay"] * p
                m.mul_(beta1).add_(g * (1 - beta1))
                v.mul_(beta2).add_(g * g * (1 - beta2))
                first = m / (1 - beta1 ** group["step"])
                second = v / (1 - beta2 ** group["step"])
                update = first / (second.sqrt() + group["eps"])
                if self.adam_w_mode:
                    update = update + group["weight_decay"] * p
                p.sub_(group["lr"] * update)


FusedAdam.__module__ = "apex.optimizers.fused_adam"


@pytest.mark.parametrize("decoupled", [True, False])
def test_fused_kernels_of_other_packages(decoupled: bool) -> None:
    """Found by their state, within the margin for their own order of operations."""
    model = made()
    optimizer = FusedAdam(model.parameters(), 1e-5, 0.1, decoupled)
    assert recipe_of(optimizer) is not None

    def step(number: int) -> None:
        backward(model, number)
        if number == 3:
            # Its group's counter goes on, and it does not.
            model.norm.weight.grad = None
        optimizer.step()

    with AdamWBoundaryDetector(model, optimizer) as detector:
        assert not detector._fallback
        for stats in follow(detector, model, step, 20):
            assert detector.proof is not None
            assert (detector.proof.wrong, detector.proof.open, stats.resent) == (0, 0, 0)


def test_a_subclass_with_a_step_of_its_own_is_not_known() -> None:
    class Own(torch.optim.AdamW):
        """Something else."""

        def step(self, closure: Any = None) -> None:
            """Nothing."""

    class Named(torch.optim.AdamW):
        """The same by another name."""

    parameters = [torch.nn.Parameter(torch.ones(3))]
    assert recipe_of(Own(parameters)) is None
    assert recipe_of(Named(parameters)) is not None
    assert recipe_of(torch.optim.NAdam(parameters)) is None


def test_slices_must_fit() -> None:
    with pytest.raises(ValueError, match="elements 3 to 13"):
        slices.Slice(torch.ones(3, 4), torch.ones(100), 0, 3, 10)
    with pytest.raises(ValueError, match="buffer of shape"):
        slices.Slice(torch.ones(3, 4), torch.ones(8), 3, 0, 6)
