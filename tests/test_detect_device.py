"""Tiles proven where they lie: in Triton's interpreter, as what a CUDA device would do."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import deltawire as dw
import interpreted  # noqa: F401 - before torch imports triton
from deltawire.detect import (
    AdamWBoundaryDetector,
    SnapshotDetector,
    StepwiseDetector,
    base,
    compare,
)
from deltawire.detect.journal import Found
from deltawire.detect.served import Part
from deltawire.detect.step import EITHER, UNKNOWN
from detect_runs import follow, made


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """All tensors count as a device's."""
    for module in (base, compare):
        monkeypatch.setattr(module, "on_device", lambda tensor: True)


@pytest.mark.parametrize("profile", ["compact", "fast", "overwrite"])
@pytest.mark.parametrize("kind", [StepwiseDetector, AdamWBoundaryDetector])
def test_a_chain_of_versions(kind: Any, profile: str) -> None:
    model = made(vocabulary=90, width=16, layers=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-5)

    def step(number: int) -> None:
        backward_of_small(model, number)
        optimizer.step()

    with kind(model, optimizer) as detector:
        for stats in follow(detector, model, step, 3, profile=profile):
            assert stats.changed
            assert not stats.resent


def backward_of_small(model: Any, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 80, (2, 12), generator=generator)
    model.zero_grad()
    model(tokens).square().mean().backward()


def test_digests_are_those_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    model = made(vocabulary=70, width=16, layers=1)
    tiling = dw.Tiling(max_elements=600, min_elements=64, ways=2)
    there = SnapshotDetector(model, tiling=tiling)
    monkeypatch.setattr(base, "on_device", lambda tensor: False)
    here = SnapshotDetector(model, tiling=tiling)
    assert there._kept == here._kept
    assert there.state == here.state


def test_what_does_not_prove_right_is_brought_over() -> None:
    """A change that nobody saw, and one in doubt: settled, or sent whole, by the host."""
    weights = {
        name: torch.nn.Parameter(torch.randn(24, 40) * 0.02) for name in ("a", "b.down_proj.weight")
    }
    optimizer = torch.optim.AdamW(weights.values(), lr=1e-6)
    tiling = dw.Tiling(max_elements=256, min_elements=64, ways=2)
    snapshot = SnapshotDetector(weights, tiling=tiling)
    with AdamWBoundaryDetector(weights, optimizer, tiling=tiling) as detector:
        for number in range(3):
            for p in weights.values():
                p.grad = torch.randn(24, 40)
            optimizer.step()
            if number == 1:
                with torch.no_grad():
                    weights["a"][3, 3] += 1
            dict(snapshot.collect())
            out = _Null()
            with dw.StreamWriter(
                out, detector.mine, tiles=detector.tiles, base_state=detector.state
            ) as writer:
                detector.write(writer)
            detector.settle()
            assert detector.proof is not None
            assert detector.proof.wrong == (number == 1)
            assert detector.proof.tiles > 6
            assert detector.state == snapshot.state


@pytest.mark.parametrize("sure", [EITHER, UNKNOWN])
def test_a_piece_in_doubt_is_settled_by_the_host(
    sure: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only it is brought over, and its tile stays where it is."""
    weights = {"a": torch.nn.Parameter(torch.randn(300, 64) * 0.02)}
    optimizer = torch.optim.AdamW(weights.values(), lr=1e-5)
    snapshot = SnapshotDetector(weights)
    with AdamWBoundaryDetector(weights, optimizer) as detector:
        weights["a"].grad = torch.randn(300, 64)
        optimizer.step()
        original = detector._found

        def doubtful(part: Any) -> Found:
            found = original(part)
            kinds, old, other = found.sure.copy(), found.old.copy(), found.old.copy()
            kinds[5], old[5] = sure, old[5] ^ 3
            return Found(found.positions, kinds, old, other)

        detector._found = doubtful  # type: ignore[method-assign]
        monkeypatch.setattr(Part, "read", None)
        with dw.StreamWriter(_Null(), detector.mine, tiles=detector.tiles) as writer:
            detector.write(writer)
        detector.settle()
        assert detector.proof is not None
        assert (detector.proof.tiles, detector.proof.settled) == (1, 1)
        monkeypatch.undo()
        dict(snapshot.collect())
        assert detector.state == snapshot.state


class _Null:
    def write(self, data: Any) -> int:
        return len(data)
