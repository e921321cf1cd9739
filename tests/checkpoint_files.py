"""Checkpoint files for tests, written byte by byte and not by the code under test."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import resource
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

WIDTHS = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8, "F8_E4M3": 1, "F8_E5M2": 1}
WIDTHS |= {"I8": 1, "I64": 8, "BOOL": 1, "U8": 1}

Spec = tuple[str, list[int], bytes]


def random_tensors(seed: int = 0) -> dict[str, Spec]:
    """One tensor of every dtype, an empty one, a scalar and one of a single element."""
    rng = np.random.default_rng(seed)
    result: dict[str, Spec] = {}
    for number, (dtype, width) in enumerate(WIDTHS.items()):
        shape = [number + 2, 8]
        values = rng.integers(0, 2 if dtype == "BOOL" else 256, (number + 2) * 8 * width)
        result[f"layer.{dtype.lower()}"] = (dtype, shape, values.astype(np.uint8).tobytes())
    result["empty"] = ("F32", [0, 5], b"")
    result["scalar"] = ("F32", [], rng.bytes(4))
    result["one"] = ("BF16", [1], rng.bytes(2))
    return result


def header_of(tensors: Mapping[str, Spec], metadata: dict[str, str] | None = None) -> Any:
    """The JSON header that stands for these tensors, in order."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    end = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [end, end + len(data)],
        }
        end += len(data)
    return header


def file_bytes(header: Any, data: bytes) -> bytes:
    """A file from a JSON value (or ready text) and its data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def safetensors_bytes(tensors: Mapping[str, Spec], metadata: dict[str, str] | None = None) -> bytes:
    """A whole file for these tensors."""
    return file_bytes(header_of(tensors, metadata), b"".join(d for _, _, d in tensors.values()))


def write_sharded(directory: Path, tensors: Mapping[str, Spec], shards: int = 2) -> None:
    """A Hugging Face directory of several shards, an index, a config and a tokenizer."""
    directory.mkdir()
    names = list(tensors)
    weight_map = {}
    for number in range(shards):
        part = {name: tensors[name] for name in names[number::shards]}
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        (directory / file).write_bytes(safetensors_bytes(part, {"format": "pt"}))
        weight_map.update(dict.fromkeys(part, file))
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    (directory / "config.json").write_text('{"model_type": "test"}')
    (directory / "tokenizer.json").write_text("{}")


def fingerprint(path: Path) -> dict[str, str]:
    """Digest of every file below ``path``, to see that nothing has changed."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    return {
        str(file.relative_to(path.parent)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
    }


def anonymous_bytes() -> int:
    """Anonymous memory of this process, which file-backed mappings do not add to."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    pytest.skip("the kernel does not report RssAnon")


@contextlib.contextmanager
def file_size_limit(limit: int) -> Iterator[None]:
    """Let no file grow beyond ``limit`` bytes, as on a disk that runs full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextlib.contextmanager
def tiny_disk(directory: Path, size: int) -> Iterator[Path]:
    """A filesystem of ``size`` bytes; skips the test where it cannot be mounted."""
    directory.mkdir()
    if os.getuid() != 0:
        pytest.skip("only root can mount a small filesystem; the size limit test covers this")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a small filesystem: {mounted.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", str(directory)], check=True)
