"""Opening checkpoints: every dtype and layout, in place, and through little memory."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from checkpoint_files import (
    anonymous_bytes,
    file_bytes,
    header_of,
    random_tensors,
    safetensors_bytes,
    write_sharded,
)
from deltawire.checkpoint import Checkpoint
from deltawire.errors import CorruptCheckpoint, StoreError, TargetError


def test_every_dtype_and_shape_of_one_file(tmp_path: Path) -> None:
    tensors = random_tensors()
    path = tmp_path / "policy.safetensors"
    path.write_bytes(safetensors_bytes(tensors, {"format": "pt", "step": "7"}))
    with Checkpoint.open(path) as checkpoint:
        assert list(checkpoint) == list(tensors)
        assert len(checkpoint) == len(tensors)
        assert checkpoint.files == [path]
        assert checkpoint.path == path
        assert checkpoint.metadata == {"format": "pt", "step": "7"}
        assert checkpoint.nbytes == sum(len(data) for _, _, data in tensors.values())
        assert not checkpoint.writable
        for name, (dtype, shape, data) in tensors.items():
            view = checkpoint[name]
            assert (view.dtype, list(view.shape)) == (dtype, shape)
            assert view.data.tobytes() == data
            assert not view.writable or not data
        with pytest.raises(KeyError):
            checkpoint["absent"]


def test_the_order_is_that_of_the_bytes_and_not_of_the_header(tmp_path: Path) -> None:
    header = {
        "b": {"dtype": "U8", "shape": [2], "data_offsets": [3, 5]},
        "a": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
    }
    path = tmp_path / "x.safetensors"
    path.write_bytes(file_bytes(header, b"aaabb"))
    with Checkpoint.open(path) as checkpoint:
        assert {name: view.data.tobytes() for name, view in checkpoint.items()} == {
            "a": b"aaa",
            "b": b"bb",
        }
        assert list(checkpoint) == ["a", "b"]


def test_a_file_without_tensors(tmp_path: Path) -> None:
    path = tmp_path / "none.safetensors"
    path.write_bytes(file_bytes({}, b""))
    with Checkpoint.open(path) as checkpoint:
        assert (len(checkpoint), checkpoint.nbytes) == (0, 0)


def test_a_directory_with_one_file_and_no_index(tmp_path: Path) -> None:
    tensors = random_tensors()
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    # Loaders ignore it, and so must we: it may be from another version.
    (tmp_path / "consolidated.safetensors").write_bytes(b"old")
    with Checkpoint.open(tmp_path) as checkpoint:
        assert checkpoint.files == [tmp_path / "model.safetensors"]
        assert set(checkpoint) == set(tensors)


def test_a_sharded_directory_with_an_index(tmp_path: Path) -> None:
    tensors = random_tensors()
    directory = tmp_path / "policy"
    write_sharded(directory, tensors, 3)
    (directory / "consolidated.safetensors").write_bytes(b"not named by the index")
    with Checkpoint.open(directory) as checkpoint:
        assert [file.name for file in checkpoint.files] == [
            f"model-{number:05d}-of-00003.safetensors" for number in (1, 2, 3)
        ]
        assert {name: view.data.tobytes() for name, view in checkpoint.items()} == {
            name: data for name, (_, _, data) in tensors.items()
        }
        names = list(tensors)
        assert list(checkpoint) == names[0::3] + names[1::3] + names[2::3]


def test_numbered_shards_without_an_index(tmp_path: Path) -> None:
    directory = tmp_path / "policy"
    write_sharded(directory, random_tensors(), 3)
    (directory / "model.safetensors.index.json").unlink()
    with Checkpoint.open(directory) as checkpoint:
        assert set(checkpoint) == set(random_tensors())
    (directory / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CorruptCheckpoint, match="2 of the 3 shards") as caught:
        Checkpoint.open(directory)
    assert caught.value.path == str(directory)


def test_a_hub_snapshot_of_symbolic_links_opens_but_is_not_written(tmp_path: Path) -> None:
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    (blobs / "abc").write_bytes(safetensors_bytes(random_tensors()))
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    (snapshot / "model.safetensors").symlink_to("../blobs/abc")
    with Checkpoint.open(snapshot) as checkpoint:
        assert len(checkpoint) == len(random_tensors())
    with pytest.raises(TargetError, match=r"symbolic link to \.\./blobs/abc"):
        Checkpoint.open(snapshot, writable=True)


def test_writable_changes_the_file_and_nothing_else(tmp_path: Path) -> None:
    tensors = random_tensors()
    path = tmp_path / "policy.safetensors"
    before = safetensors_bytes(tensors)
    path.write_bytes(before)
    with Checkpoint.open(path, writable=True) as checkpoint:
        view = checkpoint["layer.bf16"]
        assert view.writable
        view.data[1, 3] ^= 0xFF
        checkpoint.flush()
        after = path.read_bytes()
    changed = [i for i, (x, y) in enumerate(zip(before, after, strict=True)) if x != y]
    width = view.data.shape[1]
    start = before.index(tensors["layer.bf16"][2])
    assert changed == [start + width + 3]


def test_a_read_only_file_is_refused_as_a_target_also_for_root(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    path.write_bytes(safetensors_bytes(random_tensors()))
    path.chmod(0o444)
    with pytest.raises(TargetError, match="chmod u\\+w") as caught:
        Checkpoint.open(path, writable=True)
    assert caught.value.path == str(path)
    with Checkpoint.open(path) as checkpoint:
        assert not checkpoint.writable


def test_views_outlive_the_checkpoint(tmp_path: Path) -> None:
    tensors = random_tensors()
    path = tmp_path / "policy.safetensors"
    path.write_bytes(safetensors_bytes(tensors))
    checkpoint = Checkpoint.open(path)
    view = checkpoint["layer.f32"]
    checkpoint.close()
    checkpoint.close()
    assert view.data.tobytes() == tensors["layer.f32"][2]
    with pytest.raises(ValueError, match="closed"):
        checkpoint["layer.f32"]


def test_closing_gives_back_every_file_descriptor(tmp_path: Path) -> None:
    directory = tmp_path / "policy"
    write_sharded(directory, random_tensors(), 3)
    before = set(os.listdir("/proc/self/fd"))
    with Checkpoint.open(directory, writable=True) as checkpoint:
        assert len(os.listdir("/proc/self/fd")) > len(before)
        del checkpoint
    (directory / "model-00003-of-00003.safetensors").write_bytes(b"broken")
    with pytest.raises(CorruptCheckpoint):
        Checkpoint.open(directory)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_tensor_of_more_than_2_31_elements(tmp_path: Path) -> None:
    rows, cols = 1 << 16, (1 << 15) + 8
    header = {"w": {"dtype": "BF16", "shape": [rows, cols], "data_offsets": [0, rows * cols * 2]}}
    path = tmp_path / "big.safetensors"
    head = file_bytes(header, b"")
    path.write_bytes(head)
    os.truncate(path, len(head) + rows * cols * 2)  # sparse
    with Checkpoint.open(path, writable=True) as checkpoint:
        assert rows * cols > 1 << 31
        assert checkpoint.nbytes == rows * cols * 2
        checkpoint["w"].data[rows - 1, -1] = 0x5A
        checkpoint.flush()
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        assert file.read() == b"\x5a"
    assert path.stat().st_blocks * 512 < 1 << 24


def test_reading_everything_takes_no_anonymous_memory(tmp_path: Path) -> None:
    size = 256 << 20
    header = {"w": {"dtype": "U8", "shape": [size // 1024, 1024], "data_offsets": [0, size]}}
    path = tmp_path / "big.safetensors"
    head = file_bytes(header, b"")
    path.write_bytes(head)
    os.truncate(path, len(head) + size)
    before = anonymous_bytes()
    with Checkpoint.open(path) as checkpoint:
        assert int(np.add.reduce(checkpoint["w"].data[:, ::512], axis=None)) == 0
        assert anonymous_bytes() - before < size // 8


def test_a_path_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no such file or directory") as caught:
        Checkpoint.open(tmp_path / "absent")
    assert caught.value.path == str(tmp_path / "absent")


def test_an_unaligned_header_of_an_older_writer(tmp_path: Path) -> None:
    tensors = {"w": ("F64", [3], np.arange(3.0).tobytes())}
    text = json.dumps(header_of(tensors)).encode()
    text += b" " * ((3 - len(text)) % 8)
    path = tmp_path / "odd.safetensors"
    path.write_bytes(file_bytes(text, tensors["w"][2]))
    with Checkpoint.open(path) as checkpoint:
        assert checkpoint["w"].data.tobytes() == tensors["w"][2]
