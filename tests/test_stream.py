"""The writer and reader as a user drives them: order, misuse, and what is left behind."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

import deltawire as dw
from deltawire.types import Profile

OLD = {
    "a": np.linspace(-1, 1, 4096, dtype=np.float32).reshape(64, 64),
    "b": np.arange(7, dtype=np.int64),
    "empty": np.zeros((0, 3), np.float16),
}


def changed() -> dict[str, np.ndarray]:
    new = {name: array.copy() for name, array in OLD.items()}
    new["a"][::9, 3] = np.nextafter(new["a"][::9, 3], np.float32(np.inf))
    new["b"][-1] = -1
    return new


def delta(**options: object) -> bytes:
    sink = io.BytesIO()
    dw.diff(OLD, changed(), sink, **options)  # type: ignore[arg-type]
    return sink.getvalue()


@pytest.mark.parametrize("same", [False, True])
def test_header_in_every_form(tmp_path: Path, same: bool) -> None:
    """By range from bytes and path, pushed, and pulled from a file; also without a single chunk."""
    sink = io.BytesIO()
    dw.diff(OLD, OLD if same else changed(), sink, run="r", base_version=4, meta={"k": "v"})
    data = sink.getvalue()
    path = tmp_path / "x.dw"
    path.write_bytes(data)
    pushed = dw.StreamReader()
    with pytest.raises(ValueError, match="not arrived"):
        _ = pushed.header
    chunks = pushed.feed(data)
    pushed.finish()
    assert bool(chunks) is not same
    pulled = dw.StreamReader(io.BytesIO(data))
    assert len(list(pulled)) == len(chunks)
    for reader in (dw.StreamReader(data), dw.StreamReader(path), pushed, pulled):
        header = reader.header
        assert (header["run"], header["version"], header["base_version"]) == ("r", 5, 4)
        assert header["meta"] == {"k": "v"}
        assert [entry[0] for entry in header["tensors"]] == list(OLD)


def test_tensors_in_any_order_give_the_same_state() -> None:
    """The table fixes names; the order of adding is the caller's."""
    new = changed()
    states = set()
    for order in (list(OLD), list(OLD)[::-1]):
        sink = io.BytesIO()
        with dw.StreamWriter(sink, OLD) as writer:
            for name in order:
                writer.add(name, base=OLD[name], new=new[name])
        states.add((writer.stats.base_state, writer.stats.result_state, writer.stats.changed))
        target = {name: array.copy() for name, array in OLD.items()}
        dw.apply(sink.getvalue(), target)
        assert all(np.array_equal(target[name], new[name]) for name in new)
    assert len(states) == 1


@pytest.mark.parametrize("profile", ["compact", "fast", "overwrite"])
def test_known_changes_equal_a_comparison(profile: str) -> None:
    """``add_changes`` with the base writes what ``add`` writes, dropping what does not change."""
    new = changed()
    sink = io.BytesIO()
    with dw.StreamWriter(sink, OLD, base_version=0, profile=profile) as writer:  # type: ignore[arg-type]
        for name, array in new.items():
            flat = array.reshape(-1)
            positions = np.arange(0, flat.size, dtype=np.int64)
            writer.add_changes(name, dw.Changes(positions, flat), base=OLD[name])
    assert sink.getvalue() == delta(profile=profile, base_version=0)


def test_known_changes_without_a_base() -> None:
    """The chunks are absolute, and the delta claims no state."""
    new = changed()
    sink = io.BytesIO()
    with dw.StreamWriter(sink, OLD) as writer:
        for name, array in new.items():
            flat, before = array.reshape(-1), OLD[name].reshape(-1)
            positions = np.flatnonzero(flat != before)
            writer.add_changes(name, dw.Changes(positions, flat[positions]))
    assert writer.stats.result_state is None
    target = {name: array.copy() for name, array in OLD.items()}
    stats = dw.apply(sink.getvalue(), target)
    assert stats.result_state == dw.state_digest(new) == dw.state_digest(target)


