"""Round trips: native to native, native to reference, reference to native, by every reader."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import deltawire as dw
from strategies import (
    CODECS,
    PROFILES,
    READERS,
    WIDTHS,
    State,
    Value,
    by_feed,
    contents,
    delta,
    digest,
    encodings,
    examples,
    pairs,
    reference,
    specials,
    tensors,
    views,
    writing,
)

Written = dict[str, Any]


@examples(150)
@given(pairs(), writing())
def test_diff_and_apply(pair: tuple[State, State], options: Written) -> None:
    base, new = pair
    data = delta(base, new, **options)
    target = views(base)
    dw.apply(data, target, threads=options["threads"])
    assert contents(target) == new


@examples(40)
@given(pairs(most_tensors=2, most=6000), writing())
def test_tensors_large_enough_for_every_codec(pair: tuple[State, State], options: Written) -> None:
    """Among a few thousand elements Rice streams and LZ4 stages pay."""
    base, new = pair
    data = delta(base, new, **options)
    for reader in READERS.values():
        target = views(base)
        reader(data, target)
        assert contents(target) == new
    assert reference.apply(data, base) == new


def test_the_writer_uses_every_codec_that_it_has() -> None:
    """Its goldens and this file's tensors say little of codecs that are never picked."""
    rng = np.random.default_rng(4)
    codecs: set[str] = set()
    for share in (0.0001, 0.01, 0.1, 0.5, 1.0):
        for step in (1, 2, 1000):
            old = rng.integers(0x3B00, 0x3D00, (64, 512), np.uint16)
            mask = rng.random(old.shape) < share
            if step == 2:
                mask = np.repeat(mask[:, ::64], 64, axis=1)
            new = old + mask * rng.integers(1, step + 1, old.shape).astype(np.uint16)
            base: State = {"w": Value("BF16", old.shape, old.tobytes())}
            after: State = {"w": Value("BF16", old.shape, new.astype(np.uint16).tobytes())}
            for profile in PROFILES:
                codecs |= set(dw.inspect(delta(base, after, profile=profile)).codecs)
    parts = {part for codec in codecs for part in codec.split("+")}
    assert parts >= set(CODECS), codecs


@examples(120)
@given(pairs(), writing())
def test_the_reference_reads_what_the_writer_writes(
    pair: tuple[State, State], options: Written
) -> None:
    base, new = pair
    data = delta(base, new, base_version=3, version=9, run="r", meta={"a": "b"}, **options)
    assert reference.apply(data, base) == new
    stream = reference.decode(data)
    assert stream.index is not None
    header = stream.header
    assert (header.run, header.base_version, header.version) == ("r", 3, 9)
    assert (header.profile, header.meta) == (options["profile"], {"a": "b"})
    assert stream.index.base_state == reference.state_digest(base)
    assert stream.index.result_state == reference.state_digest(new)
    for number in range(0, len(stream.chunks), 5):
        assert reference.decode_range(data, number) == stream.chunks[number]
    # The result digest proves; a chunk of the overwrite profile needs no base at all.
    assert all(chunk.base_digest is None for chunk in stream.chunks)
    assert all(chunk.result_digest is not None for chunk in stream.chunks)
    assert options["profile"] != "overwrite" or not any(c.is_relative for c in stream.chunks)


@examples(150)
@given(st.data())
def test_what_the_reference_writes_is_read(data: st.DataObject) -> None:
    base, new = data.draw(pairs())
    stream = reference.encode(base, new, data.draw(encodings(base)))
    for reader in READERS.values():
        target = views(base)
        reader(stream, target)
        assert contents(target) == new


@examples(80)
@given(st.data())
def test_any_split_of_the_stream_reads_the_same(data: st.DataObject) -> None:
    base, new = data.draw(pairs())
    stream = delta(base, new, **data.draw(writing()))
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12))
    size = data.draw(st.integers(1, 64))
    for edges in (cuts, range(size, len(stream), size)):
        target = views(base)
        by_feed(stream, target, edges)
        assert contents(target) == new


