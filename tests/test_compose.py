"""Composing deltas through the Python surface."""

from __future__ import annotations

import io
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

import deltawire as dw
from deltawire.checkpoint.write import write_safetensors
from deltawire.types import Profile


def chain(versions: int) -> list[dict[str, torch.Tensor]]:
    """A policy and the versions after it: small steps of BF16 weights, an index that moves."""
    torch.manual_seed(0)
    master = torch.randn(300, 256) * 0.02
    states = []
    for version in range(versions):
        ids = np.arange(8) + version
        states.append({"w": master.to(torch.bfloat16), "ids": torch.from_numpy(ids)})
        master = master + 2e-6 * torch.randn_like(master)
    return states


def deltas(states: list[dict[str, torch.Tensor]], profile: Profile) -> list[bytes]:
    out = []
    for version, (old, new) in enumerate(itertools.pairwise(states)):
        sink = io.BytesIO()
        dw.diff(old, new, sink, base_version=version, profile=profile, run="r")
        out.append(sink.getvalue())
    return out


@pytest.mark.parametrize("profile", ["compact", "fast", "overwrite"])
def test_with_the_base_it_is_the_delta_of_the_ends(profile: Profile, tmp_path: Path) -> None:
    states = chain(6)
    base = tmp_path / "base.safetensors"
    write_safetensors(base, states[0])
    stats = dw.compose(deltas(states, profile), tmp_path / "x.dw", base=base)
    direct = io.BytesIO()
    want = dw.diff(states[0], states[-1], direct, base_version=0, version=5)
    assert (stats.changed, stats.base_state, stats.result_state) == (
        want.changed,
        want.base_state,
        want.result_state,
    )
    assert (stats.elements, stats.dense_bytes) == (want.elements, want.dense_bytes)
    info = dw.inspect(tmp_path / "x.dw")
    assert (info.base_version, info.version, info.profile, info.run) == (0, 5, "compact", "r")
    target = {name: tensor.clone() for name, tensor in states[0].items()}
    assert dw.apply(tmp_path / "x.dw", target).result_state == want.result_state
    assert all(torch.equal(target[name], states[-1][name]) for name in target)
    # Changes that come and go cost nothing.
    assert stats.bytes < sum(map(len, deltas(states, "compact")))


@pytest.mark.parametrize("profile", ["fast", "overwrite"])
def test_without_the_base(profile: Profile) -> None:
    states = chain(4)
    sink = io.BytesIO()
    dw.compose(deltas(states, profile), sink)
    assert dw.inspect(sink.getvalue()).profile == profile
    target = {name: tensor.clone() for name, tensor in states[0].items()}
    dw.apply(sink.getvalue(), target)
    assert all(torch.equal(target[name], states[-1][name]) for name in target)


def test_refusals_leave_no_file(tmp_path: Path) -> None:
    states = chain(4)
    parts = deltas(states, "compact")
    out = tmp_path / "x.dw"
    with pytest.raises(dw.WrongBase, match="give the state"):
        dw.compose(parts, out)
    with pytest.raises(dw.WrongBase, match="version 1"):
        dw.compose(parts, out, base=states[2])
    with pytest.raises(dw.LayoutMismatch, match="does not start from version"):
        dw.compose([parts[0], parts[2]], out, base=states[0])
    with pytest.raises(dw.LayoutMismatch, match="not in the base"):
        dw.compose(parts, out, base={"w": states[0]["w"]})
    with pytest.raises(dw.LayoutMismatch, match="shape"):
        dw.compose(parts, out, base={**states[0], "w": states[0]["w"][1:]})
    with pytest.raises(dw.LayoutMismatch, match="no deltas"):
        dw.compose([], out, base=states[0])
    damaged = bytearray(parts[1])
    damaged[len(damaged) // 2] ^= 1
    with pytest.raises(dw.CorruptDelta):
        dw.compose([parts[0], bytes(damaged), parts[2]], out, base=states[0])
    assert not list(tmp_path.iterdir())
