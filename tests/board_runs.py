"""Runs on a board: a small model whose every version can be computed from its number."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import deltawire as dw

Arrays = dict[str, npt.NDArray[Any]]

_memory_names = (f"memory://test-{number}/run" for number in itertools.count())


def fresh_memory() -> str:
    """The URL of a memory board that no other test uses."""
    return next(_memory_names)


def model(version: int = 0) -> Arrays:
    """A version: several dtypes and ranks; a few elements differ from one to the next."""
    rng = np.random.default_rng(11)
    arrays: Arrays = {
        "embed.weight": rng.standard_normal((70, 48)).astype(np.float32),
        "layer.weight": rng.standard_normal((64, 130)).astype(np.float16),
        "layer.bias": rng.standard_normal(33).astype(np.float64),
        "steps": np.zeros((), np.int64),
        "nothing": np.zeros((0, 4), np.int8),
    }
    for step in range(1, version + 1):
        advance(arrays, step)
    return arrays


def advance(arrays: Arrays, version: int) -> None:
    """Change the arrays of ``version - 1`` into those of ``version``, in place."""
    rng = np.random.default_rng(version)
    for name, array in arrays.items():
        flat = array.reshape(-1)
        if name == "steps":
            flat[0] = version
        elif flat.size:
            places = rng.choice(flat.size, max(1, flat.size // 100), replace=False)
            flat[places] = np.nextafter(flat[places], np.inf, dtype=flat.dtype)


def zeros(like: Mapping[str, npt.NDArray[Any]]) -> Arrays:
    """A target of this layout with useless contents."""
    return {name: np.zeros_like(array) for name, array in like.items()}


def copied(arrays: Mapping[str, npt.NDArray[Any]]) -> Arrays:
    """The same bits in memory of their own."""
    return {name: array.copy() for name, array in arrays.items()}


def same(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Equal names, dtypes, shapes and bits."""
    if set(found) != set(wanted):
        return False
    for name in wanted:
        a, b = dw.tensors.as_view(found[name]), dw.tensors.as_view(wanted[name])
        if (a.dtype, a.shape) != (b.dtype, b.shape) or not np.array_equal(a.data, b.data):
            return False
    return True


def publish(board: dw.Board, last: int, first: int = 0) -> None:
    """Versions ``first`` (an anchor) to ``last`` (deltas)."""
    arrays = model(first)
    with board.publisher(run="test") as publisher:
        publisher.publish_anchor(first, arrays)
        for version in range(first + 1, last + 1):
            base = copied(arrays)
            advance(arrays, version)
            publisher.publish(version, base=base, new=arrays)


def holds(directory: Path, version: int) -> bool:
    """Whether a pulled directory holds this version, and says so."""
    state = json.loads((directory / "deltawire.json").read_text())
    with dw.Checkpoint.open(directory) as checkpoint:
        return (state["version"], state["pending"]) == (version, None) and same(
            checkpoint, model(version)
        )


def contents(directory: Path) -> dict[str, bytes]:
    """Relative path and bytes of every file."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def stored(board: dw.Board) -> list[str]:
    """Paths of all objects and anchor files."""
    return sorted(
        path for directory in ("objects", "anchors") for path, _ in board.store.list_all(directory)
    )


def manifest_path(board: Path, version: int) -> Path:
    """Where a local board keeps a manifest."""
    return board / "manifests" / f"{version:020d}.json"


def delta_path(board: Path, version: int) -> Path:
    """Where a local board keeps the delta of a version."""
    (path,) = (board / "objects" / str(version)).iterdir()
    return path


def flip(path: Path, place: int) -> None:
    """Alter one bit of a file."""
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(bytes(data))


def places(length: int, count: int) -> Iterator[int]:
    """``count`` places spread over ``length`` bytes, the first and the last among them."""
    yield from sorted({round(i * (length - 1) / (count - 1)) for i in range(count)})
