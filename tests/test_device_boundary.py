"""The boundary test on a device, in Triton's interpreter, against its twin."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import numpy.typing as npt
import pytest

import boundary_twin
import deltawire as dw
from deltawire.detect import device, matrices
from deltawire.detect.step import CERTAIN, EITHER, UNKNOWN, AdamWStep
from interpreted import moments, torch

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

FORMS = [
    pytest.param(first, contracted, margin, id=f"{first:d}{contracted:d}-{margin}")
    for first in (False, True)
    for contracted in (False, True)
    for margin in (0, 1, 4)
]


def matches_twin(
    step: boundary_twin.Step, w: torch.Tensor, m: torch.Tensor, v: torch.Tensor
) -> npt.NDArray[np.uint8]:
    expected = boundary_twin.changes(step, *(x.numpy().reshape(-1) for x in (w, m, v)))
    got = device.boundary(w, m, v, AdamWStep(**asdict(step)))
    np.testing.assert_array_equal(got.positions.numpy(), expected.positions)
    np.testing.assert_array_equal(got.kinds.numpy(), expected.kinds)
    np.testing.assert_array_equal(got.old.numpy().view(np.uint16), expected.old)
    np.testing.assert_array_equal(got.other.numpy().view(np.uint16), expected.other)
    return expected.kinds


@pytest.mark.parametrize(("first", "contracted", "margin"), FORMS)
def test_boundary_as_in_training(
    rng: np.random.Generator, first: bool, contracted: bool, margin: int
) -> None:
    step = boundary_twin.Step(1 - 1e-7, -3e-5, 0.3, 1e-8, first, contracted, margin)
    kinds = matches_twin(step, *moments(rng, (71, 83)))
    assert (kinds == CERTAIN).sum() > 900


def extremes(rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Every combination of weights and moments at which something could go wrong."""
    patterns = [0x0000, 0x0001, 0x007F, 0x0080, 0x3F7F, 0x3F80, 0x7F7F, 0x7F80]
    borders = [
        ((p << 16) + by) % (1 << 32) for p in patterns for by in (-0x8000, 0, 0x7FFF, 0x8000)
    ]
    near = [b + by for b in borders for by in (-1, 0, 1) if 0 <= b + by <= 0x7F800000]
    near += [0x7F800001, 0x7FC00000, 0x7FFFFFFF]
    w = np.array([n | sign for n in near for sign in (0, 0x80000000)], np.uint32).view(np.float32)
    tiny, huge = 1e-45, 3e38
    m = [0.0, -0.0, tiny, -4e-42, -1e-8, 1e-3, huge, np.inf, np.nan]
    v = [0.0, -0.0, tiny, 1e-12, 1.0, huge, np.inf, -1.0, np.nan]
    grid = np.meshgrid(w, np.array(m, np.float32), np.array(v, np.float32), indexing="ij")
    return tuple(torch.from_numpy(x.reshape(-1).copy()) for x in grid)  # type: ignore


@pytest.mark.parametrize(("first", "contracted", "margin"), FORMS)
def test_boundary_at_extremes(
    rng: np.random.Generator, first: bool, contracted: bool, margin: int
) -> None:
    w, m, v = extremes(rng)
    for scalars in [(1.0, -1e-3, 1.0, 0.0), (0.9999, -1e-6, 0.5, 1e-8)]:
        kinds = matches_twin(boundary_twin.Step(*scalars, first, contracted, margin), w, m, v)
        assert {CERTAIN, UNKNOWN} <= set(kinds.tolist())
        assert margin == 0 or EITHER in kinds


def test_boundary_of_odd_steps(rng: np.random.Generator) -> None:
    """Without decay or step, weights that do not come back, margins wider than a cell."""
    some = extremes(rng)
    for scalars in [(1.0, 0.0, 1.0, 1e-8), (0.0, -1e-3, 1.0, 1e-8)]:
        for margin in (0, 3):
            matches_twin(boundary_twin.Step(*scalars, margin=margin), *some)
    step = boundary_twin.Step(1 - 1e-7, -3e-5, 0.3, 1e-8, margin=40_000)
    kinds = matches_twin(step, *moments(rng, (5000,)))
    assert UNKNOWN in kinds


def test_boundary_of_shapes(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    step = boundary_twin.Step(1 - 1e-7, -3e-5, 0.3, 1e-8, margin=1)
    for shape in [(0,), (4, 0), (), (1,), (1025,), (3, 5, 7)]:
        matches_twin(step, *moments(rng, shape))
    w, m, v = moments(rng, (40, 100))
    for narrow in (1 << 30, 1):
        monkeypatch.setattr(matrices, "NARROW", narrow)
        matches_twin(step, w[:, 9:70], m[:, :61].contiguous(), v[:, 39:])
    with pytest.raises(dw.LayoutMismatch, match=r"m is torch\.bfloat16"):
        device.boundary(w, m.bfloat16(), v, AdamWStep(1.0, -1.0, 1.0, 0.0))
    with pytest.raises(dw.LayoutMismatch, match=r"w is torch\.float16, not"):
        device.boundary(w.half(), m.half(), v.half(), AdamWStep(1.0, -1.0, 1.0, 0.0))
    with pytest.raises(ValueError, match="margin"):
        AdamWStep(1.0, -1.0, 1.0, 0.0, margin=-1)
