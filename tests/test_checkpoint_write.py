"""Writing and copying checkpoints: complete and durable, or not there at all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from checkpoint_files import (
    anonymous_bytes,
    file_size_limit,
    fingerprint,
    random_tensors,
    safetensors_bytes,
    tiny_disk,
    write_sharded,
)
from deltawire.checkpoint import Checkpoint, durable, write_checkpoint, write_safetensors
from deltawire.errors import LayoutMismatch, StoreError, TargetError
from deltawire.tensors import TensorView


def views(seed: int = 0) -> dict[str, TensorView]:
    return {
        name: TensorView.from_bytes(dtype, tuple(shape), data)
        for name, (dtype, shape, data) in random_tensors(seed).items()
    }


def contents(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    with Checkpoint.open(path) as checkpoint:
        return {
            name: (view.dtype, view.shape, view.data.tobytes()) for name, view in checkpoint.items()
        }


def expected(tensors: dict[str, TensorView]) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {name: (v.dtype, v.shape, v.data.tobytes()) for name, v in tensors.items()}


def test_a_written_file_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    write_safetensors(path, views(), metadata={"step": "7"})
    assert contents(path) == expected(views())
    with Checkpoint.open(path) as checkpoint:
        assert checkpoint.metadata == {"step": "7"}
        for name, (file, entry) in checkpoint._entries.items():
            assert entry.start % checkpoint[name].itemsize == 0, file.path
    assert os.listdir(tmp_path) == ["policy.safetensors"]


def test_writing_replaces_a_file_that_is_mapped(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    write_safetensors(path, views(1))
    with Checkpoint.open(path) as old:
        held = old["layer.f32"]
        write_safetensors(path, views(2))
        assert held.data.tobytes() == views(1)["layer.f32"].data.tobytes()
    assert contents(path) == expected(views(2))


@pytest.mark.parametrize("piece", [1, 7, 64, 1 << 20])
def test_rows_with_gaps_are_written_without_them(
    piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deltawire.checkpoint.write._PIECE_BYTES", piece)
    wide = np.random.default_rng(0).random((9, 20), np.float32)
    column = wide[:, 3]
    tensors = {"part": wide[:, 2:12], "column": column, "every other": wide[::2]}
    write_safetensors(tmp_path / "x.safetensors", tensors)
    with Checkpoint.open(tmp_path / "x.safetensors") as checkpoint:
        for name, array in tensors.items():
            assert checkpoint[name].data.tobytes() == array.tobytes()


def test_writing_streams(tmp_path: Path) -> None:
    # 192 MiB that are one page in memory, contiguous rows with stride 0.
    row = np.arange(1 << 16, dtype=np.uint8)
    big = np.lib.stride_tricks.as_strided(row, (3 << 10, 1 << 16), (0, 1))
    before = anonymous_bytes()
    write_safetensors(tmp_path / "big.safetensors", {"w": TensorView("U8", big.shape, big)})
    assert anonymous_bytes() - before < 48 << 20
    with Checkpoint.open(tmp_path / "big.safetensors") as checkpoint:
        assert np.array_equal(checkpoint["w"].data[-1], row)


def test_names_that_no_file_can_hold(tmp_path: Path) -> None:
    for name in ("__metadata__", "\ud800"):
        with pytest.raises(LayoutMismatch) as caught:
            write_safetensors(tmp_path / "x.safetensors", {name: np.zeros(3)})
        assert caught.value.tensor == name
    assert os.listdir(tmp_path) == []


def test_a_checkpoint_in_one_file(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "policy", views())
    assert os.listdir(tmp_path / "policy") == ["model.safetensors"]
    assert contents(tmp_path / "policy") == expected(views())
    with Checkpoint.open(tmp_path / "policy") as checkpoint:
        assert checkpoint.metadata == {"format": "pt"}


def test_a_checkpoint_in_shards(tmp_path: Path) -> None:
    source = tmp_path / "source"
    write_sharded(source, random_tensors())
    directory = tmp_path / "policy"
    write_checkpoint(directory, views(), extra_files=source, max_shard_bytes=200)
    assert contents(directory) == expected(views())
    names = set(os.listdir(directory))
    assert {"config.json", "tokenizer.json", "model.safetensors.index.json"} <= names
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    sizes = {name: view.nbytes for name, view in views().items()}
    assert index["metadata"]["total_size"] == sum(sizes.values())
    shards: dict[str, int] = {}
    for tensor, file in index["weight_map"].items():
        shards[file] = shards.get(file, 0) + sizes[tensor]
    assert set(shards) == {name for name in names if name.endswith(".safetensors")}
    assert len(shards) > 2
    assert all(size <= 200 or size in sizes.values() for size in shards.values())
    assert os.listdir(tmp_path) != []
    assert sorted(os.listdir(tmp_path)) == ["policy", "source"]


def test_an_empty_directory_is_a_target_and_a_full_one_is_not(tmp_path: Path) -> None:
    directory = tmp_path / "policy"
    directory.mkdir()
    write_checkpoint(directory, views())
    before = fingerprint(tmp_path)
    for path in (directory, directory / "model.safetensors"):
        with pytest.raises(TargetError, match="name a new directory, or remove it first"):
            write_checkpoint(path, views(3))
    with pytest.raises(StoreError, match="is not a directory; make it first"):
        write_checkpoint(tmp_path / "absent" / "policy", views())
    assert fingerprint(tmp_path) == before
    assert os.listdir(tmp_path) == ["policy"]


def test_a_copy_has_everything_that_belongs_to_the_checkpoint(tmp_path: Path) -> None:
    source = tmp_path / "source"
    write_sharded(source, random_tensors())
    for name in ("pytorch_model.bin", ".hidden", "deltawire.json", "old.safetensors"):
        (source / name).write_text("not part of it")
    (source / "model-00001-of-00002.safetensors").chmod(0o444)
    copied: list[int] = []
    with Checkpoint.open(source) as checkpoint:
        checkpoint.copy_to(tmp_path / "all", progress=copied.append)
        checkpoint.copy_to(tmp_path / "weights", files_only=True)
        weights = {file.name for file in checkpoint.files} | {"model.safetensors.index.json"}
        assert sum(copied) == sum(file.stat().st_size for file in checkpoint.files)
    assert set(os.listdir(tmp_path / "weights")) == weights
    assert set(os.listdir(tmp_path / "all")) == weights | {"config.json", "tokenizer.json"}
    for name in os.listdir(tmp_path / "all"):
        assert (tmp_path / "all" / name).read_bytes() == (source / name).read_bytes()
    # A copy is there to be changed, whatever the original allows.
    Checkpoint.open(tmp_path / "all", writable=True).close()
    assert sorted(os.listdir(tmp_path)) == ["all", "source", "weights"]


def test_a_copy_of_one_file_takes_nothing_from_around_it(tmp_path: Path) -> None:
    (tmp_path / "unrelated.json").write_text("{}")
    path = tmp_path / "policy.safetensors"
    path.write_bytes(safetensors_bytes(random_tensors()))
    with Checkpoint.open(path) as checkpoint:
        checkpoint.copy_to(tmp_path / "copy")
    assert os.listdir(tmp_path / "copy") == ["policy.safetensors"]


def test_a_copy_without_help_from_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> int:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "copy_file_range", unsupported)
    monkeypatch.setattr(durable, "_BUFFER_BYTES", 100)
    source, target = tmp_path / "a", tmp_path / "b"
    source.write_bytes(os.urandom(12_345))
    copied: list[int] = []
    durable.copy_file(source, target, progress=copied.append)
    assert target.read_bytes() == source.read_bytes()
    assert sum(copied) == 12_345


def writers(tmp_path: Path) -> dict[str, tuple[Path, object]]:
    source = tmp_path / "source.safetensors"
    big = {"w": np.arange(1 << 18, dtype=np.float32)}
    write_safetensors(source, big)
    return {
        "write_safetensors": (source, lambda to: write_safetensors(to, big)),
        "write_checkpoint": (source, lambda to: write_checkpoint(to, big)),
        "copy_to": (source, lambda to: Checkpoint.open(source).copy_to(to)),
    }


@pytest.mark.parametrize("which", ["write_safetensors", "write_checkpoint", "copy_to"])
def test_a_file_size_limit_leaves_nothing_behind(which: str, tmp_path: Path) -> None:
    _, write = writers(tmp_path)[which]
    before = fingerprint(tmp_path)
    assert callable(write)
    with file_size_limit(100_000), pytest.raises(StoreError, match="free some space") as caught:
        write(tmp_path / "target")
    assert caught.value.path == str(tmp_path / "target")
    assert fingerprint(tmp_path) == before
    assert os.listdir(tmp_path) == ["source.safetensors"]


@pytest.mark.parametrize("which", ["write_safetensors", "write_checkpoint", "copy_to"])
def test_a_full_disk_leaves_nothing_behind(which: str, tmp_path: Path) -> None:
    _, write = writers(tmp_path)[which]
    assert callable(write)
    with tiny_disk(tmp_path / "disk", 512 << 10) as disk:
        with pytest.raises(StoreError, match="No space left"):
            write(disk / "target")
        assert os.listdir(disk) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, LayoutMismatch("bad")])
def test_an_interrupted_write_leaves_nothing_behind(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: object) -> object:
        raise error

    monkeypatch.setattr("deltawire.checkpoint.write._pieces", interrupted)
    kind = error if isinstance(error, type) else type(error)
    with pytest.raises(kind):
        write_checkpoint(tmp_path / "target", views())
    with pytest.raises(kind):
        write_safetensors(tmp_path / "target.safetensors", views())
    assert os.listdir(tmp_path) == []


def test_a_source_that_shrinks_while_it_is_copied(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    path.write_bytes(safetensors_bytes(random_tensors()))

    def truncate(source: int, _: int) -> bool:
        os.truncate(path, 100)
        return False

    with Checkpoint.open(path) as checkpoint, pytest.MonkeyPatch.context() as patch:
        # Between the measuring and the copying.
        patch.setattr(durable, "_clone", truncate)
        with pytest.raises(StoreError, match="became shorter while it was copied"):
            checkpoint.copy_to(tmp_path / "copy")
    assert os.listdir(tmp_path) == ["policy.safetensors"]
