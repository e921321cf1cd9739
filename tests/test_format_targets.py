"""Targets and sinks that do not fit, cannot be written, or fail half way."""

from __future__ import annotations

import errno
import io
from pathlib import Path

import numpy as np
import pytest

import deltawire as dw
from strategies import State, Value, classes, contents, delta, encoder, reference, views

RNG = np.random.default_rng(11)
OLD = RNG.integers(0x3B00, 0x3D00, (64, 96), np.uint16)
NEW = OLD + (RNG.random(OLD.shape) < 0.05).astype(np.uint16)
BASE: State = {"w": Value("BF16", OLD.shape, OLD.tobytes())}
AFTER: State = {"w": Value("BF16", NEW.shape, NEW.tobytes())}
TILED = reference.Options(
    coding=reference.Coding(5, values=2, result_digest=True), tiles={"w": (4, 16)}
)
STREAM = reference.encode(BASE, AFTER, TILED)


def target(data: np.ndarray = OLD, dtype: str = "BF16") -> dw.TensorView:
    return dw.TensorView.from_bytes(dtype, data.shape, bytearray(data.tobytes()))


def test_a_missing_tensor_is_named() -> None:
    with pytest.raises(dw.LayoutMismatch) as caught:
        dw.apply(STREAM, {"v": target()})
    assert caught.value.tensor == "w"


@pytest.mark.parametrize(
    "other",
    [target(OLD.reshape(96, 64)), target(OLD, "F16"), target(OLD.reshape(-1)), target(OLD[:-1])],
    ids=["shape", "dtype", "rank", "rows"],
)
def test_another_layout_is_refused(other: dw.TensorView) -> None:
    before = other.data.copy()
    with pytest.raises(dw.LayoutMismatch) as caught:
        dw.apply(STREAM, {"w": other})
    assert caught.value.tensor == "w"
    assert np.array_equal(other.data, before)


def test_tensors_beyond_the_delta_are_left_alone() -> None:
    held = {"other": target(NEW), "w": target()}
    dw.apply(STREAM, held)
    assert held["other"].data.tobytes() == NEW.tobytes()
    assert held["w"].data.tobytes() == NEW.tobytes()


def test_a_read_only_target_is_refused() -> None:
    frozen = dw.TensorView.from_bytes("BF16", OLD.shape, OLD.tobytes())
    with pytest.raises(dw.TargetError) as caught:
        dw.apply(STREAM, {"w": frozen})
    assert caught.value.tensor == "w"
    assert frozen.data.tobytes() == OLD.tobytes()
    with pytest.raises(dw.TargetError):
        next(iter(dw.StreamReader(STREAM))).apply_({"w": frozen})


CODINGS = {
    "classes": reference.Coding(by_class=True, classes=9),
    "groups": reference.Coding(by_class=True, classes=9, groups=3),
}


def ranked(kind: str, cols: int = 40) -> reference.Options:
    return reference.Options(coding=CODINGS[kind], tiles={"w": (20, cols)})


@pytest.mark.parametrize(("kind", "cols"), [("classes", 40), ("groups", 96)])
def test_ranks_want_their_base(kind: str, cols: int) -> None:
    """Positions within exponent classes: none without the base, none from another."""
    stream = reference.encode(BASE, AFTER, ranked(kind, cols))
    chunks = list(dw.StreamReader(stream))
    beside = np.zeros((64, 100), np.uint16)
    beside[:, :96] = OLD
    strided = dw.TensorView("BF16", OLD.shape, beside.view(np.uint8)[:, : 2 * 96])
    wanted = np.flatnonzero(OLD != NEW).tolist()
    for base in (target(), strided):
        assert sorted(x for c in chunks for x in c.positions(base).tolist()) == wanted
    for chunk in chunks:
        for wrong in (None, target(NEW)):
            with pytest.raises(dw.WrongBase) as caught:
                chunk.positions(base=wrong)
            assert (caught.value.tensor, caught.value.offset) == ("w", chunk.offset)
        for other in (target(OLD.reshape(96, 64)), target(OLD[:-1])):
            with pytest.raises(dw.LayoutMismatch) as mismatch:
                chunk.positions(base=other)
            assert mismatch.value.tensor == "w"


def test_classes_are_those_before_the_first_change() -> None:
    """Steps over a power of two move an element to another class while its chunk is applied."""
    old = np.array([[0x3F7F, 0x3F80, 0x3FFF, 0x3F00, 0x407F, 0x3F7F, 0x4000, 0x3F80]], np.uint16)
    new = old + np.array([[1, -1, 1, -1, 1, 0, -1, 0]]).astype(np.uint16)
    base: State = {"w": Value("BF16", old.shape, old.tobytes())}
    after: State = {"w": Value("BF16", old.shape, new.tobytes())}
    for count in (2, 5, 16):
        coding = reference.Coding(by_class=True, classes=count)
        held = views(base)
        dw.apply(reference.encode(base, after, reference.Options(coding)), held)
        assert contents(held) == after