def test_misuse_of_the_writer(tmp_path: Path) -> None:
    """Every mistake names the tensor; the path does not appear."""
    path = tmp_path / "x.dw"
    new = changed()
    mistakes = [
        (lambda w: w.add("c", base=OLD["a"], new=new["a"]), "'c'"),
        (lambda w: [w.add("a", base=OLD["a"], new=new["a"]) for _ in "12"], "'a'.*added before"),
        (lambda w: w.add("a", base=OLD["a"], new=new["a"][:9]), r"'a'.*\[9, 64\]"),
        (lambda w: w.add("b", base=OLD["b"], new=new["b"].astype(np.int32)), "'b'.*I32"),
        (lambda w: w.add_changes("b", dw.Changes(np.array([7]), np.array([1]))), "'b'.*ascend"),
        (lambda w: w.add_changes("b", dw.Changes(np.array([2, 2]), np.array([1, 1]))), "ascend"),
        (lambda w: w.add_changes("b", dw.Changes(np.array([-1]), np.array([1]))), "ascend"),
        (lambda w: w.add_changes("b", dw.Changes(np.array([1, 2]), np.array([1]))), "'b'.*8 bytes"),
    ]
    for mistake, message in mistakes:
        with (
            pytest.raises(dw.LayoutMismatch, match=message),
            dw.StreamWriter(path, OLD) as writer,
        ):
            mistake(writer)
        assert list(tmp_path.iterdir()) == []


def test_an_exception_of_the_caller_leaves_nothing(tmp_path: Path) -> None:
    """The writer passes it on, and an older file at the path stays."""
    path = tmp_path / "x.dw"
    path.write_bytes(b"before")

    def write() -> None:
        with dw.StreamWriter(path, OLD) as writer:
            writer.add("a", base=OLD["a"], new=OLD["a"])
            raise KeyError("a trainer's own")

    with pytest.raises(KeyError, match="a trainer's own"):
        write()
    assert path.read_bytes() == b"before"
    assert [p.name for p in tmp_path.iterdir()] == ["x.dw"]


def test_a_stated_base_state_is_checked() -> None:
    """A publisher that passes the wrong base is told before the delta is whole."""
    sink = io.BytesIO()

    def write() -> None:
        with dw.StreamWriter(sink, OLD, base_state=bytes(16)) as writer:
            for name in OLD:
                writer.add(name, base=OLD[name], new=OLD[name])

    with pytest.raises(dw.WrongBase, match="base state"):
        write()
    with pytest.raises(dw.CorruptDelta):
        dw.inspect(sink.getvalue())


@pytest.mark.parametrize("profile", ["compact", "fast", "overwrite"])
def test_a_known_base_state_changes_nothing_else(profile: Profile) -> None:
    """It saves work; states, changes and size are as without."""
    new, plain, known = changed(), io.BytesIO(), io.BytesIO()
    before, after = dw.state_digest(OLD), dw.state_digest(new)
    want = dw.diff(OLD, new, plain, profile=profile)
    stats = dw.diff(OLD, new, known, profile=profile, base_state=before)
    assert (stats.base_state, stats.result_state) == (before, after)
    assert stats.changed == want.changed
    # The state stands in the header instead of the index.
    assert abs(stats.bytes - want.bytes) < 8
    assert len(stats.record_hashes) == 32 * (stats.chunks + 2)
    assert "record_hashes" not in stats.as_dict()
    info = dw.inspect(known.getvalue())
    assert (info.base_state, info.result_state) == (before, after)
    target = {name: array.copy() for name, array in OLD.items()}
    assert dw.apply(known.getvalue(), target).result_state == after
    assert all(np.array_equal(target[name], new[name]) for name in new)


def test_a_progress_callback_may_stop_the_work() -> None:
    """Its exception comes out as it was, and nothing is written to the target."""

    class Stop(Exception):
        pass

    def stop(_: int) -> None:
        raise Stop

    with pytest.raises(Stop):
        dw.diff(OLD, changed(), io.BytesIO(), progress=stop)
    target = {name: array.copy() for name, array in OLD.items()}
    with pytest.raises(Stop):
        dw.apply(delta(), target, progress=stop)
    assert all(np.array_equal(target[name], OLD[name]) for name in OLD)


def test_misuse_of_the_reader() -> None:
    """Forms do not mix."""
    with pytest.raises(ValueError, match="without a source"):
        list(dw.StreamReader())
    with pytest.raises(ValueError, match="without a source"):
        dw.StreamReader(delta()).feed(b"")
    with pytest.raises(IndexError):
        dw.StreamReader(delta()).chunk(99)


def test_both_sides_know_the_same_dtypes() -> None:
    """Names and widths in Rust and in Python."""
    assert dict(dw._native.DTYPES) == dw.tensors.ITEMSIZE
