"""GPU kernels in Triton's interpreter against what the CPU does; that they compile for a GPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import deltawire as dw
from deltawire.detect import device, matrices
from deltawire.detect.step import AdamWStep
from deltawire.digest import combine
from interpreted import (
    INTEGERS,
    Recorder,
    bits,
    changed,
    digest_of,
    kernels,
    moments,
    noise,
    torch,
    weights,
)
from strategies import WIDTHS, reference

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
box_sum = reference.digest.box_sum


def words_of(row_bytes: int) -> int:
    return (row_bytes + 7) // 8


# --- Comparing. ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["U8", "BF16", "F32", "F64"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (9001,), (37, 113), (4, 5, 451)])
def test_differing(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> None:
    a = noise(rng, dtype, shape)
    b = changed(rng, a, 0.1)
    expected = (bits(a) != bits(b)).reshape(-1).nonzero().flatten()
    assert torch.equal(device.differing(a, b), expected)
    assert len(device.differing(a, a.clone())) == 0


@pytest.mark.parametrize("narrow", [1 << 30, 1])
def test_differing_in_rows_that_lie_apart(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, narrow: int
) -> None:
    monkeypatch.setattr(matrices, "NARROW", narrow)
    a = noise(rng, "BF16", (61, 200))
    b = changed(rng, a, 0.1)
    both = [
        (a[:, 3:50], b[:, 3:50]),
        (a[:, 3:50].contiguous(), b[:, 3:50]),
        (a[5:, :-1], b[5:, :-1].contiguous()),
        (a[:, 7], b[:, 7]),
        (a[7, 1:], b[7, 1:]),
        (a.view(61, 20, 10)[:, :, 2:7], b.view(61, 20, 10)[:, :, 2:7]),
        (a[:1].expand(61, -1), b),
    ]
    for x, y in both:
        expected = (bits(x) != bits(y)).reshape(-1).nonzero().flatten()
        assert len(expected) > 0
        assert torch.equal(device.differing(x, y), expected)


def test_rows_beyond_32_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime.interpreter import GridExecutor

    # It copies every tensor onto itself, which would fill these 5 GB with memory.
    far = torch.empty((1 << 32) + 3000, dtype=torch.uint8)
    a = far.as_strided((2, 3000), (1 << 32, 1))
    a[:] = 7
    b = torch.full((2, 3000), 7, dtype=torch.uint8)
    b[1, 2999] = 8

    def restored(self: object, args: tuple[object, ...], *rest: object) -> None:
        assert len(args) > 3

    monkeypatch.setattr(GridExecutor, "_restore_args_dev", restored)
    assert device.differing(a, b).tolist() == [5999]
    key = device.key("w", "U8", (2, 3000))
    assert torch.equal(device.digest(a, key), device.digest(b - (b == 8).byte(), key))


def test_what_cannot_be_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    a = torch.zeros(4, 6, dtype=torch.bfloat16)
    for other, match in [
        (a[:, :5], "b is torch.bfloat16 of shape"),
        (a.float(), "b is torch.float32"),
        (a.view(2, 12), "shape"),
    ]:
        with pytest.raises(dw.LayoutMismatch, match=match):
            device.differing(a, other)
    for bad in (a.t(), a[:, ::2], torch.zeros(2, 3, 4).transpose(0, 1)):
        with pytest.raises(dw.LayoutMismatch, match="contiguous rows"):
            device.differing(bad, bad)
    for bad in (torch.zeros(2, dtype=torch.complex128), torch.zeros(2, 2).to_sparse()):
        with pytest.raises(dw.LayoutMismatch, match="plain elements"):
            device.differing(bad, bad)
    monkeypatch.setattr(kernels, "INTERPRETED", False)
    with pytest.raises(dw.LayoutMismatch, match="a is on the CPU; kernels run on a GPU"):
        device.differing(a, a)


def test_neither_torch_nor_triton_is_imported_before_it_is_needed() -> None:
    code = "import sys, deltawire.detect.device; print({'torch', 'triton'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


# --- Digests. ------------------------------------------------------------------------------


def lanes(*parts: torch.Tensor, key: device.Key) -> bytes:
    return combine(key.start, *(device.digest_bytes(part) for part in parts))


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        ("U8", (0,)),
        ("U8", (1,)),
        ("F32", ()),
        ("BF16", (5,)),
        ("BF16", (3000,)),
        ("BF16", (2, 4)),
        ("U8", (3, 11)),
        ("F16", (3, 5)),
        ("F32", (4, 3)),
        ("F64", (2, 3)),
        ("BF16", (0, 4)),
        ("F8_E4M3", (2, 3, 9)),
        ("BF16", (70, 130)),
        ("BF16", (131, 67)),
    ],
)
def test_digest(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> None:
    tensor = noise(rng, dtype, shape)
    key = device.key("重み", dtype, shape)
    assert lanes(device.digest(tensor, key), key=key) == digest_of(tensor, dtype, name="重み")


@pytest.mark.parametrize("dtype", ["U8", "BF16", "F32", "F64"])
@pytest.mark.parametrize("cols", [120, 117])
def test_digests_of_blocks_add_up(rng: np.random.Generator, dtype: str, cols: int) -> None:
    whole = noise(rng, dtype, (50, cols))
    key, width = device.key("w", dtype, (50, cols)), whole.element_size()
    words = words_of(cols * width)
    parts = []
    for top, bottom in [(0, 20), (20, 21), (21, 50)]:
        for left, right in [(0, 8), (8, 64), (64, cols)]:
            block = whole[top:bottom, left:right]
            parts.append(device.digest(block, key, top, left * width // 8, words))
    assert lanes(*parts, key=key) == digest_of(whole, dtype)


def test_digests_wherever_a_block_lies(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any address, and far down in a tensor."""
    raw = noise(rng, "U8", (4000,))
    for offset in range(9):
        block = raw[offset : offset + 7 * 131].view(7, 131)
        key = device.key("w", "U8", (7, 131))
        assert lanes(device.digest(block, key), key=key) == digest_of(block, "U8")
    # Word 2^43 and beyond; rows that are divided in 64 bits.
    block, row = raw[:800].view(10, 80), (1 << 40) - 5
    key = device.key("w", "U8", (1 << 40, 96))
    expected = box_sum(key, block.numpy(), 12, row, 1)
    for narrow in (1 << 30, 1):
        monkeypatch.setattr(device, "NARROW", narrow)
        got = device.digest(block, key, row, 1, 12)
        assert tuple(got.tolist()) == expected


