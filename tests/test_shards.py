"""Ranks that hold parts of tensors: each applies its part, and all of it adds up to the whole."""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import deltawire as dw
from deltawire.digest import combine
from deltawire.types import Profile, Tiling

Array = npt.NDArray[np.generic]

#: Small tensors are cut where ranks cut them.
SMALL = Tiling(min_elements=1)
#: Rows over which column-parallel weights are split, columns over which row-parallel ones are.
SPLITS = {"q_proj.weight": 0, "down_proj.weight": 1, "embed": 0, "experts": 0, "norm": None}


def model(seed: int, scale: int = 1) -> dict[str, npt.NDArray[np.uint16]]:
    rng = np.random.default_rng(seed)
    shapes = {
        "q_proj.weight": (64 * scale, 96),
        "down_proj.weight": (48, 128 * scale),
        "embed": (160 * scale, 64),
        "experts": (8, 16, 40),
        "norm": (96,),
    }
    return {name: rng.integers(0, 2**16, shape, np.uint16) for name, shape in shapes.items()}


def step(old: dict[str, npt.NDArray[np.uint16]], seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        name: array + (rng.random(array.shape) < 0.02).astype(np.uint16)
        for name, array in old.items()
    }


def part(name: str, array: Array, rank: int, ranks: int) -> dw.Shard:
    """A rank's shard of a tensor, a copy; norms are whole on rank 0 and empty elsewhere."""
    axis = SPLITS[name]
    if axis is None:
        return dw.Shard(array[: len(array) if rank == 0 else 0].copy(), array.shape, (0,))
    n = array.shape[axis] // ranks
    cut = [slice(None)] * array.ndim
    cut[axis] = slice(rank * n, (rank + 1) * n)
    offset = [0] * array.ndim
    offset[axis] = rank * n
    return dw.Shard(array[tuple(cut)].copy(), array.shape, tuple(offset))


def shards(tensors: dict[str, Array], rank: int, ranks: int) -> dict[str, dw.Shard]:
    return {name: part(name, array, rank, ranks) for name, array in tensors.items()}


def same(target: dict[str, dw.Shard], wanted: dict[str, dw.Shard]) -> bool:
    return all(np.array_equal(target[name].tensor, wanted[name].tensor) for name in wanted)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32), st.sampled_from([2, 4]), st.sampled_from(["compact", "fast"]))
def test_ranks_apply_their_parts(seed: int, ranks: int, profile: Profile) -> None:
    old = model(seed % 5)
    new = step(old, seed)
    sink = io.BytesIO()
    stats = dw.diff(old, new, sink, profile=profile, tiling=SMALL)
    before, after = [], []
    for rank in range(ranks):
        target = shards(old, rank, ranks)
        staged = dw.stage(sink.getvalue(), target)
        assert staged.result_state is None
        assert staged.shard_states is not None
        before.append(staged.shard_states[0])
        after.append(staged.shard_states[1])
        staged.commit()
        assert same(target, shards(new, rank, ranks))
        assert dw.state_digest(target) == staged.shard_states[1]
    assert combine(*before) == stats.base_state == dw.state_digest(old)
    assert combine(*after) == stats.result_state == dw.state_digest(new)


