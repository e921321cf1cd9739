"""Recorded policy steps replay bit for bit: as files with every profile, and over a board."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import deltawire as dw
from conftest import Recording
from deltawire.checkpoint import Checkpoint, write_checkpoint


def copied(tensors: Mapping[str, dw.TensorView]) -> dict[str, dw.TensorView]:
    """The same tensors in memory of their own."""
    return {
        name: dw.TensorView.from_bytes(view.dtype, view.shape, view.data.copy())
        for name, view in tensors.items()
    }


def assert_same(got: Mapping[str, dw.TensorView], wanted: Mapping[str, dw.TensorView]) -> None:
    """Equal names, and equal bits of every tensor."""
    assert sorted(got) == sorted(wanted)
    for name, view in wanted.items():
        assert np.array_equal(got[name].data, view.data), name


@pytest.mark.parametrize("profile", ["compact", "fast", "overwrite"])
def test_diff_and_apply(recording: Recording, profile: str) -> None:
    """Each version from the one before, in place, with the digest of the whole state."""
    versions = recording.versions()
    current = next(versions)
    follower = copied(current)
    for number, new in enumerate(versions, start=1):
        sink = io.BytesIO()
        stats = dw.diff(current, new, sink, base_version=number - 1, profile=profile)
        changed = sum(
            int(
                np.count_nonzero(
                    new[name].data.view(np.uint16) != current[name].data.view(np.uint16)
                )
            )
            for name in new
        )
        assert (stats.changed, stats.bytes) == (changed, len(sink.getvalue()))
        assert stats.base_state == dw.state_digest(current)
        assert stats.result_state == dw.state_digest(new)
        applied = dw.apply(sink.getvalue(), follower)
        assert applied.result_state == stats.result_state
        assert_same(follower, new)
        current = new
    assert number == 5


def test_base_relative_files_are_smaller(recording: Recording) -> None:
    """Knowing the old weights is worth a third of the bytes and more."""
    base, new, *_ = recording.versions()
    sizes = {
        profile: dw.diff(base, new, io.BytesIO(), profile=profile).bytes
        for profile in ("compact", "overwrite")
    }
    assert sizes["compact"] < 0.67 * sizes["overwrite"]


@pytest.mark.parametrize("profile", ["compact", "fast", "overwrite"])
def test_publish_and_pull(recording: Recording, tmp_path: Path, profile: str) -> None:
    """A publisher, a follower in memory, one directory pulled at each version, one at the end."""
    board = dw.Board(tmp_path / "board", create=True)
    versions = recording.versions()
    current = next(versions)
    served = copied(current)
    with board.publisher(run="recorded") as publisher:
        publisher.publish_anchor(0, current)
        follower = board.follower(served, version=0)
        board.pull(tmp_path / "each")
        for number, new in enumerate(versions, start=1):
            publisher.publish(number, base=current, new=new, profile=profile)
            follower.advance()
            assert follower.version == number
            assert_same(served, new)
            board.pull(tmp_path / "each")
            with Checkpoint.open(tmp_path / "each") as checkpoint:
                assert_same(checkpoint, new)
            current = new
    assert follower.prove() == board.manifest(5).result_state
    board.pull(tmp_path / "once")
    with Checkpoint.open(tmp_path / "once") as checkpoint:
        assert_same(checkpoint, current)


def test_sharded_directories(recording: Recording, tmp_path: Path) -> None:
    """A checkpoint in several files gives the same delta as the tensors themselves."""
    base, new, *_ = recording.versions()
    for name, tensors in (("base", base), ("new", new)):
        write_checkpoint(tmp_path / name, tensors, max_shard_bytes=4 << 20)
        assert len(list((tmp_path / name).glob("*.safetensors"))) > 1
    dw.diff(tmp_path / "base", tmp_path / "new", tmp_path / "step.dw")
    with Checkpoint.open(tmp_path / "base", writable=True) as checkpoint:
        dw.apply(tmp_path / "step.dw", checkpoint)
        assert_same(checkpoint, new)
