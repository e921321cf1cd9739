"""New safetensors files and checkpoint directories, streamed to disk."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import LayoutMismatch, StoreError
from ..tensors import TensorView, as_view
from .directory import INDEX_NAME, SINGLE_NAME, extra_files
from .durable import copy_file, new_directory, new_file, sync_directory
from .header import MAX_HEADER_BYTES

#: Bytes in flight while a tensor is written.
_PIECE_BYTES = 8 << 20


def write_safetensors(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Any],
    *,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write one safetensors file; memory use does not depend on its size.

    Tensors keep the mapping's order, except that wider elements come first, so that every
    tensor is aligned to its element width. The file appears complete or not at all; an
    existing one is replaced.

    Args:
        tensors: name -> ``TensorView``, ``torch.Tensor`` (CPU) or numpy array.
        metadata: free strings for the header.

    Raises:
        LayoutMismatch: a tensor that cannot be written; names it.
        StoreError: a full disk or another failure of the filesystem.
    """
    views = {name: as_view(tensors[name], name) for name in tensors}
    with new_file(Path(path)) as file:
        write_stream(file, views, dict(metadata or {}))


def write_checkpoint(
    directory: str | os.PathLike[str],
    tensors: Mapping[str, Any],
    *,
    extra_files: Path | None = None,
    max_shard_bytes: int = 5 << 30,
) -> None:
    """Write an ordinary Hugging Face checkpoint directory.

    One ``model.safetensors``, or numbered shards and an index where the tensors exceed
    ``max_shard_bytes``. The directory appears complete or not at all.

    Args:
        directory: must not exist, or be empty.
        tensors: name -> ``TensorView``, ``torch.Tensor`` (CPU) or numpy array.
        extra_files: a directory whose configuration, tokenizer and code files are copied.
        max_shard_bytes: most tensor bytes in one file; a larger tensor has a file alone.

    Raises:
        TargetError: ``directory`` exists and is not empty.
        LayoutMismatch: a tensor that cannot be written; names it.
        StoreError: a full disk or another failure of the filesystem.
    """
    if max_shard_bytes < 1:
        raise ValueError(f"max_shard_bytes must be at least 1, got {max_shard_bytes}")
    views = {name: as_view(tensors[name], name) for name in tensors}
    shards = split_shards(views, max_shard_bytes)
    # transformers refuses files that do not say which framework wrote them.
    metadata = {"format": "pt", **getattr(tensors, "metadata", {})}
    with new_directory(Path(directory)) as temporary:
        weight_map: dict[str, str] = {}
        for number, shard in enumerate(shards, 1):
            name = SINGLE_NAME
            if len(shards) > 1:
                name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
            with _synced(temporary / name) as file:
                write_stream(file, {tensor: views[tensor] for tensor in shard}, metadata)
            weight_map.update(dict.fromkeys(shard, name))
        if len(shards) > 1:
            total = sum(view.nbytes for view in views.values())
            index = {"metadata": {"total_size": total}, "weight_map": weight_map}
            with _synced(temporary / INDEX_NAME) as file:
                file.write(json.dumps(index, indent=2, ensure_ascii=False).encode() + b"\n")
        for source in _extra_files(extra_files):
            copy_file(source, temporary / source.name)
        sync_directory(temporary)


def _extra_files(directory: Path | None) -> list[Path]:
    if directory is None:
        return []
    try:
        return extra_files(directory)
    except OSError as error:
        raise StoreError(
            f"the directory of the extra files cannot be read: {error.strerror}",
            path=str(directory),
        ) from error


@contextlib.contextmanager
def _synced(path: Path) -> Iterator[BinaryIO]:
    """A new file that is on disk at the end; for directories that are still temporary."""
    with path.open("xb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def split_shards(views: Mapping[str, TensorView], limit: int) -> list[list[str]]:
    """Names in order, cut before a shard would exceed ``limit`` bytes; at least one shard."""
    shards: list[list[str]] = [[]]
    size = 0
    for name, view in views.items():
        if shards[-1] and size + view.nbytes > limit:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += view.nbytes
    return shards


def write_stream(file: BinaryIO, views: Mapping[str, TensorView], metadata: dict[str, str]) -> None:
    # Wider elements first, so that every tensor is aligned to its element width.
    names = sorted(views, key=lambda name: -views[name].itemsize)
    table: dict[str, Any] = {}
    if metadata:
        table["__metadata__"] = metadata
    end = 0
    for name in names:
        view = views[name]
        _require_name(name)
        begin, end = end, end + view.nbytes
        table[name] = {
            "dtype": view.dtype,
            "shape": list(view.shape),
            "data_offsets": [begin, end],
        }
    header = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    header += b" " * (-len(header) % 8)
    if len(header) > MAX_HEADER_BYTES:
        raise LayoutMismatch(
            f"the header would be {len(header)} bytes, the limit is {MAX_HEADER_BYTES}; write "
            "more files with fewer tensors each"
        )
    file.write(len(header).to_bytes(8, "little"))
    file.write(header)
    for name in names:
        for piece in _pieces(views[name]):
            file.write(piece)


def _require_name(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise LayoutMismatch("the name is not valid Unicode", tensor=name) from None
    if name == "__metadata__":
        raise LayoutMismatch("safetensors reserves this name; rename the tensor", tensor=name)


def _pieces(view: TensorView) -> Iterator[memoryview]:
    """The tensor's bytes in order, at most ``_PIECE_BYTES`` of them copied at a time."""
    if view.nbytes == 0:
        return
    data = view.data
    if data.flags.c_contiguous:
        data = data.reshape(1, -1)
    row_bytes = data.shape[1]
    if row_bytes >= _PIECE_BYTES:
        for row in data:
            for begin in range(0, row_bytes, _PIECE_BYTES):
                yield row[begin : begin + _PIECE_BYTES].data
        return
    step = max(1, _PIECE_BYTES // row_bytes)
    for begin in range(0, len(data), step):
        yield np.ascontiguousarray(data[begin : begin + step]).reshape(-1).data
