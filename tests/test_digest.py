"""State digest v1: native against the reference, additivity, and the damage it must see."""

from __future__ import annotations

import io
import itertools
import re
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import deltawire as dw
from deltawire.detect.ondevice import total
from deltawire.digest import combine
from strategies import (
    WIDTHS,
    State,
    Value,
    digest,
    examples,
    pairs,
    reference,
    shapes,
    values,
    views,
    writing,
)

SPEC = Path(__file__).resolve().parents[1] / "spec" / "digest-v1.md"


# A naive twin, written from digest-v1.md in whole numbers.
P = 2**61 - 1
G = 0x9E3779B97F4A7C15


def scrambled(x: int) -> int:
    x %= 2**64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


T = [scrambled((2 * s + 1) * G) >> 12 | 1 for s in range(256)]
U = [scrambled((2 * s + 2) * G) >> 12 | 1 for s in range(256)]


def factor(k: int, b: int) -> int:
    return (scrambled(k + b * G) >> 4) + 1


def mixed(k: int, j: int, w: int) -> int:
    b, s = divmod(j, 256)
    return (w % 2**32 * T[s] + w // 2**32 * U[s]) * factor(k, b) % P


def table(heading: str) -> list[list[str]]:
    """The cells of the first table below a line of digest-v1.md, without its head."""
    lines = iter(SPEC.read_text("utf-8").splitlines())
    for line in lines:
        if line.startswith(heading):
            break
    rows = []
    for line in lines:
        if line.startswith("|"):
            rows.append([cell.strip().strip("`") for cell in line.strip("|").split("|")])
        elif rows:
            break
    return rows[2:]


def pattern(count: int) -> bytes:
    """The data of the whole-tensor vectors: byte i is (7 i + 3) mod 256."""
    return bytes((7 * i + 3) % 256 for i in range(count))


def test_vectors_of_mix() -> None:
    rows = table("Mix with k0")
    assert len(rows) >= 7
    for j, w, y0, y1 in rows:
        index = 1 << int(j[2:]) if j.startswith("2^") else int(j)
        words = (np.array([x], np.uint64) for x in (index, int(w, 16)))
        got = digest.mix(0x0123456789ABCDEF, 0xFEDCBA9876543210, *words)
        assert [int(lane[0]) for lane in got] == [int(y0, 16), int(y1, 16)]


def test_constants() -> None:
    text = SPEC.read_text("utf-8")
    for name, constants in (("T", T), ("U", U)):
        for s in (0, 255):
            assert f"{name}({s}) = {constants[s]:013x}" in text
    assert (digest.T.tolist(), digest.U.tolist()) == (T, U)


def test_no_change_of_one_word_vanishes_before_the_reduction() -> None:
    """Halves that change by a and b below 2^32 cancel where a T = -b U only."""
    assert len({*T, *U}) == 512
    for t, u in zip(T, U, strict=True):
        assert min(t, u) // gcd(t, u) > 2**32
        assert max(t, u) < 2**52


INDEX = st.integers(0, 2**61) | st.integers(0, 2**20).map(lambda x: 256 * x + 255)
WORD = st.integers(0, 2**64 - 1) | st.sampled_from(
    [c * P + d for c in range(1, 9) for d in (-1, 0, 1) if c * P + d < 2**64]
)


@examples(300)
@given(st.integers(0, 2**64 - 1), st.lists(st.tuples(INDEX, WORD), min_size=1, max_size=9))
def test_mix_equals_its_naive_twin(k: int, items: list[tuple[int, int]]) -> None:
    j, w = (np.array(column, np.uint64) for column in zip(*items, strict=True))
    y0, y1 = digest.mix(k, k ^ 1, j, w)
    assert y0.tolist() == [mixed(k, *item) for item in items]
    assert y1.tolist() == [mixed(k ^ 1, *item) for item in items]


@examples(200)
@given(st.data())
def test_sums_equal_their_naive_twin(data: st.DataObject) -> None:
    keys = data.draw(st.tuples(*[st.integers(0, 2**64 - 1)] * 2))
    rows, cols = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 40)))
    grid = [data.draw(st.binary(min_size=cols, max_size=cols)) for _ in range(rows)]
    row0, word0 = data.draw(st.tuples(st.integers(0, 2**40), st.integers(0, 300)))
    words_per_row = word0 + -(-cols // 8)
    sums = [0, 0]
    for r, row in enumerate(grid):
        for c in range(-(-cols // 8)):
            w = int.from_bytes(row[8 * c : 8 * c + 8], "little")
            for i in (0, 1):
                sums[i] += mixed(keys[i], (row0 + r) * words_per_row + word0 + c, w)
    box = np.frombuffer(b"".join(grid), np.uint8).reshape(rows, cols)
    got = digest.box_sum((*keys, 0, 0), box, words_per_row, row0, word0)
    assert got == (sums[0] % P, sums[1] % P)


@examples(200)
@given(st.sampled_from([1, 2, 4, 8]), st.data())
def test_a_digest_moves_by_the_differences_of_elements(width: int, data: st.DataObject) -> None:
    """Whatever else is in a word: halves of elements of eight bytes differ each on its own."""
    count, first = data.draw(st.integers(1, 40)), data.draw(st.integers(0, 600))
    element = st.integers(0, 256**width - 1)
    old, new = (data.draw(st.lists(element, min_size=count, max_size=count)) for _ in range(2))
    k = digest.key("w", "U8", (1, count))
    states = [
        digest.box_sum(
            k,
            np.frombuffer(b"".join(x.to_bytes(width, "little") for x in numbers), np.uint8)[None],
            1 << 20,
            0,
            first,
        )
        for numbers in (old, new)
    ]
    for lane in (0, 1):
        moved = 0
        for place, (x, y) in enumerate(zip(old, new, strict=True)):
            at = place * width
            block, s = divmod(first + at // 8, 256)
            halves = [(x, y, at % 8)]
            if width == 8:
                halves = [(x % 2**32, y % 2**32, 0), (x >> 32, y >> 32, 4)]
            for before, after, byte in halves:
                constant = T[s] if byte < 4 else U[s]
                shifted = (after - before) * 2 ** (8 * (byte % 4))
                moved += shifted * constant * factor(k[lane], block)
        assert (states[0][lane] + moved) % P == states[1][lane]


@pytest.mark.parametrize("other", [0, 1, 2**61 - 1, 2**61, 2**62 - 2, 2**64 - 1])
def test_multiples_of_the_prime_are_seen(other: int) -> None:
    """As one number modulo P these words would be alike, 2^64 - 8 (-8 as I64) and 0 for one."""
    k = digest.key("w", "I64", (1, 300))
    for place in (0, 255, 299):
        rows = np.zeros((1, 300), np.uint64)
        sums = []
        for word in {other, *(c * P for c in range(9))}:
            rows[0, place] = word
            sums.append(digest.box_sum(k, rows.view(np.uint8), 300))
        for lane in (0, 1):
            assert len({one[lane] for one in sums}) == len(sums)


def test_every_lane_is_reduced() -> None:
    """Start values too, which come from a hash of 64 bits; sums are."""
    for name in map(str, range(50)):
        k = digest.key(name, "U8", (0,))
        assert max(k[2:]) < P
        assert digest.tensor_digest(name, "U8", (0,), b"") == (k[2], k[3])
        stored = dw.tensor_digests({name: dw.TensorView.from_bytes("U8", (0,), b"")})[name]
        assert stored == digest.stored((k[2], k[3]))
    assert digest.add((P - 1, 1), (1, P - 1)) == (0, 0)
    top = digest.stored((P - 1, P - 2))
    assert combine(top, top) == digest.stored((P - 2, P - 4))
    assert combine(top, digest.stored((1, 2))) == bytes(16)
    assert combine(*[top] * 20) == digest.stored((P - 20, P - 40))
    many = np.frombuffer(top * 5000, "<u8").tobytes()
    assert total(many) == combine(*[top] * 5000)
    assert total(b"") == bytes(16)


@pytest.mark.parametrize("row", table("Whole tensors"), ids=lambda row: f"{row[1]}-{row[2]}")
def test_vectors_of_whole_tensors(row: list[str]) -> None:
    name, dtype, shape, wanted = row
    dims = tuple(int(dim) for dim in re.findall(r"\d+", shape))
    data = pattern(int(np.prod(dims, dtype=int)) * WIDTHS[dtype])
    state: State = {name: Value(dtype, dims, data)}
    assert reference.state_digest(state).hex() == wanted
    assert dw.tensor_digests(views(state))[name].hex() == wanted
    assert dw.state_digest(views(state)).hex() == wanted


def test_the_empty_state_is_zero() -> None:
    assert dw.state_digest({}) == bytes(16) == reference.state_digest({})


@examples(200)
@given(pairs(most_tensors=4), st.sampled_from([None, 1, 2, 5]))
def test_native_equals_reference(pair: tuple[State, State], threads: int | None) -> None:
    state, _ = pair
    tensors = views(state)
    one_by_one = {
        name: digest.stored(digest.tensor_digest(name, v.dtype, v.shape, v.data))
        for name, v in state.items()
    }
    assert dw.tensor_digests(tensors, threads=threads) == one_by_one
    assert dw.state_digest(tensors, threads=threads) == reference.state_digest(state)
    backwards = dict(reversed(list(tensors.items())))
    assert dw.state_digest(backwards, threads=threads) == reference.state_digest(state)


@examples(60)
@given(st.sampled_from(sorted(WIDTHS)), shapes(), st.integers(0, 9), st.data())
def test_alignment_and_row_stride_do_not_matter(
    dtype: str, shape: tuple[int, ...], shift: int, data: st.DataObject
) -> None:
    value = data.draw(values(dtype, shape))
    shifted = dw.TensorView.from_bytes(dtype, shape, b"\xaa" * shift + value.data, offset=shift)
    wanted = {"w": digest.stored(digest.tensor_digest("w", dtype, shape, value.data))}
    assert dw.tensor_digests({"w": shifted}) == wanted
    dense = shifted.data
    wide = np.full((dense.shape[0], dense.shape[1] + 3), 0xBB, np.uint8)
    wide[:, : dense.shape[1]] = dense
    strided = dw.TensorView(dtype, shape, wide[:, : dense.shape[1]])
    assert dw.tensor_digests({"w": strided}) == wanted


@examples(150)
@given(st.sampled_from(sorted(WIDTHS)), st.integers(1, 30), st.integers(1, 40), st.data())
def test_any_layout_of_shards_adds_up(
    dtype: str, rows: int, cols: int, data: st.DataObject
) -> None:
    """Row cuts anywhere, column cuts at multiples of eight bytes."""
    width = WIDTHS[dtype]
    value = data.draw(values(dtype, (rows, cols)))
    grid = np.frombuffer(value.data, np.uint8).reshape(rows, cols * width)
    row_cuts = sorted({0, rows, *data.draw(st.lists(st.integers(0, rows), max_size=3))})
    words = -(-cols * width // 8)
    col_cuts = sorted({0, words, *data.draw(st.lists(st.integers(0, words), max_size=3))})
    k = digest.key("w", dtype, (rows, cols))
    parts = [
        digest.box_sum(k, grid[a:b, 8 * c : 8 * d], words, a, c)
        for a, b in itertools.pairwise(row_cuts)
        for c, d in itertools.pairwise(col_cuts)
    ]
    total = digest.stored(digest.add((k[2], k[3]), *parts))
    assert dw.state_digest(views({"w": value})) == total


@examples(100)
@given(pairs(), writing())
def test_incremental_equals_full(pair: tuple[State, State], options: dict[str, Any]) -> None:
    """What the writer sums up over changes is what a full pass over the result gives."""
    base, new = pair
    sink = io.BytesIO()
    stats = dw.diff(views(base), views(new), sink, **options)
    assert stats.base_state == dw.state_digest(views(base))
    assert stats.result_state == dw.state_digest(views(new))
    target = views(base)
    staged = dw.stage(sink.getvalue(), target)
    assert staged.result_state == stats.result_state
    staged.commit()
    assert dw.state_digest(target) == stats.result_state
    for tensor in dw.inspect(sink.getvalue()).tensors:
        whole = dw.tensor_digests({tensor.name: target[tensor.name]})[tensor.name]
        assert tensor.digest == whole[:4]


def lanes(rows: np.ndarray, dtype: str = "BF16") -> tuple[int, int]:
    """Native lanes of a matrix of 16-bit patterns."""
    view = dw.TensorView(dtype, rows.shape, np.ascontiguousarray(rows).view(np.uint8))
    return digest.loaded(dw.tensor_digests({"w": view})["w"])


WEIGHTS = np.random.default_rng(3).integers(0x3B00, 0x3D00, (32, 64), np.uint16)


def damaged() -> dict[str, list[np.ndarray]]:
    """Accidents, each in several places."""
    out: dict[str, list[np.ndarray]] = {}

    def of(kind: str) -> np.ndarray:
        copy = WEIGHTS.copy()
        out.setdefault(kind, []).append(copy)
        return copy

    for row, col in [(0, 0), (0, 63), (31, 63), (17, 5)]:
        for bit in range(16):
            of("a bit")[row, col] ^= 1 << bit
        of("an ulp")[row, col] += 1
        of("a zeroed element")[row, col] = 0
        two = of("the same bit of two elements")
        two[row, col] ^= 0x100
        two[(row + 1) % 32, col] ^= 0x100
        signs = of("two signs")
        signs[row, col] ^= 0x8000
        signs[row, (col + 4) % 64] ^= 0x8000
        opposite = of("an ulp up and one down")
        opposite[row, col] += 1
        opposite[row, (col + 8) % 64] -= 1
    for a, b in [(0, 4), (8, 60), (16, 20)]:
        swapped = of("two swapped words")
        swapped[5, [*range(a, a + 4), *range(b, b + 4)]] = swapped[
            5, [*range(b, b + 4), *range(a, a + 4)]
        ]
        of("a zeroed word")[7, a : a + 4] = 0
        of("a word of another row")[9, a : a + 4] = WEIGHTS[10, a : a + 4]
        of("elements swapped in a word")[11, [a, a + 1]] = WEIGHTS[11, [a + 1, a]]
    of("two swapped rows")[[3, 4]] = WEIGHTS[[4, 3]]
    of("a zeroed row")[12] = 0
    of("a repeated row")[13] = WEIGHTS[14]
    of("rotated columns")[:] = np.roll(WEIGHTS, 4, axis=1)
    of("rotated rows")[:] = np.roll(WEIGHTS, 1, axis=0)
    of("reversed")[:] = WEIGHTS[::-1, ::-1]
    of("all zero")[:] = 0
    page = of("a page from elsewhere")
    page.reshape(-1)[:1024] = WEIGHTS.reshape(-1)[1024:]
    return out


@pytest.mark.parametrize("kind", damaged())
def test_damage_is_seen_in_either_lane(kind: str) -> None:
    """Lane 0 alone guards tiles, so each lane must see it."""
    before = lanes(WEIGHTS)
    for spoiled in damaged()[kind]:
        assert not np.array_equal(spoiled, WEIGHTS)
        after = lanes(spoiled)
        assert after[0] != before[0]
        assert after[1] != before[1]


def test_the_same_bytes_elsewhere_have_another_digest() -> None:
    """Name, dtype and shape are part of it."""
    data = pattern(64)
    states: list[State] = [
        {"a": Value("BF16", (4, 8), data)},
        {"b": Value("BF16", (4, 8), data)},
        {"a": Value("F16", (4, 8), data)},
        {"a": Value("BF16", (8, 4), data)},
        {"a": Value("BF16", (2, 2, 8), data)},
        {"a": Value("BF16", (32,), data)},
        {"a": Value("F32", (4, 4), data)},
    ]
    assert len({dw.state_digest(views(state)) for state in states}) == len(states)


def test_empty_tensors_count_by_their_key() -> None:
    """A tensor that is missing altogether is seen even where it has no bytes."""
    empty: State = {"a": Value("F32", (0, 3), b"")}
    k = digest.key("a", "F32", (0, 3))
    assert dw.state_digest(views(empty)) == digest.stored((k[2], k[3])) != bytes(16)


@pytest.mark.parametrize("shape", [(1 << 18,), (512, 512), (777, 333), (3, 100_003)])
@pytest.mark.parametrize("dtype", ["I8", "BF16", "F32", "F64"])
def test_large_tensors(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> None:
    """Enough words for vector code, unrolled loops and several threads, with ragged ends."""
    state: State = {"w": Value(dtype, shape, rng.bytes(int(np.prod(shape)) * WIDTHS[dtype]))}
    wanted = reference.state_digest(state)
    for threads in (1, 2):
        assert dw.state_digest(views(state), threads=threads) == wanted
