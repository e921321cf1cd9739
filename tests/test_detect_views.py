"""What receivers serve is not always a BF16 cast: other dtypes, and callbacks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import deltawire as dw
from board_runs import fresh_memory
from deltawire.detect import AdamWBoundaryDetector, SnapshotDetector, StepwiseDetector
from deltawire.tensors import as_view
from detect_runs import backward, made

KINDS = {
    "snapshot": lambda model, optimizer, **how: SnapshotDetector(model, **how),
    "stepwise": StepwiseDetector,
    "adamw": AdamWBoundaryDetector,
}


def blocks_of_fp8(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """Matrices in FP8 with a scale for each 32 rows; all else in BF16."""
    if tensor.dim() != 2:
        return {name: tensor.to(torch.bfloat16)}
    rows = tensor.reshape(-1, 32 * tensor.shape[1])
    scale = rows.abs().amax(1).clamp(min=1e-12) / 448
    quantised = (rows / scale[:, None]).to(torch.float8_e4m3fn).view(tensor.shape)
    return {name: quantised, f"{name}_scale_inv": scale}


def fused_names(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """Under other names, one parameter as two tensors."""
    if "kv_proj" in name:
        k, v = tensor.to(torch.bfloat16).chunk(2)
        return {name.replace("kv", "k"): k, name.replace("kv", "v"): v}
    return {name: tensor.to(torch.bfloat16)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "view", [torch.float16, torch.float32, torch.float8_e5m2, blocks_of_fp8, fused_names]
)
def test_views(kind: str, view: Any) -> None:
    model = made()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def expected() -> dict[str, torch.Tensor]:
        state = dict(model.named_parameters()) | {"scale": model.scale}
        if callable(view):
            return {k: v for n, t in state.items() for k, v in view(n, t.detach()).items()}
        return {n: t.detach().to(view) for n, t in state.items()}

    board = dw.Board(fresh_memory(), create=True)
    with KINDS[kind](model, optimizer, view=view) as detector, board.publisher() as publisher:
        assert list(detector.tensors) == list(expected())
        publisher.publish_anchor(0, dict(detector.served()))
        target = {name: t.clone() for name, t in expected().items()}
        follower = board.follower(target, version=0)
        for number in range(1, 4):
            backward(model, number)
            optimizer.step()
            stats = publisher.publish(detector=detector)
            assert stats.changed > 100
            assert stats.resent == 0
            follower.advance()
            for name, tensor in expected().items():
                assert np.array_equal(as_view(target[name]).data, as_view(tensor).data), name


def test_a_callback_that_serves_a_name_twice() -> None:
    with pytest.raises(dw.LayoutMismatch, match="served twice"):
        SnapshotDetector(made(), view=lambda name, tensor: {"w": tensor})


def test_a_parameter_in_no_order() -> None:
    """Rows that do not lie apart evenly cannot be read in place."""
    tensor = torch.zeros(4, 6, 8).transpose(0, 1)
    with pytest.raises(dw.LayoutMismatch, match="make it contiguous"):
        SnapshotDetector({"w": tensor})
    # A transposed matrix can.
    weight = torch.nn.Parameter(torch.randn(40, 64).t())
    optimizer = torch.optim.AdamW([weight], lr=1e-4)
    with AdamWBoundaryDetector({"w": weight}, optimizer) as detector:
        weight.grad = torch.randn(64, 40)
        before = weight.detach().to(torch.bfloat16).clone()
        optimizer.step()
        changes = dict(detector.collect())["w"]
        after = weight.detach().to(torch.bfloat16)
        assert torch.equal(
            torch.from_numpy(changes.positions), (before != after).flatten().nonzero()[:, 0]
        )


def test_half_precision_parameters() -> None:
    """FP16 parameters that are served as BF16."""
    weight = torch.nn.Parameter(torch.randn(40, 64).half())
    optimizer = torch.optim.SGD([weight], lr=1e-2)
    snapshot = SnapshotDetector({"w": weight})
    with StepwiseDetector({"w": weight}, optimizer) as detector:
        weight.grad = torch.randn(40, 64).half()
        optimizer.step()
        ours, theirs = dict(detector.collect())["w"], dict(snapshot.collect())["w"]
        assert np.array_equal(ours.positions, theirs.positions)
        assert ours.values.dtype == torch.bfloat16
