"""Partitions: the boundary between who scans dense buffers and who packs bytes."""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt
import pytest

import deltawire as dw
from deltawire.tensors import TensorView

RNG = np.random.default_rng(7)


def states(dtype: str, shape: tuple[int, ...], rate: float) -> tuple[TensorView, TensorView]:
    """Two states of a tensor that differ by a step or two at some places."""
    width = {"BF16": np.uint16, "F32": np.uint32, "F8_E4M3": np.uint8, "I16": np.uint16}[dtype]
    values = RNG.standard_normal(shape).astype(np.float32) * 0.02
    bits = (values.view(np.uint32) >> (32 - 8 * np.dtype(width).itemsize)).astype(width)
    new = bits.copy()
    changed = RNG.random(shape) < rate
    new[changed] ^= RNG.choice(np.array([1, 1, 1, 3], width), changed.sum())
    return TensorView.from_bytes(dtype, shape, bits), TensorView.from_bytes(dtype, shape, new)


def written(pairs: dict[str, tuple[TensorView, TensorView]], *, by_partition: bool) -> bytes:
    sink = io.BytesIO()
    base = {name: pair[0] for name, pair in pairs.items()}
    with dw.StreamWriter(sink, base, base_version=0, version=1) as writer:
        for name, (old, new) in pairs.items():
            if not by_partition:
                writer.add(name, base=old, new=new)
                continue
            before = dw.tensor_digests({name: old})[name]
            after = dw.tensor_digests({name: new})[name]
            partitions = list(writer.partitions(name, base=old, new=new))
            writer.add_partitions(name, partitions, base_digest=before, digest=after)
    return sink.getvalue()


@pytest.fixture(scope="module")
def pairs() -> dict[str, tuple[TensorView, TensorView]]:
    rows, cols = 900, 128
    old, _ = states("BF16", (rows, cols), 0.0)
    bits = old.data.view(np.uint16).copy()
    busy = np.zeros((rows, 1), bool)
    busy[RNG.choice(rows, 60, replace=False)] = True
    flips = busy & (RNG.random((rows, cols)) < 0.3)
    embedding = TensorView.from_bytes("BF16", (rows, cols), bits ^ flips.astype(np.uint16))
    return {
        "w": states("BF16", (512, 300), 0.01),
        "master": states("F32", (64, 64), 0.9),
        "fp8": states("F8_E4M3", (128, 96), 0.02),
        "counts": states("I16", (40, 40), 0.05),
        "same": states("BF16", (16, 16), 0.0),
        "embed": (old, embedding),
    }


def test_packing_partitions_gives_the_bytes_of_comparing(
    pairs: dict[str, tuple[TensorView, TensorView]],
) -> None:
    """Where comparing chooses classes too (it takes whatever is smallest)."""
    same = set()
    for name, pair in pairs.items():
        compared = written({name: pair}, by_partition=False)
        if {chunk.codec for chunk in dw.StreamReader(compared)} == {"classes"}:
            assert written({name: pair}, by_partition=True) == compared
            same.add(name)
    assert {"embed", "fp8"} <= same, same


def test_partitions_apply_and_come_back(pairs: dict[str, tuple[TensorView, TensorView]]) -> None:
    delta = written(pairs, by_partition=True)
    target = {
        name: TensorView.from_bytes(old.dtype, old.shape, old.contiguous().copy())
        for name, (old, _) in pairs.items()
    }
    dw.apply(delta, target)
    for name, (_, new) in pairs.items():
        np.testing.assert_array_equal(target[name].data, new.data)
    sink = io.BytesIO()
    with dw.StreamWriter(sink, {n: p[0] for n, p in pairs.items()}, version=1) as writer:
        for chunk in dw.StreamReader(delta):
            got = chunk.partition()
            assert got is not None
            old, new = pairs[chunk.tensor]
            sent = {p.tile: p for p in writer.partitions(chunk.tensor, base=old, new=new)}[got.tile]
            assert got.changes == chunk.changes == sent.changes
            assert (got.top, got.result) == (sent.top, sent.result)
            for field in ("counts", "ranks", "steps"):
                np.testing.assert_array_equal(getattr(got, field), getattr(sent, field))
            assert (got.rows is None) == (sent.rows is None)


def ordered(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.int64]:
    """Ordered integers of BF16 patterns."""
    flipped = np.where(bits >= 0x8000, bits ^ np.uint16(0x7FFF), bits).astype(np.uint16)
    return flipped.view(np.int16).astype(np.int64)


def test_a_partition_is_what_its_documentation_says(
    pairs: dict[str, tuple[TensorView, TensorView]],
) -> None:
    """Class, rank and step of every change by definition, with and without groups of rows."""
    for name in ("w", "embed"):
        old, new = pairs[name]
        before = old.data.view(np.uint16).reshape(old.rows, old.cols)
        after = new.data.view(np.uint16).reshape(old.rows, old.cols)
        with dw.StreamWriter(io.BytesIO(), {name: old}, version=1) as writer:
            (partition,) = writer.partitions(name, base=old, new=new)
        assert (partition.rows is not None) == (name == "embed")
        groups = np.zeros(old.rows, int) if partition.rows is None else partition.rows
        classes = partition.counts.shape[1]
        exponent = (before.astype(int) >> 7) & 0xFF
        cell = np.clip(partition.top - exponent, 0, classes - 1) + groups[:, None] * classes
        flat, changed = cell.ravel(), (before != after).ravel()
        step = (ordered(after.ravel()) - ordered(before.ravel())).astype(np.int16)
        ranks, steps = [], []
        for number in range(partition.counts.size):
            members = np.flatnonzero(flat == number)
            hit = np.flatnonzero(changed[members])
            assert len(hit) == partition.counts.ravel()[number]
            ranks.append(hit)
            steps.append(step[members[hit]])
        np.testing.assert_array_equal(np.concatenate(ranks), partition.ranks)
        np.testing.assert_array_equal(np.concatenate(steps), partition.steps)


@pytest.mark.parametrize(
    "change",
    [
        {"tile": 5},
        {"ranks": lambda p: p.ranks[::-1].copy()},
        {"ranks": lambda p: p.ranks[:-1]},
        {"steps": lambda p: np.zeros_like(p.steps)},
        {"steps": lambda p: p.steps.astype(np.int32)},
        {"counts": lambda p: p.counts + 1},
        {"top": 5000},
        {"rows": lambda p: np.zeros(3, np.uint8)},
    ],
)
def test_contradictions_are_refused(
    pairs: dict[str, tuple[TensorView, TensorView]], change: dict[str, object]
) -> None:
    from dataclasses import replace

    old, new = pairs["w"]
    digest = dw.tensor_digests({"w": new})["w"]
    writer = dw.StreamWriter(io.BytesIO(), {"w": old}, version=1)
    (partition,) = writer.partitions("w", base=old, new=new)
    values = {k: v(partition) if callable(v) else v for k, v in change.items()}
    bad = replace(partition, **values)
    with pytest.raises(dw.LayoutMismatch, match="w"):
        writer.add_partitions("w", [bad], base_digest=digest, digest=digest)