@pytest.mark.parametrize(("kind", "cols"), [("classes", 40), ("groups", 96)])
def test_a_rank_behind_its_class_changes_nothing(kind: str, cols: int) -> None:
    """Only the base shows it. Without a base digest that may be the one that is wrong."""
    stream = reference.encode(BASE, AFTER, ranked(kind, cols))
    chunk = reference.decode(stream).chunks[0]
    partition = chunk.partition
    assert partition is not None
    assert len(partition.groups) == {"classes": 1, "groups": 3}[kind]
    fullest = max((ranks for group in partition.groups for ranks in group.ranks), key=len)
    fullest[-1] = 20 * cols - 1
    changed = encoder.chunk_record(
        tensor=0, tile=0, changes=chunk.changes, values=classes.encode_classes(partition),
        result=chunk.result_digest, kind=4,
    )  # fmt: skip
    reader = dw.StreamReader(None)
    (got,) = reader.feed(stream[: chunk.offset] + changed)
    held = {"w": target()}
    with pytest.raises(dw.WrongBase) as caught:
        got.apply_(held)
    assert (caught.value.tensor, caught.value.offset) == ("w", chunk.offset)
    with pytest.raises(dw.WrongBase):
        got.positions(target())
    assert held["w"].data.tobytes() == OLD.tobytes()


def test_a_tile_that_is_neither_base_nor_result() -> None:
    """With a base digest a chunk that does not lead to its result is corrupt; without one, and
    from any other tile, the base is wrong."""
    for base_digest in (False, True):
        coding = reference.Coding(5, values=2, base_digest=base_digest, result_digest=True)
        options = reference.Options(coding=coding, tiles={"w": (64, 96)})
        fields = encoder.all_chunks(BASE, AFTER, options)[0]
        head = encoder.encode_parts(BASE, AFTER, options)[0]
        lies = encoder.chunk_record(**{**fields, "result": fields["result"] ^ 1})
        truth = encoder.chunk_record(**fields)
        stray = OLD.copy()
        stray[0, 0] ^= 0x40
        for record, state, error in (
            (lies, OLD, dw.CorruptDelta if base_digest else dw.WrongBase),
            (truth, stray, dw.WrongBase),
            (lies, NEW, dw.WrongBase),
        ):
            (chunk,) = dw.StreamReader(None).feed(head + record)
            held = {"w": target(state)}
            with pytest.raises(error) as caught:
                chunk.apply_(held)
            assert (caught.value.tensor, caught.value.offset) == ("w", len(head))
            assert held["w"].data.tobytes() == state.tobytes()


def test_staging_writes_nothing() -> None:
    held = {"w": target()}
    staged = dw.stage(STREAM, held)
    assert held["w"].data.tobytes() == OLD.tobytes()
    assert staged.result_state == reference.state_digest(AFTER)
    stats = staged.commit()
    assert (stats.changed, stats.skipped) == (int((OLD != NEW).sum()), 0)
    assert held["w"].data.tobytes() == NEW.tobytes()


def test_another_result_than_expected_is_refused() -> None:
    held = {"w": target()}
    with pytest.raises(dw.UntrustedDelta):
        dw.stage(STREAM, held, expect_result=bytes(16))
    silent = reference.encode(BASE, AFTER, reference.Options(coding=TILED.coding, states=False))
    with pytest.raises(dw.UntrustedDelta):
        dw.stage(silent, held, expect_result=bytes(16))
    assert held["w"].data.tobytes() == OLD.tobytes()
    dw.stage(STREAM, held, expect_result=reference.state_digest(AFTER)).commit()
    assert held["w"].data.tobytes() == NEW.tobytes()


