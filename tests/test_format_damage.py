"""Altered, cut and recombined deltas: a typed error, and a target as it was to the last byte."""

from __future__ import annotations

import io
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import deltawire as dw
from strategies import (
    READERS,
    State,
    Value,
    contents,
    delta,
    encoder,
    encodings,
    examples,
    pairs,
    primitives,
    reference,
    views,
    writing,
)

REFUSALS = (dw.CorruptDelta, dw.UnsupportedDelta, dw.LimitExceeded)


@cache
def small(profile: str) -> tuple[State, State, bytes]:
    """A delta of some 400 bytes or more: two dtypes, several codecs."""
    rng = np.random.default_rng(5)
    old = rng.integers(0x3C00, 0x3D00, (12, 24), np.uint16)
    new = old.copy()
    new[rng.random(old.shape) < 0.25] += 1
    new[3, 5] = 0x7FC1
    runs = np.zeros(90, np.int32)
    after = runs.copy()
    after[20:50] = 7
    # Small elements change often, large ones rarely.
    weights = (rng.standard_normal((40, 32)) * 0.02).astype(np.float32)
    often = rng.random(weights.shape) < 0.0003 / np.abs(weights)
    low = (weights.view(np.uint32) >> 16).astype(np.uint16)
    states = [
        ("w", "BF16", old, new), ("b", "I32", runs, after), ("c", "BF16", low, low ^ often),
    ]  # fmt: skip
    base = {name: Value(dtype, a.shape, a.tobytes()) for name, dtype, a, _ in states}
    result = {name: Value(dtype, b.shape, b.tobytes()) for name, dtype, _, b in states}
    return base, result, delta(base, result, profile=profile, meta={"why": "damage"})


def test_the_small_delta_has_classes() -> None:
    assert "classes" in dw.inspect(small("compact")[2]).codecs


CODINGS = {
    "rice+step": reference.Coding(5, values=2, base_digest=True, result_digest=True),
    "classes": reference.Coding(by_class=True, classes=9),
    "groups": reference.Coding(by_class=True, classes=3, groups=4),
}


def tiled(codecs: str) -> reference.Options:
    return reference.Options(coding=CODINGS[codecs], tiles={"w": (16, 128)})


@cache
def larger(codecs: str = "rice+step") -> tuple[State, State, bytes]:
    """A delta of some 20 kB with many chunks, so that damage can fall anywhere."""
    rng = np.random.default_rng(6)
    old = rng.integers(0x3C00, 0x3D00, (256, 512), np.uint16)
    new = old.copy()
    new[rng.random(old.shape) < 0.2] += 1
    base = {"w": Value("BF16", old.shape, old.tobytes())}
    after = {"w": Value("BF16", old.shape, new.tobytes())}
    return base, after, reference.encode(base, after, tiled(codecs))


@cache
def first_chunk(codecs: str) -> tuple[reference.Chunk, int]:
    """It, and how many bytes of its record come before its streams."""
    base, after, stream = larger(codecs)
    fields = encoder.all_chunks(base, after, tiled(codecs))[0]
    chunk = reference.decode(stream).chunks[0]
    return chunk, chunk.length - 4 - len(fields.get("positions", b"")) - len(fields["values"])


def refused(data: bytes, base: State, readers: tuple[str, ...] = tuple(READERS)) -> None:
    """Every reader refuses, and none has touched its target."""
    for reader in readers:
        target = views(base)
        with pytest.raises(REFUSALS) as caught:
            READERS[reader](data, target)
        assert caught.value.message, reader
        assert contents(target) == base, reader


@pytest.mark.parametrize("profile", ["compact", "overwrite"])
def test_every_truncation(profile: str) -> None:
    base, _, data = small(profile)
    for length in range(len(data)):
        refused(data[:length], base)


