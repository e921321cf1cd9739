"""The formats that the benchmark compares with give back every bit, also where floats trip."""

from __future__ import annotations

import sys

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import ROOT

BENCHES = ROOT / "benches"
if str(BENCHES) not in sys.path:
    sys.path.insert(0, str(BENCHES))

from competitors import COMPETITORS, Bits, Codec, rice  # noqa: E402

CODECS = pytest.mark.parametrize("codec", COMPETITORS, ids=lambda codec: codec.name)

#: Zeros of both signs, infinities, NaN payloads, subnormals.
SPECIALS = np.array([0, 0x8000, 0x7F80, 0xFF80, 0x7F81, 0xFFFF, 1, 0x8001], np.uint16)

Pair = tuple[dict[str, Bits], dict[str, Bits]]


def round_trip(codec: Codec, base: dict[str, Bits], new: dict[str, Bits], threads: int) -> int:
    """Bytes of the delta, after the target is seen to equal the new state."""
    delta = codec.encode(base, new, threads)
    target = {name: bits.copy() for name, bits in base.items()}
    codec.decode(delta, target, threads)
    for name, bits in new.items():
        assert np.array_equal(target[name], bits), name
    return len(delta)


@st.composite
def pairs(draw: st.DrawFn) -> Pair:
    """Up to three matrices with none, few, most or all elements changed by little or at all."""
    base: dict[str, Bits] = {}
    new: dict[str, Bits] = {}
    for i in range(draw(st.integers(0, 3))):
        rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        shape = (draw(st.integers(0, 40)), draw(st.integers(1, 400)))
        kind = draw(st.sampled_from(["weights", "any", "specials"]))
        if kind == "weights":
            weights = rng.standard_normal(shape, np.float32) * np.float32(0.02)
            old = (weights.view(np.uint32) >> 16).astype(np.uint16)
        elif kind == "any":
            old = rng.integers(0, 1 << 16, shape, np.uint16)
        else:
            old = rng.choice(SPECIALS, shape)
        density = draw(st.sampled_from([0.0, 0.002, 0.05, 0.7, 1.0]))
        steps = rng.choice(np.array([1, -1, 2, 0x8000, 300], np.int64), shape).astype(np.uint16)
        base[f"t{i}"] = old
        new[f"t{i}"] = np.where(rng.random(shape) < density, old + steps, old)
    return base, new


@CODECS
@given(pair=pairs(), threads=st.sampled_from([1, 2]))
def test_round_trip(codec: Codec, pair: Pair, threads: int) -> None:
    """Base and change of any kind; deltas are made and applied with one or two threads."""
    round_trip(codec, *pair, threads)


@CODECS
def test_escapes(codec: Codec) -> None:
    """Gaps beyond one and two bytes, rows and columns far apart, all and no elements of a class."""
    old = np.zeros((3, 70_000), np.uint16)
    old[2] = 0x3F80
    new = old.copy()
    flat = new.reshape(-1)
    flat[[0, 254, 509, 765, 66_300, 131_836, 131_837, 209_999]] ^= 0x8001
    new[2, :60_000] += 1
    round_trip(codec, {"w": old, "empty": old[:0]}, {"w": new, "empty": new[:0]}, 1)


def test_sizes() -> None:
    """What a change costs where it is known by heart."""
    old = np.zeros((1000, 1000), np.uint16)
    new = old.copy()
    new.reshape(-1)[::100] = 0x3F80
    named = {codec.name: round_trip(codec, {"w": old}, {"w": new}, 1) for codec in COMPETITORS}
    plain = named["int32 COO"]
    assert 6 * 10_000 <= plain <= 6 * 10_000 + 64
    assert all(named[name] < plain for name in named if "COO" not in name)


@given(
    st.lists(st.one_of(st.integers(0, 300), st.integers(0, 2**32 - 1)), max_size=200),
)
def test_rice(numbers: list[int]) -> None:
    """Any numbers of 32 bits, few or many, small or far apart."""
    array: npt.NDArray[np.int64] = np.array(numbers, np.int64)
    assert np.array_equal(rice.decode(rice.encode(array), array.size), array)