def test_a_stray_bit_in_a_tile_without_changes() -> None:
    """Only the proof of the whole state sees it; without the proof the tiles are still guarded."""
    sparse = OLD.copy()
    sparse[0, 0] ^= 1
    after: State = {"w": Value("BF16", OLD.shape, sparse.tobytes())}
    stream = reference.encode(BASE, after, TILED)
    stray = OLD.copy()
    stray[-1, -1] ^= 1
    held = {"w": target(stray)}
    with pytest.raises(dw.WrongBase) as caught:
        dw.apply(stream, held)
    assert caught.value.tensor == "w"
    assert held["w"].data.tobytes() == stray.tobytes()
    stats = dw.apply(stream, held, verify=False)
    assert (stats.changed, stats.result_state) == (1, None)
    stray[0, 1] ^= 1
    with pytest.raises(dw.WrongBase):
        dw.apply(stream, {"w": target(stray)}, verify=False)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_delta_that_changes_between_stage_and_commit(threads: int, tmp_path: Path) -> None:
    """A stage of few changes needs the file no more: what was checked is what is written."""
    path = tmp_path / "x.dw"
    path.write_bytes(STREAM)
    third: State = {"w": Value("BF16", NEW.shape, (NEW + 1).tobytes())}
    for chunk in reference.decode(STREAM).chunks[::10]:
        spoiled = bytearray(STREAM)
        spoiled[chunk.offset + chunk.length // 2] ^= 0x40
        for other in (bytes(spoiled), b"", reference.encode(BASE, third, TILED)):
            path.write_bytes(STREAM)
            held = {"w": target()}
            staged = dw.stage(path, held, threads=threads)
            path.write_bytes(other)
            assert staged.commit().result_state == reference.state_digest(AFTER)
            assert held["w"].data.tobytes() == NEW.tobytes()


class FullSink:
    """Takes ``room`` bytes, then the disk is full."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.taken = 0

    def write(self, data: bytes) -> int:
        if self.taken + len(data) > self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.taken += len(data)
        return len(data)


@pytest.mark.parametrize("room", [0, 10, 100, 300, -1])
def test_a_sink_that_is_full(room: int) -> None:
    sink = FullSink(room % len(delta(BASE, AFTER)))
    with pytest.raises((dw.StoreError, OSError)) as caught:
        dw.diff(views(BASE), views(AFTER), sink)
    assert "No space left" in str(caught.value)


def test_a_full_disk() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    with pytest.raises(dw.StoreError):
        dw.diff(views(BASE), views(AFTER), "/dev/full")


def test_a_sink_that_takes_little_at_a_time() -> None:
    class Small:
        def __init__(self) -> None:
            self.data = b""

        def write(self, data: bytes) -> int:
            piece = bytes(data)[:7]
            self.data += piece
            return len(piece)

    sink = Small()
    dw.diff(views(BASE), views(AFTER), sink)
    assert sink.data == delta(BASE, AFTER)


@pytest.mark.parametrize("fault", [KeyboardInterrupt(), RuntimeError("stop")])
def test_an_interrupted_diff_leaves_no_file(fault: BaseException, tmp_path: Path) -> None:
    path = tmp_path / "x.dw"
    path.write_bytes(b"before")

    def progress(_done: int) -> None:
        raise fault

    with pytest.raises(type(fault)):
        dw.diff(views(BASE), views(AFTER), path, progress=progress)
    assert path.read_bytes() == b"before"
    assert [p.name for p in tmp_path.iterdir()] == ["x.dw"]


@pytest.mark.parametrize("fault", [KeyboardInterrupt(), RuntimeError("stop")])
def test_an_interrupted_stage_changes_nothing(fault: BaseException) -> None:
    held = views(BASE)

    def progress(_done: int) -> None:
        raise fault

    with pytest.raises(type(fault)):
        dw.apply(STREAM, held, progress=progress)
    assert contents(held) == BASE


def test_progress_adds_up_to_the_dense_bytes() -> None:
    done: list[int] = []
    dw.diff(views(BASE), views(AFTER), io.BytesIO(), progress=done.append)
    assert sum(done) == OLD.nbytes
    done.clear()
    dw.apply(STREAM, views(BASE), progress=done.append)
    assert sum(done) == OLD.nbytes


@pytest.mark.parametrize("changes", ["descending", "repeated", "negative", "outside", "values"])
def test_changes_that_make_no_sense(changes: str) -> None:
    positions = {
        "descending": [5, 4],
        "repeated": [5, 5],
        "negative": [-1, 5],
        "outside": [5, OLD.size],
        "values": [5],
    }[changes]
    given = dw.Changes(np.array(positions, np.int64), np.array([1, 2], np.uint16))
    writer = dw.StreamWriter(io.BytesIO(), {"w": ("BF16", OLD.shape)}, profile="overwrite")
    with pytest.raises(dw.LayoutMismatch) as caught, writer:
        writer.add_changes("w", given)
    assert caught.value.tensor == "w"


def test_a_writer_refuses_what_is_not_in_its_table() -> None:
    for name, data in (("v", OLD), ("w", OLD[:-1])):
        writer = dw.StreamWriter(io.BytesIO(), {"w": ("BF16", OLD.shape)})
        with pytest.raises(dw.LayoutMismatch), writer:
            writer.add(name, base=target(data), new=target(data))
    writer = dw.StreamWriter(io.BytesIO(), {"w": ("BF16", OLD.shape)})
    writer.add("w", base=target(), new=target())
    with pytest.raises(dw.LayoutMismatch), writer:
        writer.add("w", base=target(), new=target())


def test_a_delta_without_one_of_its_tensors() -> None:
    """A tensor of the table that is never added: unchanged, and the delta knows no whole state."""
    sink = io.BytesIO()
    with dw.StreamWriter(sink, {"w": target(), "rest": target()}) as writer:
        writer.add("w", base=target(), new=target(NEW))
    assert writer.stats.result_state is None
    held = {"w": target(), "rest": target()}
    dw.apply(sink.getvalue(), held)
    assert held["w"].data.tobytes() == NEW.tobytes()
    assert held["rest"].data.tobytes() == OLD.tobytes()
    model = reference.apply(
        sink.getvalue(), {"w": BASE["w"], "rest": Value("BF16", OLD.shape, OLD.tobytes())}
    )
    assert model["w"].data == NEW.tobytes()


@pytest.mark.parametrize("profile", ["smallest", "", "COMPACT"])
def test_unknown_profiles_are_refused(profile: str) -> None:
    with pytest.raises((dw.DeltawireError, ValueError)):
        delta(BASE, AFTER, profile=profile)