@pytest.mark.parametrize("profile", ["compact", "overwrite"])
def test_every_bit(profile: str) -> None:
    """Front to back: what a reader by range does not read, it cannot see."""
    base, _, data = small(profile)
    for bit in range(8 * len(data)):
        spoiled = bytearray(data)
        spoiled[bit // 8] ^= 1 << bit % 8
        refused(bytes(spoiled), base, ("apply", "stage", "feed"))


def test_every_byte_by_range() -> None:
    base, _, data = small("compact")
    for at in range(len(data)):
        spoiled = bytearray(data)
        spoiled[at] ^= 0xFF
        refused(bytes(spoiled), base, ("pull", "range"))


@pytest.mark.parametrize("codecs", CODINGS)
@examples(200)
@given(st.data())
def test_bits_of_a_larger_file(codecs: str, data: st.DataObject) -> None:
    base, _, stream = larger(codecs)
    bit = data.draw(st.integers(0, 8 * len(stream) - 1))
    spoiled = bytearray(stream)
    spoiled[bit // 8] ^= 1 << bit % 8
    refused(bytes(spoiled), base, ("apply", "feed"))


@pytest.mark.parametrize("codecs", CODINGS)
@examples(60)
@given(st.data())
def test_truncations_of_a_larger_file(codecs: str, data: st.DataObject) -> None:
    base, _, stream = larger(codecs)
    refused(stream[: data.draw(st.integers(0, len(stream) - 1))], base)


@examples(100)
@given(st.data())
def test_overwritten_stretches(data: st.DataObject) -> None:
    """A page of zeros, a repeated page, random bytes: what storage does."""
    base, _, stream = larger()
    start = data.draw(st.integers(0, len(stream) - 1))
    length = data.draw(st.integers(1, 5000))
    old = stream[start : start + length]
    kind = data.draw(st.sampled_from(["zeros", "ones", "earlier", "random"]))
    if kind == "earlier":
        source = data.draw(st.integers(0, len(stream) - len(old)))
        patch = stream[source : source + len(old)]
    elif kind == "random":
        patch = data.draw(st.binary(min_size=len(old), max_size=len(old)))
    else:
        patch = (b"\0" if kind == "zeros" else b"\xff") * len(old)
    if patch != old:
        refused(stream[:start] + patch + stream[start + len(old) :], base, ("apply", "feed"))


@examples(60)
@given(st.binary(min_size=1, max_size=64))
def test_garbage_behind_the_end(tail: bytes) -> None:
    for data in (small("compact")[2], small("overwrite")[2]):
        refused(data + tail, small("compact")[0])


@pytest.mark.parametrize("codecs", CODINGS)
@examples(300)
@given(st.data())
def test_streams_that_change_under_a_good_checksum(codecs: str, data: st.DataObject) -> None:
    """Any bytes in a chunk's streams: an error or the very same tile, never another one."""
    base, after, stream = larger(codecs)
    chunk, streams = first_chunk(codecs)
    record = bytearray(stream[chunk.offset : chunk.offset + chunk.length - 4])
    for _ in range(data.draw(st.integers(1, 3))):
        record[data.draw(st.integers(streams, len(record) - 1))] = data.draw(st.integers(0, 255))
    reader = dw.StreamReader(None)
    (got,) = reader.feed(stream[: chunk.offset] + primitives.sealed(bytes(record)))
    target = views(base)
    failure = None
    try:
        got.apply_(target)
    except dw.CorruptDelta as error:
        failure = error
    except dw.WrongBase as error:
        # Without a base digest nothing says that it is not the tile that is wrong.
        assert chunk.base_digest is None
        failure = error
    if failure is not None:
        assert (failure.tensor, failure.offset) == ("w", chunk.offset)
        assert contents(target) == base
    else:
        now, new = (np.frombuffer(s["w"].data, "<u2") for s in (contents(target), after))
        assert np.array_equal(now.reshape(256, 512)[:16, :128], new.reshape(256, 512)[:16, :128])


def test_two_deltas_in_one_file() -> None:
    base, _, data = small("compact")
    refused(data + data, base)


@examples(100)
@given(st.binary(max_size=300))
def test_garbage_is_no_delta(data: bytes) -> None:
    refused(data, small("compact")[0])


@examples(60)
@given(st.binary(max_size=200))
def test_garbage_behind_a_good_header(tail: bytes) -> None:
    base, _, data = small("compact")
    first = reference.decode(data).chunks[0].offset
    refused(data[:first] + tail, base)


@cache
def places(data: bytes) -> list[tuple[int, int]]:
    return [(chunk.offset, chunk.length) for chunk in reference.decode(data).chunks]


def records(data: bytes) -> tuple[bytes, list[bytes], bytes]:
    """Header, chunk records, index and trailer."""
    spans = places(data)
    pieces = [data[offset : offset + length] for offset, length in spans]
    return data[: spans[0][0]], pieces, data[sum(spans[-1]) :]


@examples(100)
@given(st.data())
def test_chunks_lost_doubled_or_moved(data: st.DataObject) -> None:
    """Every record has a good checksum; order and index tell."""
    base, _, stream = larger()
    head, chunks, tail = records(stream)
    at = data.draw(st.integers(0, len(chunks) - 1))
    kind = data.draw(st.sampled_from(["lose", "double", "swap", "move", "reverse"]))
    other = list(chunks)
    if kind == "lose":
        del other[at]
    elif kind == "double":
        other.insert(at, other[at])
    elif kind == "swap":
        other[at], other[at - 1] = other[at - 1], other[at]
    elif kind == "move":
        other.append(other.pop(0 if at == len(chunks) - 1 else at))
    else:
        other.reverse()
    refused(head + b"".join(other) + tail, base, ("apply", "stage", "pull", "feed"))


@cache
def next_step() -> list[bytes]:
    """Chunk records of a delta that starts where `larger` ends, with the same tiles."""
    _, after, _ = larger()
    third = {"w": Value("BF16", after["w"].shape, after["w"].data[::-1])}
    tiled = reference.Options(
        coding=reference.Coding(4, values=0, result_digest=True), tiles={"w": (16, 128)}
    )
    return records(reference.encode(after, third, tiled))[1]


@examples(40)
@given(st.data())
def test_chunks_of_another_delta(data: st.DataObject) -> None:
    """A chunk spliced in from the delta of another step: same tile, same layout."""
    base, _, stream = larger()
    head, chunks, tail = records(stream)
    at = data.draw(st.integers(0, len(chunks) - 1))
    chunks[at] = next_step()[at]
    refused(head + b"".join(chunks) + tail, base, ("apply", "stage", "pull", "feed"))


HUGE = [0, 1, 127, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, (1 << 64) - 1]
COLUMNS = ("tensors", "tiles", "lengths")
# ("changed", value); (column, how it is spoiled); or (row, number of the column, value).
LIES: list[tuple[str | int, ...]] = [
    *(("changed", value) for value in HUGE),
    *((column, how) for column in COLUMNS for how in ("empty", "cut", "long", "endless")),
    *((row, column, value) for row in (0, 1, -1) for column in (0, 1, 2) for value in HUGE),
]
TRUTHS = [(0, 0, 0), (1, 0, 0), (-1, 0, 0), (0, 1, 0), (1, 1, 1)]


def read_by_index(data: bytes, count: int) -> None:
    reader = dw.StreamReader(data)
    for number in range(count):
        reader.chunk(number)


@pytest.mark.parametrize(
    "lie", [lie for lie in LIES if lie not in TRUTHS], ids=lambda lie: "-".join(map(str, lie))
)
def test_an_index_that_lies(lie: tuple[str | int, ...]) -> None:
    """One number of the index is another; every checksum is right."""
    base, _, data = larger()
    model = reference.decode(data).index
    assert model is not None
    head, chunks, _ = records(data)
    rows = [list(row) for row in model.chunks]
    if not isinstance(lie[0], str):
        rows[lie[0]][int(lie[1])] = int(lie[2])
    states = (model.digests, model.base_state, model.result_state)
    fields = encoder.index_fields([(a, b, c) for a, b, c in rows], model.changed, *states)
    if lie[0] == "changed":
        fields["changed"] = lie[1]
    elif isinstance(lie[0], str):
        column = fields[lie[0]]
        spoiled = {"empty": b"", "cut": column[:-1], "long": column + b"\0"}
        fields[lie[0]] = spoiled.get(str(lie[1]), column + b"\xff" * 1000)
    other = encoder.join(head, chunks, encoder.encode_index(fields))
    refused(other, base, ("apply", "stage", "pull", "feed"))
    if lie[0] != "changed":  # the sum of changes shows only to who reads all chunks
        with pytest.raises(REFUSALS):
            read_by_index(other, len(chunks))


@examples(100)
@given(st.data())
def test_a_wrong_base(data: st.DataObject) -> None:
    """Any other bit in a tile that a base-relative chunk changes: refused, nothing written."""
    base, new = data.draw(pairs())
    stream = delta(base, new, **data.draw(writing()))
    names = [name for name, value in base.items() if value.data and value.dtype != "BOOL"]
    if not names:
        return
    name = data.draw(st.sampled_from(names))
    other = bytearray(base[name].data)
    other[data.draw(st.integers(0, len(other) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    wrong = {**base, name: Value(base[name].dtype, base[name].shape, bytes(other))}
    target = views(wrong)
    try:
        dw.apply(stream, target)
    except dw.WrongBase:
        assert contents(target) == wrong
    else:
        # The changed bit was overwritten, so the state after is the right one all the same.
        assert contents(target) == new


@examples(60)
@given(st.data())
def test_in_place_streaming_leaves_whole_tiles(data: st.DataObject) -> None:
    """Streaming in place until the source ends early: every tile is the old or the new one."""
    base, after, stream = larger()
    cut = data.draw(st.integers(0, len(stream) - 1))
    target = views(base)
    reader = dw.StreamReader(None)
    for start in range(0, cut, 997):
        for chunk in reader.feed(stream[start : min(cut, start + 997)]):
            chunk.apply_(target)
    with pytest.raises(REFUSALS):
        reader.finish()
    old, new = (np.frombuffer(s["w"].data, "<u2").reshape(256, 512) for s in (base, after))
    now = target["w"].data.view("<u2")
    for row in range(0, 256, 16):
        for col in range(0, 512, 128):
            box = np.s_[row : row + 16, col : col + 128]
            assert np.array_equal(now[box], old[box]) or np.array_equal(now[box], new[box])


@examples(40)
@given(st.data())
def test_a_reader_stays_broken_after_an_error(data: st.DataObject) -> None:
    _, _, stream = small("compact")
    spoiled = bytearray(stream)
    spoiled[data.draw(st.integers(24, len(stream) // 2))] ^= 0x20
    reader = dw.StreamReader(None)

    def read(piece: bytes) -> None:
        reader.feed(piece)
        reader.finish()

    with pytest.raises(REFUSALS):
        read(bytes(spoiled))
    with pytest.raises(dw.DeltawireError):
        read(stream)


@examples(60)
@given(st.data())
def test_reference_streams_with_flipped_bits(data: st.DataObject) -> None:
    """Codecs that the writer rarely picks."""
    base, new = data.draw(pairs())
    stream = reference.encode(base, new, data.draw(encodings(base)))
    bit = data.draw(st.integers(0, 8 * len(stream) - 1))
    spoiled = bytearray(stream)
    spoiled[bit // 8] ^= 1 << bit % 8
    refused(bytes(spoiled), base, ("apply", "feed"))


class Failing(io.RawIOBase):
    """A source that fails with ``error`` after some bytes."""

    def __init__(self, data: bytes, after: int, error: OSError) -> None:
        self.inner, self.left, self.error = io.BytesIO(data), after, error

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        if self.left <= 0:
            raise self.error
        piece = self.inner.read(min(len(buffer), self.left))
        self.left -= len(piece)
        buffer[: len(piece)] = piece
        return len(piece)


@pytest.mark.parametrize("after", [0, 10, 100, 390])
def test_a_source_that_fails(after: int) -> None:
    base, _, data = small("compact")
    target = views(base)
    with pytest.raises((OSError, dw.StoreError)):
        dw.apply(Failing(data, after, OSError(5, "Input/output error")), target)
    assert contents(target) == base


class Dripping(io.RawIOBase):
    """A source that gives one byte at a time, as a slow socket may."""

    def __init__(self, data: bytes) -> None:
        self.inner = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        piece = self.inner.read(1)
        buffer[: len(piece)] = piece
        return len(piece)


def test_a_source_with_short_reads() -> None:
    base, after, data = small("compact")
    target = views(base)
    dw.apply(Dripping(data), target)
    assert contents(target) == after
