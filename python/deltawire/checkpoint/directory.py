"""Which files make up a checkpoint."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from ..errors import CorruptCheckpoint, StoreError
from .durable import store_error
from .header import MAX_HEADER_BYTES, key_offset, load_json_object, require_text

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"

_SHARD = re.compile(r"(?P<stem>.*)-(?P<number>\d{5,})-of-(?P<count>\d{5,})\.safetensors")
# Weights in other formats: copies of what the safetensors files hold, stale after a delta.
_OTHER_WEIGHTS = {".bin", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx", ".pt", ".pth"}
# The state that `deltawire pull` keeps beside the weights it pulled; wrong for any copy.
_PULL_STATE = "deltawire.json"


@dataclass(frozen=True)
class Layout:
    """The weight files of a checkpoint in reading order.

    Attributes:
        files: the safetensors files.
        index: the index file, where there is one.
        index_raw: its bytes.
        weight_map: tensor name -> file name, as the index says; empty without an index.
    """

    files: list[Path]
    index: Path | None
    index_raw: bytes
    weight_map: dict[str, str]


def find_layout(path: Path) -> Layout:
    """Find the weight files behind ``path``, a safetensors file or a directory.

    In a directory the index decides. Without one it is ``model.safetensors``, else a complete
    set of numbered shards or any other ``*.safetensors``. Weight files that the index does not
    name are ignored, as loaders do.

    Raises:
        StoreError: ``path`` does not exist or cannot be read.
        CorruptCheckpoint: no weights, missing shards, or a malformed or ambiguous index.
    """
    try:
        if not path.is_dir():
            path.stat()
            return Layout([path], None, b"", {})
        names = sorted(os.listdir(path))
    except FileNotFoundError:
        raise StoreError(
            "no such file or directory; give a .safetensors file or a checkpoint directory",
            path=str(path),
        ) from None
    except (OSError, ValueError) as error:
        raise store_error(error, path, "cannot be read") from error
    weights = [name for name in names if name.endswith(".safetensors") and name[0] != "."]
    if INDEX_NAME in names:
        return _indexed(path, INDEX_NAME, weights)
    indexes = [name for name in names if name.endswith(".safetensors.index.json")]
    if len(indexes) > 1:
        raise CorruptCheckpoint(
            f"more than one index: {', '.join(indexes)}; keep one of them", path=str(path)
        )
    if indexes:
        return _indexed(path, indexes[0], weights)
    if SINGLE_NAME in weights:
        return Layout([path / SINGLE_NAME], None, b"", {})
    if not weights:
        raise CorruptCheckpoint(
            "the directory holds no .safetensors file; other formats must be converted first",
            path=str(path),
        )
    _require_complete(path, weights)
    return Layout([path / name for name in weights], None, b"", {})


def extra_files(directory: Path) -> list[Path]:
    """Configuration, tokenizer and code files beside the weights, sorted by name.

    Ordinary visible files of the top level, without weights of any format, their indexes, and
    the state of ``deltawire pull``.
    """
    found = []
    with os.scandir(directory) as entries:
        for entry in entries:
            name = entry.name
            if (
                name.startswith(".")
                or name == _PULL_STATE
                or name.endswith((".safetensors", ".index.json"))
                or Path(name).suffix in _OTHER_WEIGHTS
                or not entry.is_file()
            ):
                continue
            found.append(Path(entry.path))
    return sorted(found)


def _indexed(directory: Path, index_name: str, weights: list[str]) -> Layout:
    index = directory / index_name
    raw = _read_bounded(index)
    weight_map = load_json_object(raw, path=str(index)).get("weight_map")
    if not isinstance(weight_map, dict) or not all(
        isinstance(name, str) for name in weight_map.values()
    ):
        raise CorruptCheckpoint("the index has no weight_map of tensors to files", path=str(index))
    files: dict[str, None] = {}
    for tensor, name in weight_map.items():
        require_text(tensor, "the tensor name", str(index), 0)
        if name in files:
            continue
        fault = None
        if not _is_plain_name(name):
            fault = "which is not the plain name of a file beside it"
        elif not _is_file(directory / name):
            fault = "which is missing from the directory; get the complete checkpoint"
        if fault is not None:
            raise CorruptCheckpoint(
                f"the index names the file {name!r}, {fault}",
                path=str(index),
                tensor=tensor,
                offset=key_offset(raw, tensor),
            )
        files[name] = None
    if not files and weights:
        raise CorruptCheckpoint("the index names no file", path=str(index), offset=0)
    if index_name == INDEX_NAME and SINGLE_NAME in weights and SINGLE_NAME not in files:
        # Some loaders prefer the one, some the other.
        raise CorruptCheckpoint(
            f"the directory holds {SINGLE_NAME} and an index that names other files; remove the "
            "one that is out of date",
            path=str(directory),
        )
    return Layout([directory / name for name in files], index, raw, weight_map)


def _read_bounded(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_HEADER_BYTES + 1)
    except OSError as error:
        raise store_error(error, path, "cannot be read") from error
    if len(raw) > MAX_HEADER_BYTES:
        raise CorruptCheckpoint(
            f"the index is longer than {MAX_HEADER_BYTES} bytes", path=str(path)
        )
    return raw


def _is_plain_name(name: str) -> bool:
    return name not in {"", ".", ".."} and "/" not in name and "\0" not in name


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _require_complete(directory: Path, weights: list[str]) -> None:
    """Refuse numbered shards with a gap; without an index nothing else would tell."""
    present = set(weights)
    for name in weights:
        shard = _SHARD.fullmatch(name)
        if shard is None:
            continue
        count = int(shard["count"])
        # Counting what is there first: a name may claim any number of shards.
        prefix, suffix = f"{shard['stem']}-", f"-of-{shard['count']}.safetensors"
        found = sum(1 for other in present if other.startswith(prefix) and other.endswith(suffix))
        if found != count:
            raise CorruptCheckpoint(
                f"{found} of the {count} shards {prefix}*{suffix} are there; get the complete "
                "checkpoint",
                path=str(directory),
            )
