"""Partitions made on a device, in Triton's interpreter: they pack, apply, and are the CPU's."""

from __future__ import annotations

import io

import numpy as np
import pytest

import deltawire as dw
from deltawire.detect import device
from deltawire.tensors import TensorView
from interpreted import DTYPES, bits, changed, digest_of, noise, torch, viewed, weights

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def tiles_of(old: TensorView, new: TensorView, tiling: dw.Tiling) -> list[dw.Chunk]:
    """A chunk of each tile that changes."""
    sink = io.BytesIO()
    dw.diff({"w": old}, {"w": new}, sink, tiling=tiling)
    return list(dw.StreamReader(sink.getvalue()))


def packed(
    dtype: str, old: torch.Tensor, new: torch.Tensor, tiling: dw.Tiling, flat: bool = False
) -> list[dw.Partition]:
    """Partitions of all tiles, packed; the delta of them leads from ``old`` to ``new``."""
    shape = tuple(old.shape)
    before, after = viewed(old, dtype), viewed(new, dtype)
    key, rows, cols, width = (
        device.key("w", dtype, shape),
        before.rows,
        before.cols,
        before.itemsize,
    )
    old, new = old.reshape(rows, cols), new.reshape(rows, cols)
    partitions = []
    for chunk in tiles_of(before, after, tiling):
        (top, bottom), (left, right) = chunk.box
        tile, then = old[top:bottom, left:right], new[top:bottom, left:right]
        positions = device.differing(tile, then)
        first, classes = 0, 1
        if not flat:
            first, classes = device.choose(device.exponents(tile, positions, dtype))
        lanes = device.digest(then, key, top, left * width // 8, -(-cols * width // 8))
        # The new elements in order, or where they are.
        values = bits(then).reshape(-1)[positions] if chunk.tile % 2 else bits(then)
        got = device.partition(
            bits(tile), positions, values, chunk.tile, first, classes, lanes, dtype
        )
        assert got.changes == chunk.changes
        partitions.append(got)
    sink = io.BytesIO()
    with dw.StreamWriter(sink, {"w": (dtype, shape)}, version=1, tiling=tiling) as writer:
        writer.add_partitions(
            "w",
            partitions,
            base_digest=digest_of(old, dtype, shape),
            digest=digest_of(new, dtype, shape),
        )
    target = viewed(old.clone().reshape(shape), dtype)
    dw.apply(sink.getvalue(), {"w": target})
    np.testing.assert_array_equal(target.data, after.data)
    return partitions


@pytest.mark.parametrize(
    ("dtype", "rate"),
    [
        ("BF16", 0.01),
        ("BF16", 1.0),
        ("F16", 0.05),
        ("F8_E4M3", 0.1),
        ("F8_E5M2", 0.1),
        ("F32", 0.9),
    ],
)
def test_partitions_lead_to_the_new_bits(rng: np.random.Generator, dtype: str, rate: float) -> None:
    old = weights(rng, dtype, (67, 130))
    (partition,) = packed(dtype, old, changed(rng, old, rate), dw.Tiling())
    assert partition.counts.shape[1] > 2


def test_partitions_of_all_bits(rng: np.random.Generator) -> None:
    """Infinities, signs that change, exponents from one end to the other."""
    for dtype in ("BF16", "F16", "F32", "F64", "F8_E4M3"):
        old = noise(rng, dtype, (40, 50))
        new = torch.where(torch.rand(40, 50) < 0.3, bits(noise(rng, dtype, (40, 50))), bits(old))
        (partition,) = packed(dtype, old, new.view(DTYPES[dtype]), dw.Tiling())
        assert partition.counts.shape[1] == 16


def test_partitions_of_tiles_that_cut_rows(rng: np.random.Generator) -> None:
    old = weights(rng, "BF16", (4, 32, 192))
    tiling = dw.Tiling(max_elements=4096, min_elements=1024)
    partitions = packed("BF16", old, changed(rng, old, 0.03), tiling)
    assert len(partitions) > 4


def test_one_class(rng: np.random.Generator) -> None:
    """Few changes, elements without exponents, vectors, or because somebody says so."""
    for dtype, shape, rate, flat in [
        ("BF16", (50, 40), 0.005, False),
        ("I16", (50, 40), 0.2, True),
        ("BF16", (3000,), 0.003, False),
        ("F32", (50, 40), 0.2, True),
    ]:
        old = weights(rng, dtype, shape)
        (partition,) = packed(dtype, old, changed(rng, old, rate), dw.Tiling(), flat)
        assert (partition.top, partition.counts.shape) == (0, (1, 1))


def test_a_partition_is_that_of_the_cpu(rng: np.random.Generator) -> None:
    """Where the CPU chooses classes from all changes, too."""
    for dtype in ("BF16", "F16", "F8_E4M3", "F32"):
        old = weights(rng, dtype, (90, 50))
        new = changed(rng, old, 0.08)
        (got,) = packed(dtype, old, new, dw.Tiling())
        with dw.StreamWriter(io.BytesIO(), {"w": viewed(old, dtype)}, version=1) as writer:
            (expected,) = writer.partitions("w", base=viewed(old, dtype), new=viewed(new, dtype))
        assert (got.tile, got.top, got.result) == (expected.tile, expected.top, expected.result)
        for field in ("counts", "ranks", "steps"):
            mine, other = getattr(got, field), getattr(expected, field)
            assert mine.dtype == other.dtype
            np.testing.assert_array_equal(mine, other)


def test_what_is_no_partition(rng: np.random.Generator) -> None:
    old = weights(rng, "BF16", (40, 50))
    new = changed(rng, old, 0.1)
    at = device.differing(old, new)
    empty = device.partition(old, at[:0], new, 0, 120, 5, 1)
    assert (empty.changes, empty.counts.shape, empty.result) == (0, (1, 5), 1)
    for match, arguments in [
        ("17 classes", (old, at, new, 0, 120, 17, 1)),
        ("0 classes", (old, at, new, 0, 120, 0, 1)),
        ("from 2048 on", (old, at, new, 0, 2048, 4, 1)),
        ("no exponents", (bits(old), at, bits(new), 0, 120, 4, 1)),
        ("not F32", (bits(old), at, bits(new), 0, 120, 4, 1, "F32")),
        ("not BF15", (old, at, new, 0, 120, 4, 1, "BF15")),
        ("positions are one-dim", (old, at.view(1, -1), new, 0, 120, 4, 1)),
        ("for .* changes", (old, at, new.view(-1)[:3], 0, 120, 4, 1)),
        ("contiguous rows", (old.t(), at, new.view(-1)[at], 0, 120, 4, 1)),
    ]:
        with pytest.raises(dw.LayoutMismatch, match=match):
            device.partition(*arguments)
    with pytest.raises(dw.LayoutMismatch, match="I16 has no exponents"):
        device.exponents(bits(old), at)
    # Positions that cannot be are refused where partitions are packed.
    digest = digest_of(new, "BF16", (40, 50))
    for wrong in (at.flip(0), at + 1000, torch.arange(-3, 50)):
        bad = device.partition(old, wrong, new.view(-1)[: len(wrong)], 0, 120, 5, 1)
        writer = dw.StreamWriter(io.BytesIO(), {"w": old}, version=1)
        with pytest.raises(dw.LayoutMismatch):
            writer.add_partitions("w", [bad], base_digest=digest, digest=digest)