@pytest.mark.parametrize("dtype", ["U8", "F16", "F64"])
@pytest.mark.parametrize("shape", [(1, 9000), (40, 72), (3000, 1), (33, 257)])
def test_digests_of_the_largest_words(dtype: str, shape: tuple[int, int]) -> None:
    """Nothing overflows; everything is reduced, where blocks begin within 256 words too."""
    whole = torch.full(shape, -1, dtype=torch.int64).to(INTEGERS[WIDTHS[dtype]])
    key, words = device.key("w", dtype, shape), words_of(shape[1] * WIDTHS[dtype])
    rows = whole.numpy().view(np.uint8).reshape(shape[0], -1)
    for row in (0, 1, 255):
        got = device.digest(whole, key, row)
        assert tuple(got.tolist()) == box_sum(key, rows, words, row)


def test_sums_of_lanes() -> None:
    """As many as would overflow 64 bits."""
    prime = (1 << 61) - 1
    lanes = torch.full((2, 3, 1000), prime - 1, dtype=torch.int64)
    lanes[1] = torch.arange(3)[:, None]
    got = device.summed(lanes, 2)
    assert got.tolist() == [[prime - 1000] * 3, [0, 1000, 2000]]
    assert device.summed(torch.tensor([prime - 1, 1]), 0).item() == 0


@pytest.mark.parametrize("rows", [1, 7, 50, 60])
@pytest.mark.parametrize("cols", [24, 117, 4096, 4100])
def test_digests_of_pieces(rng: np.random.Generator, rows: int, cols: int) -> None:
    whole = noise(rng, "BF16", (50, cols))
    key, words = device.key("w", "BF16", (90, cols)), words_of(2 * cols)
    got = device.digest(whole, key, 30, 0, words, piece_rows=rows)
    parts = [
        device.digest(whole[first : first + rows], key, 30 + first, 0, words)
        for first in range(0, 50, rows)
    ]
    assert torch.equal(got, torch.stack(parts))
    assert device.digest(whole[:0], key, piece_rows=3).shape == (0, 2)


def test_blocks_that_cut_words() -> None:
    block, key = torch.zeros(4, 6, dtype=torch.bfloat16), device.key("w", "BF16", (4, 20))
    assert len(device.digest(block, key, 0, 3, 5)) == 2
    for word, words in [(0, 5), (4, 5), (-1, 5)]:
        with pytest.raises(dw.LayoutMismatch, match="whole words"):
            device.digest(block, key, 0, word, words)


# --- On a GPU. -----------------------------------------------------------------------------


def test_kernels_compile_for_a_gpu(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, root: Path
) -> None:
    """As they were launched here. Floats are rounded as they should: nothing else is contracted."""
    recorder = Recorder(monkeypatch)
    for dtype in ("U8", "BF16", "F32", "F64"):
        a = noise(rng, dtype, (8, 64))
        key = device.key("w", dtype, (8, 64))
        device.differing(a, changed(rng, a, 0.5))
        device.digest(a[:, 1:-1], key)
    device.differing(a[:, 1:5], a[:, 2:6])
    device.digest(a, key)
    for first in (False, True):
        for contracted in (False, True):
            for margin in (0, 1):
                step = AdamWStep(1.0, -1.0, 1.0, 0.0, first, contracted, margin)
                device.boundary(*moments(rng, (8, 64)), step)
    for dtype in ("F8_E4M3", "BF16", "F32"):
        old = weights(rng, dtype, (8, 64))
        new = changed(rng, old, 0.5)
        at = device.differing(old, new)
        device.exponents(old, at)
        device.partition(old, at, new, 0, 100, 4, 1)
    # Some of tensors with more elements than 32 bits count.
    launches = recorder.launches
    large = {name: launch for launch in launches for name in [launch[1]]}
    for module, name, arguments, options in large.values():
        wide = [("i64" if kind == "i32" else kind, multiple) for kind, multiple in arguments]
        launches.append((module, name, wide, options))
    done = subprocess.run(
        [sys.executable, str(root / "tests" / "device_compile.py")],
        input=json.dumps(launches),
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_CACHE_DIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    contractions = {}
    for (_, name, _, options), ptx in zip(launches, json.loads(done.stdout), strict=True):
        assert ".ftz" not in ptx
        assert not re.search(r"(sqrt|div)\.(approx|full)", ptx)
        assert not re.search(r"\b(add|mul)\.f(32|64)", ptx), "may be contracted when assembled"
        if name in ("unproved", "resolve"):
            fused = len(re.findall(r"fma\.rn\.f(?:32|64)", ptx))
            assert (fused > 0) == options["CONTRACTED"]
            contractions[name, options["CONTRACTED"]] = fused
    assert len(contractions) == 4
