"""Hypothesis strategies for tensors, changes and deltas, and the ways to read a delta.

States are those of the reference implementation: ``{name: Value(dtype, shape, bytes)}``.
"""

from __future__ import annotations

import io
import itertools
import sys
from collections.abc import Callable, Iterable, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

REFERENCE = Path(__file__).resolve().parents[1] / "spec" / "reference"
if str(REFERENCE) not in sys.path:
    sys.path.insert(0, str(REFERENCE))

import deltawire as dw  # noqa: E402
import deltawire_reference as reference  # noqa: E402
from deltawire_reference import (  # noqa: E402
    LAW,
    WIDTHS,
    Coding,
    Options,
    Parameters,
    Value,
    classes,
    columns,
    digest,
    encoder,
    geometric,
    law,
    primitives,
    rice,
    tensors,
)
from deltawire_reference.positions import ALL  # noqa: E402
from deltawire_reference.positions import NAMES as POSITION_CODECS  # noqa: E402
from deltawire_reference.values import NAMES as VALUE_CODECS  # noqa: E402

__all__ = [
    "classes", "columns", "digest", "encoder", "geometric", "law", "primitives", "reference",
    "rice", "tensors",
]  # fmt: skip

State = dict[str, Value]
Views = dict[str, dw.TensorView]
CODECS = (*POSITION_CODECS.values(), *VALUE_CODECS.values(), "classes")
PROFILES = ("compact", "fast", "overwrite")