@pytest.mark.parametrize("profile", ["compact", "fast", "overwrite"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_publish_their_parts(profile: Profile, ranks: int) -> None:
    """FSDP: each rank makes a delta of its shards; together they are the delta of the whole."""
    old = model(1)
    new = step(old, 2)
    target = {name: array.copy() for name, array in old.items()}
    states = []
    for rank in range(ranks):
        sink = io.BytesIO()
        stats = dw.diff(
            shards(old, rank, ranks), shards(new, rank, ranks), sink, profile=profile, tiling=SMALL
        )
        states.append((stats.base_state, stats.result_state))
        info = dw.inspect(sink.getvalue())
        assert (info.base_state, info.result_state) == (None, None)
        dw.apply(sink.getvalue(), target, verify=False)
    assert all(np.array_equal(target[name], new[name]) for name in new)
    assert combine(*(base for base, _ in states)) == dw.state_digest(old)
    assert combine(*(result for _, result in states)) == dw.state_digest(new)


def test_a_rank_without_a_tensor() -> None:
    """Pipeline stages hold some layers only."""
    old = model(3)
    new = step(old, 4)
    sink = io.BytesIO()
    stats = dw.diff(old, new, sink)
    first, second = ["embed", "q_proj.weight"], ["down_proj.weight", "experts", "norm"]
    sums = []
    for names in (first, second):
        target = {name: old[name].copy() for name in names}
        with pytest.raises(dw.LayoutMismatch, match="not in the target"):
            dw.stage(sink.getvalue(), target)
        staged = dw.stage(sink.getvalue(), target, partial=True)
        staged.commit()
        assert all(np.array_equal(target[name], new[name]) for name in names)
        assert staged.shard_states is not None
        sums.append(staged.shard_states[1])
    assert combine(*sums) == stats.result_state


def test_torch_shards_in_place() -> None:
    """Slices of rows and of columns of live parameters, not contiguous in memory."""
    old = torch.randn(64, 128).to(torch.bfloat16)
    new = (old.float() * 1.01).to(torch.bfloat16)
    names = ["q_proj.weight", "o_proj.weight"]
    sink = io.BytesIO()
    dw.diff(dict.fromkeys(names, old), dict.fromkeys(names, new), sink, tiling=SMALL)
    live = torch.zeros(100, 300, dtype=torch.bfloat16)
    for rank in range(4):
        places = [(16 * rank, 16 * rank + 16, 0, 128), (0, 64, 32 * rank, 32 * rank + 32)]
        for name, (top, bottom, left, right) in zip(names, places, strict=True):
            held = live[5 : 5 + bottom - top, 7 : 7 + right - left]
            held.copy_(old[top:bottom, left:right])
            wanted = live.clone()
            wanted[5 : 5 + bottom - top, 7 : 7 + right - left] = new[top:bottom, left:right]
            shard = dw.Shard(held, (64, 128), (top, left))
            dw.apply(sink.getvalue(), {name: shard}, partial=True)
            assert torch.equal(live, wanted)


def test_another_ranks_part_is_noticed() -> None:
    """The right shape at the wrong place: no tile has the base, and nothing is written."""
    old = model(5)
    sink = io.BytesIO()
    dw.diff(old, step(old, 6), sink, tiling=SMALL)
    wrong = dw.Shard(old["q_proj.weight"][32:].copy(), (64, 96), (0, 0))
    before = wrong.tensor.copy()
    with pytest.raises(dw.WrongBase, match="q_proj"):
        dw.apply(sink.getvalue(), {"q_proj.weight": wrong}, partial=True)
    assert np.array_equal(wrong.tensor, before)


@pytest.mark.parametrize(
    ("shape", "offset", "local"),
    [
        ((8, 8), (0, 4), (8, 8)),
        ((8, 8), (-1, 0), (4, 8)),
        ((8, 8), (0,), (4, 8)),
        ((8, 8, 8), (0, 4, 0), (8, 4, 8)),
        ((4, 8, 8), (0, 0, 0), (2, 4, 8)),
    ],
)
def test_what_is_no_box_is_refused(
    shape: tuple[int, ...], offset: tuple[int, ...], local: tuple[int, ...]
) -> None:
    shard = dw.Shard(np.zeros(local, np.uint16), shape, offset)
    with pytest.raises(dw.LayoutMismatch, match="shard"):
        dw.state_digest({"w": shard})


def test_partitions_of_a_shard() -> None:
    """A rank's scanner yields the tiles that the rank holds, and no others."""
    old = {"w": model(7)["q_proj.weight"]}
    new = step(old, 8)
    writer = dw.StreamWriter(io.BytesIO(), old, tiling=SMALL)
    every = list(writer.partitions("w", base=old["w"], new=new["w"]))
    found = []
    for rank in range(4):
        base, after = (
            dw.Shard(side["w"][16 * rank : 16 * rank + 16], (64, 96), (16 * rank, 0))
            for side in (old, new)
        )
        found += list(writer.partitions("w", base=base, new=after))
    assert [(p.tile, p.result) for p in found] == [(p.tile, p.result) for p in every]
    for a, b in zip(found, every, strict=True):
        assert np.array_equal(a.ranks, b.ranks)
        assert np.array_equal(a.steps, b.steps)


def test_a_shard_between_tiles_is_refused() -> None:
    old = {"w": np.zeros((64, 64), np.uint16)}
    new = {"w": np.ones((64, 64), np.uint16)}
    sink = io.BytesIO()
    dw.diff(old, new, sink)
    memory = np.zeros((30, 64), np.uint16)
    with pytest.raises(dw.LayoutMismatch, match="cuts tiles"):
        dw.apply(sink.getvalue(), {"w": dw.Shard(memory, (64, 64), (3, 0))})
    assert not memory.any()