@examples(60)
@given(pairs(), writing())
def test_push_pull_and_range_yield_the_same_chunks(
    pair: tuple[State, State], options: Written
) -> None:
    data = delta(*pair, **options)
    wanted = reference.decode(data)
    tensors = wanted.header.tensors
    pulled = list(dw.StreamReader(io.BytesIO(data)))
    pushed = []
    reader = dw.StreamReader(None)
    for start in range(0, len(data), 50):
        pushed += reader.feed(data[start : start + 50])
    reader.finish()
    ranged = dw.StreamReader(data)
    for chunks in (pulled, pushed, [ranged.chunk(i) for i in range(len(wanted.chunks))]):
        assert len(chunks) == len(wanted.chunks)
        for chunk, model in zip(chunks, wanted.chunks, strict=True):
            entry = tensors[model.tensor]
            row0, row1, col0, col1 = entry.box(model.tile)
            assert (chunk.tensor, chunk.tile) == (entry.name, model.tile)
            assert (chunk.box, chunk.changes) == (((row0, row1), (col0, col1)), model.changes)
            old = pair[0][entry.name]
            grid = np.frombuffer(old.data, np.uint8).reshape(entry.rows, -1)
            box = grid[row0:row1, col0 * entry.width : col1 * entry.width]
            flat = sorted(
                (row0 + x // (col1 - col0)) * entry.cols + col0 + x % (col1 - col0)
                for x in reference.positions_of(model, entry, box)
            )
            positions = chunk.positions(base=views(pair[0])[entry.name])
            assert positions.dtype == np.int64
            assert positions.tolist() == flat
            if model.positions is None:
                with pytest.raises(dw.WrongBase) as caught:
                    chunk.positions()
                assert (caught.value.tensor, caught.value.offset) == (entry.name, model.offset)
            else:
                assert chunk.positions().tolist() == flat


@examples(60)
@given(pairs(), writing())
def test_threads_do_not_change_a_byte(pair: tuple[State, State], options: Written) -> None:
    assert delta(*pair, **options) == delta(*pair, **{**options, "threads": 1})


@examples(60)
@given(pairs(), writing())
def test_a_second_apply_changes_nothing(pair: tuple[State, State], options: Written) -> None:
    """Tiles that hold the result are recognised; the overwrite profile may be applied twice."""
    base, new = pair
    data = delta(base, new, **options)
    target = views(base)
    dw.apply(data, target)
    stats = dw.apply(data, target)
    assert contents(target) == new
    assert stats.skipped == stats.chunks or options["profile"] == "overwrite"


@examples(60)
@given(st.data())
def test_a_half_applied_delta_is_finished(data: st.DataObject) -> None:
    """Some chunks applied, the rest not: what a crash in a commit leaves behind."""
    base, new = data.draw(pairs())
    stream = delta(base, new, **data.draw(writing()))
    chunks = list(dw.StreamReader(stream))
    done = data.draw(st.lists(st.booleans(), min_size=len(chunks), max_size=len(chunks)))
    target = views(base)
    for chunk, now in zip(chunks, done, strict=True):
        if now:
            chunk.apply_(target)
    dw.apply(stream, target)
    assert contents(target) == new


@examples(80)
@given(st.data())
def test_stats_and_description_agree_with_the_stream(data: st.DataObject) -> None:
    base, new = data.draw(pairs())
    sink = io.BytesIO()
    stats = dw.diff(views(base), views(new), sink, **data.draw(writing()))
    stream = sink.getvalue()
    model = reference.decode(stream)
    changed = sum(
        int(
            (
                np.frombuffer(base[n].data, f"<u{WIDTHS[base[n].dtype]}")
                != np.frombuffer(new[n].data, f"<u{WIDTHS[base[n].dtype]}")
            ).sum()
        )
        for n in base
    )
    info = dw.inspect(stream)
    elements = sum(tensor.elements for tensor in model.header.tensors)
    for told in (stats, info):
        assert (told.changed, told.elements, told.chunks, told.bytes) == (
            changed,
            elements,
            len(model.chunks),
            len(stream),
        )
        assert told.dense_bytes == sum(len(value.data) for value in base.values())
        assert told.base_state == reference.state_digest(base)
        assert told.result_state == reference.state_digest(new)
    assert sum(tensor.changed for tensor in info.tensors) == changed
    assert sum(tensor.chunks for tensor in info.tensors) == len(model.chunks)
    for tensor in info.tensors:
        lanes = digest.tensor_digest(tensor.name, tensor.dtype, tensor.shape, new[tensor.name].data)
        assert tensor.digest == digest.stored(lanes)[:4]
    assert info.header_bytes + info.index_bytes <= len(stream)


@examples(60)
@given(st.data())
def test_add_changes_equals_diff(data: st.DataObject) -> None:
    """A caller that knows its changes gets a delta with the same effect."""
    base, new = data.draw(pairs())
    given_base = data.draw(st.booleans())
    sink = io.BytesIO()
    tensors = {name: (value.dtype, value.shape) for name, value in base.items()}
    olds = views(base)
    options = data.draw(writing())
    with dw.StreamWriter(sink, tensors, **options) as w:
        for name in base:
            bits = np.dtype(f"<u{WIDTHS[base[name].dtype]}")
            a, b = np.frombuffer(base[name].data, bits), np.frombuffer(new[name].data, bits)
            where = np.flatnonzero(a != b).astype(np.int64)
            changes = dw.Changes(where, b[where])
            w.add_changes(name, changes, base=olds[name] if given_base else None)
    target = views(base)
    dw.apply(sink.getvalue(), target)
    assert contents(target) == new
    assert reference.apply(sink.getvalue(), base) == new
    known = given_base or not base
    assert w.stats.result_state == (reference.state_digest(new) if known else None)
    assert w.stats.base_state == (reference.state_digest(base) if known else None)


@examples(40)
@given(st.data())
def test_tensors_in_any_order(data: st.DataObject) -> None:
    base, new = data.draw(pairs(most_tensors=5))
    order = data.draw(st.permutations(list(base)))
    sink = io.BytesIO()
    olds, news = views(base), views(new)
    with dw.StreamWriter(sink, olds, **data.draw(writing())) as writer:
        for name in order:
            writer.add(name, base=olds[name], new=news[name])
    assert reference.apply(sink.getvalue(), base) == new
    target = views(base)
    dw.apply(sink.getvalue(), target)
    assert contents(target) == new


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("dtype", sorted(WIDTHS))
def test_every_special_pattern_to_every_other(dtype: str, profile: str) -> None:
    """-0 to +0, NaN payloads, infinities, denormals: 256 or more pairs of patterns."""
    patterns = [0, 1] if dtype == "BOOL" else specials(dtype)
    width = WIDTHS[dtype]
    grid = np.array([(a, b) for a in patterns for b in patterns], f"<u{width}")
    base: State = {"w": Value(dtype, (len(grid),), np.ascontiguousarray(grid[:, 0]).tobytes())}
    new: State = {"w": Value(dtype, (len(grid),), np.ascontiguousarray(grid[:, 1]).tobytes())}
    data = delta(base, new, profile=profile)
    target = views(base)
    dw.apply(data, target)
    assert contents(target) == new
    assert reference.apply(data, base) == new
    assert dw.inspect(data).changed == int((grid[:, 0] != grid[:, 1]).sum())


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize(
    ("rows", "cols"), [(1, 70_000), (70_000, 1), (300, 1000), (1000, 257), (3, 1 << 15)]
)
def test_tensors_of_several_tiles(
    rows: int, cols: int, profile: str, rng: np.random.Generator
) -> None:
    """Wide, tall, ragged: large enough that the writer cuts or could cut tiles."""
    old = rng.integers(0, 1 << 16, (rows, cols), np.uint16)
    new = old.copy()
    mask = rng.random(old.shape) < 0.02
    new[mask] += rng.integers(1, 4, int(mask.sum()), np.uint16)
    new[-1, -1] ^= 0x8000
    base = {"w": Value("BF16", (rows, cols), old.tobytes())}
    after = {"w": Value("BF16", (rows, cols), new.tobytes())}
    data = delta(base, after, profile=profile, threads=2)
    for reader in READERS.values():
        target = views(base)
        reader(data, target)
        assert contents(target) == after
    assert reference.apply(data, base) == after


@pytest.mark.parametrize("profile", PROFILES)
def test_tied_tensors_are_written_once(profile: str, rng: np.random.Generator) -> None:
    """Two names of one memory, as tied embeddings are: steps must not be taken twice."""
    old = rng.integers(0, 1 << 15, (16, 24), np.int16)
    new = old.copy()
    new[::3, 5] += 1
    new[7] -= 300
    sink = io.BytesIO()
    dw.diff({"a": old, "b": old}, {"a": new, "b": new}, sink, profile=profile)
    tied = old.copy()
    for _ in range(2):
        dw.apply(sink.getvalue(), {"a": tied, "b": tied})
        assert np.array_equal(tied, new)
        assert dw.state_digest({"a": tied, "b": tied}) == dw.inspect(sink.getvalue()).result_state


@pytest.mark.parametrize("profile", PROFILES)
def test_tied_tensors_that_part_are_refused(profile: str, rng: np.random.Generator) -> None:
    """One memory cannot hold two different results."""
    old = rng.integers(0, 1 << 15, (16, 24), np.int16)
    new = old.copy()
    new[3, 3] += 1
    sink = io.BytesIO()
    dw.diff({"a": old, "b": old}, {"a": new, "b": old}, sink, profile=profile)
    tied = old.copy()
    target = {"a": tied, "b": tied}
    with pytest.raises(dw.WrongBase) as caught:
        dw.apply(sink.getvalue(), target)
    assert caught.value.tensor in target
    assert np.array_equal(tied, old)


@pytest.mark.parametrize("profile", PROFILES)
def test_targets_that_overlap_in_part_are_refused(profile: str, rng: np.random.Generator) -> None:
    memory = rng.integers(0, 1 << 15, 40 * 8, np.int16)
    parts = {"a": memory[: 24 * 8].reshape(24, 8), "b": memory[16 * 8 :].reshape(24, 8)}
    olds = {name: part.copy() for name, part in parts.items()}
    news = {name: part + 1 for name, part in olds.items()}
    sink = io.BytesIO()
    dw.diff(olds, news, sink, profile=profile)
    before = memory.copy()
    with pytest.raises(dw.TargetError) as caught:
        dw.apply(sink.getvalue(), parts)
    assert caught.value.tensor in parts
    assert np.array_equal(memory, before)


@pytest.mark.parametrize("dtype", sorted(tensors.EXPONENTS))
@pytest.mark.parametrize(
    ("classes", "groups", "tile"),
    [(2, 1, (10, 40)), (9, 1, (10, 40)), (16, 1, (10, 40)), (1, 2, (10, 72)), (9, 8, (37, 64))],
)
def test_classes_of_every_float(
    dtype: str, classes: int, groups: int, tile: tuple[int, int], rng: np.random.Generator
) -> None:
    """Random patterns, ragged tiles, rows with gaps: both sides see the same classes."""
    width = WIDTHS[dtype]
    bits = np.dtype(f"<u{width}")
    old = np.frombuffer(rng.bytes(37 * 72 * width), bits).reshape(37, 72).copy()
    new = old.copy()
    mask = rng.random(old.shape) < np.linspace(0, 0.3, 37)[:, None]
    new[mask] += rng.integers(1, 5, int(mask.sum())).astype(bits)
    base: State = {"w": Value(dtype, old.shape, old.tobytes())}
    after: State = {"w": Value(dtype, old.shape, new.tobytes())}
    coding = reference.Coding(by_class=True, classes=classes, groups=groups)
    stream = reference.encode(base, after, reference.Options(coding, tiles={"w": tile}))
    partitions = [chunk.partition for chunk in reference.decode(stream).chunks]
    assert all(p is not None and p.classes == classes for p in partitions)
    # The columns beside a tile of 64 are too few for groups.
    assert {len(p.groups) for p in partitions if p is not None} - {1} == {groups} - {1}
    wide = np.zeros((37, 100 * width), np.uint8)
    held = dw.TensorView(dtype, old.shape, wide[:, 8 : 8 + 72 * width])
    for reader in READERS.values():
        wide[:] = 0xA5
        held.data[:] = old.view(np.uint8)
        reader(stream, {"w": held})
        assert np.array_equal(held.data, new.view(np.uint8))
        assert (wide[:, :8] == 0xA5).all()
        assert (wide[:, 8 + 72 * width :] == 0xA5).all()


def test_strided_rows_are_read_and_written_in_place(rng: np.random.Generator) -> None:
    """A view of every column but the last of a wider matrix, as a fused shard would be."""
    wide = rng.integers(0, 256, (40, 64), np.uint8)
    old = dw.TensorView("BF16", (40, 24), wide[:, :48])
    after = wide[:, :48].copy()
    after[::3, 6] ^= 0x11
    sink = io.BytesIO()
    dw.diff({"w": old}, {"w": dw.TensorView("BF16", (40, 24), after)}, sink)
    beside = wide[:, 48:].copy()
    dw.apply(sink.getvalue(), {"w": old})
    assert np.array_equal(wide[:, :48], after)
    assert np.array_equal(wide[:, 48:], beside)


def test_a_path_a_buffer_and_a_file_are_the_same_source(tmp_path: Path) -> None:
    base: State = {"w": Value("I16", (8,), bytes(16))}
    new: State = {"w": Value("I16", (8,), bytes([1] * 16))}
    data = delta(base, new)
    path = tmp_path / "x.dw"
    dw.diff(views(base), views(new), path)
    assert path.read_bytes() == data
    assert [p.name for p in tmp_path.iterdir()] == ["x.dw"]
    with path.open("rb") as file:
        for source in (path, str(path), data, bytearray(data), memoryview(data), file):
            target = views(base)
            dw.apply(source, target)
            assert contents(target) == new