def examples(count: int) -> settings:
    """``count`` examples, more in proportion under a profile with more than Hypothesis' 100."""
    return settings(max_examples=max(1, count * settings.default.max_examples // 100))


def views(state: State) -> Views:
    """Writable tensors with the contents of a state."""
    return {
        name: dw.TensorView.from_bytes(value.dtype, value.shape, bytearray(value.data))
        for name, value in state.items()
    }


def contents(views_: Views) -> State:
    """The state that tensors hold."""
    return {
        name: Value(view.dtype, view.shape, view.data.tobytes()) for name, view in views_.items()
    }


def delta(base: State, new: State, **options: Any) -> bytes:
    """``dw.diff`` into bytes."""
    sink = io.BytesIO()
    dw.diff(views(base), views(new), sink, **options)
    return sink.getvalue()


# --- Ways to read: each changes ``target`` only after everything was checked. -----------------


def by_apply(data: bytes, target: Views) -> None:
    dw.apply(data, target)


def by_stage(data: bytes, target: Views) -> None:
    dw.stage(io.BytesIO(data), target).commit()


def by_pull(data: bytes, target: Views) -> None:
    for chunk in list(dw.StreamReader(io.BytesIO(data))):
        chunk.apply_(target)


def by_feed(data: bytes, target: Views, cuts: Iterable[int] = ()) -> None:
    reader = dw.StreamReader(None)
    chunks: list[dw.Chunk] = []
    edges = [0, *sorted(cuts), len(data)]
    for start, end in itertools.pairwise(edges):
        chunks += reader.feed(data[start:end])
    reader.finish()
    for chunk in chunks:
        chunk.apply_(target)


def by_range(data: bytes, target: Views) -> None:
    """Last chunk first: by range every chunk stands alone."""
    reader = dw.StreamReader(data)
    for chunk in [reader.chunk(number) for number in reversed(range(len(reader)))]:
        chunk.apply_(target)


READERS: dict[str, Callable[[bytes, Views], None]] = {
    "apply": by_apply,
    "stage": by_stage,
    "pull": by_pull,
    "feed": by_feed,
    "range": by_range,
}


# --- Tensors and changes. ----------------------------------------------------------------------


@st.composite
def shapes(draw: st.DrawFn, most: int = 400) -> tuple[int, ...]:
    """Rank 0 to 4, at most ``most`` elements, empty ones among them."""
    rank = draw(st.integers(0, 4))
    shape: list[int] = []
    for _ in range(rank):
        room = most // max(1, prod(shape))
        shape.append(draw(st.integers(0, max(1, room)) if draw(st.booleans()) else st.just(1)))
    return tuple(draw(st.permutations(shape)))


def specials(dtype: str) -> list[int]:
    """Bit patterns that comparisons and conversions trip over."""
    bits = 8 * WIDTHS[dtype]
    sign, ones = 1 << (bits - 1), (1 << bits) - 1
    patterns = [0, sign, 1, sign | 1, ones, ones - 1, sign - 1, sign - 2]
    if tensors.is_float(dtype):
        exponent = {"BF16": 8, "F16": 5, "F32": 8, "F64": 11, "F8_E5M2": 5}.get(dtype, 4)
        infinity = ((1 << exponent) - 1) << (bits - 1 - exponent)
        patterns += [infinity, infinity | sign, infinity | 1, infinity | sign | 1, infinity - 1]
        patterns += [1 << (bits - 1 - exponent), (1 << (bits - 1 - exponent)) - 1]
    return [pattern & ones for pattern in patterns]


@st.composite
def values(draw: st.DrawFn, dtype: str, shape: tuple[int, ...]) -> Value:
    """Random bits, weights-like bits, several exponents, one constant, or specials."""
    width, count = WIDTHS[dtype], prod(shape)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from(["random", "weights", "exponents", "constant", "specials"]))
    unsigned = np.dtype(f"<u{width}")
    if kind == "exponents" and dtype in tensors.EXPONENTS:
        first, bits = tensors.EXPONENTS[dtype]
        low = int(rng.integers(0, 1 << bits))
        fields = rng.integers(low, min(low + 1 + int(rng.integers(0, 20)), 1 << bits), count)
        numbers = np.frombuffer(rng.bytes(count * width), unsigned).copy()
        numbers &= unsigned.type(~(((1 << bits) - 1) << first) & ((1 << (8 * width)) - 1))
        data = (numbers | (fields.astype(unsigned) << unsigned.type(first))).tobytes()
    elif kind == "random":
        data = rng.bytes(count * width)
    elif kind == "constant":
        data = draw(st.sampled_from(specials(dtype))).to_bytes(width, "little") * count
    elif kind == "specials":
        data = rng.choice(np.array(specials(dtype), unsigned), count).tobytes()
    else:
        top = 1 << (8 * width - 2)
        spread = rng.integers(0, max(2, top >> 3), count, dtype=np.uint64)
        data = (top - 1 - spread).astype(unsigned).tobytes()
    if dtype == "BOOL":
        data = bytes(byte & 1 for byte in data)
    return Value(dtype, shape, data)


@st.composite
def changed(draw: st.DrawFn, old: Value) -> Value:
    """The same tensor with none, one, few, many, all, or runs of its elements changed."""
    width, count = WIDTHS[old.dtype], prod(old.shape)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    which = draw(st.sampled_from(["none", "one", "sparse", "dense", "all", "runs"]))
    moves = draw(st.sampled_from(["ulp", "bits", "sign", "specials", "far", "mixed"]))
    mask = np.zeros(count, bool)
    if count == 0 or which == "none":
        return old
    if which == "one":
        mask[draw(st.integers(0, count - 1))] = True
    elif which in ("sparse", "dense"):
        mask = rng.random(count) < (0.02 if which == "sparse" else 0.6)
    elif which == "all":
        mask[:] = True
    else:
        for start in rng.integers(0, count, 4):
            mask[start : start + int(rng.integers(1, 40))] = True
    if old.dtype == "BOOL":
        flipped = np.frombuffer(old.data, np.uint8) ^ mask.astype(np.uint8)
        return Value(old.dtype, old.shape, flipped.tobytes())
    ones = (1 << (8 * width)) - 1
    data = bytearray(old.data)
    for x in np.flatnonzero(mask):
        cell = slice(int(x) * width, (int(x) + 1) * width)
        before = int.from_bytes(data[cell], "little")
        kind = moves if moves != "mixed" else str(rng.choice(["ulp", "ulp", "bits", "far"]))
        if kind == "ulp":
            after = before + (1 if rng.random() < 0.5 else -1)
        elif kind == "bits":
            after = int.from_bytes(rng.bytes(width), "little")
        elif kind == "sign":
            after = before ^ 1 << (8 * width - 1)
        elif kind == "specials":
            after = int(rng.choice(np.array(specials(old.dtype), np.uint64)))
        else:
            after = before + (1 << int(rng.integers(0, 8 * width)))
        data[cell] = (after & ones).to_bytes(width, "little")
    return Value(old.dtype, old.shape, bytes(data))


@st.composite
def pairs(draw: st.DrawFn, most_tensors: int = 3, most: int = 400) -> tuple[State, State]:
    """A base and a new state of the same layout."""
    names = draw(
        st.lists(
            st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12),
            unique=True,
            max_size=most_tensors,
        )
    )
    base: State = {}
    new: State = {}
    for name in names:
        dtype = draw(st.sampled_from(sorted(WIDTHS)))
        base[name] = draw(values(dtype, draw(shapes(most))))
        new[name] = draw(changed(base[name]))
    return base, new


@st.composite
def writing(draw: st.DrawFn) -> dict[str, Any]:
    """Options of ``dw.diff`` and ``dw.StreamWriter``: profile, threads, tiles of any size."""
    return {
        "profile": draw(st.sampled_from(PROFILES)),
        "threads": draw(st.sampled_from([None, 1, 2, 3])),
        "tiling": draw(
            st.none()
            | st.builds(
                dw.Tiling,
                max_elements=st.integers(1, 200),
                ways=st.sampled_from([1, 2, 4, 8]),
                min_elements=st.integers(1, 64),
            )
        ),
    }


# --- The reference encoder's choices. ----------------------------------------------------------


@st.composite
def codings(draw: st.DrawFn) -> Coding:
    positions = draw(st.sampled_from([None, 1, 2, 3, 4, 5]))
    values_ = draw(st.sampled_from([0, 1] if positions == ALL else [0, 1, 2]))
    parameters = st.none() | st.just(LAW) | st.integers(0, 191)
    return Coding(
        positions=positions,
        position_stage=draw(st.integers(0, 1)),
        values=values_,
        value_stage=0 if values_ == 1 else draw(st.integers(0, 1)),
        base_digest=draw(st.booleans()),
        result_digest=draw(st.booleans()),
        k=draw(st.integers(0, 24)),
        k_gaps=draw(st.integers(0, 24)),
        k_sizes=draw(st.integers(0, 63)),
        plane_stages=tuple(draw(st.lists(st.integers(0, 1), min_size=8, max_size=8))),
        by_class=draw(st.booleans()),
        classes=draw(st.integers(1, 16)),
        top=draw(st.none() | st.integers(0, 2047) | st.integers(100, 140)),
        groups=draw(st.integers(1, 8)),
        parameters=Parameters(
            distance=draw(st.none() | st.integers(0, 255)),
            ranks=draw(parameters),
            sizes=draw(st.none() | st.just(LAW) | st.integers(1, 192)),
            differ=draw(st.booleans()),
        ),
    )


@st.composite
def tiles(draw: st.DrawFn, width: int, shape: tuple[int, ...]) -> tuple[int, int]:
    """Any tile that [F4] to [F6] allow."""
    rows, cols = tensors.matrix(shape)
    if rows * cols == 0:
        return 0, 0
    unit = 8 // width
    widths: Sequence[st.SearchStrategy[int]] = [st.integers(cols, cols + 3)]
    if cols > unit:
        widths = [*widths, st.integers(1, cols // unit).map(lambda n: n * unit)]
    return draw(st.integers(1, rows + 2)), draw(st.one_of(widths))


@st.composite
def encodings(draw: st.DrawFn, base: State) -> Options:
    """Options of the reference encoder for a delta from ``base``."""
    one = draw(codings())
    other = draw(codings())
    return Options(
        coding=lambda entry, tile: one if (tile + len(entry.name)) % 2 else other,
        tiles={name: draw(tiles(WIDTHS[v.dtype], v.shape)) for name, v in base.items()},
        run=draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=5)),
        version=draw(st.integers(0, 2**64 - 1)),
        base_version=draw(st.none() | st.integers(0, 2**64 - 1)),
        meta=draw(st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=3))
        if draw(st.booleans())
        else {},
        lz4_header=draw(st.booleans()),
        lz4_index=draw(st.booleans()),
        header_state=draw(st.booleans()),
        states=draw(st.booleans()),
        digests=draw(st.none() | st.booleans()),
        plain_table=draw(st.booleans()),
        order=draw(st.permutations(list(base))),
    )
