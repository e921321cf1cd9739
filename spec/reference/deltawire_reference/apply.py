"""Applying a delta to a state: tensors by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from . import digest
from .classes import located
from .primitives import ReferenceFault, corrupt
from .stream import Chunk, decode
from .tensors import Tensor, add_step


@dataclass(frozen=True)
class Value:
    """A tensor's dtype, shape and row-major bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


State = Mapping[str, Value]


def apply(data: bytes, base: State) -> dict[str, Value]:
    """The state after the delta. ``base`` is left alone. [F12] [F13] [F20] [F22] [F23]"""
    delta = decode(data)
    assert delta.index is not None
    grids: dict[str, NDArray[np.uint8]] = {}
    for entry in delta.header.tensors:
        value = base.get(entry.name)
        if value is None or (value.dtype, value.shape) != (entry.dtype, entry.shape):
            raise ReferenceFault("layout", "F23", f"tensor {entry.name!r} is missing or differs")
        grids[entry.name] = (
            np.frombuffer(value.data, np.uint8).reshape(entry.rows, -1).copy()
            if value.data
            else np.zeros((entry.rows, 0), np.uint8)
        )
    for chunk in delta.chunks:
        entry = delta.header.tensors[chunk.tensor]
        apply_chunk(chunk, entry, grids[entry.name])
    after = {
        entry.name: Value(entry.dtype, entry.shape, grids[entry.name].tobytes())
        for entry in delta.header.tensors
    }
    for entry, low in zip(delta.header.tensors, delta.index.digests, strict=True):
        if low is not None and low != state_of(after, [entry.name])[0] & 0xFFFFFFFF:
            raise ReferenceFault("wrong-base", "F20", f"{entry.name!r} ends in another state")
    result = delta.index.result_state
    if result is not None and digest.loaded(result)[0] != state_of(after, list(after))[0]:
        raise ReferenceFault("wrong-base", "F20", "the result is another state")
    return {**base, **after}


def apply_chunk(chunk: Chunk, entry: Tensor, grid: NDArray[np.uint8]) -> None:
    """Changes one tile of ``grid``, the tensor's bytes with shape (rows, cols * width)."""
    row0, row1, col0, col1 = entry.box(chunk.tile)
    box = grid[row0:row1, col0 * entry.width : col1 * entry.width]
    key = digest.key(entry.name, entry.dtype, entry.shape)

    def tile_digest(tile: NDArray[np.uint8]) -> int:
        word0 = col0 * entry.width // 8
        return digest.box_sum(key, tile, entry.words_per_row, row0, word0)[0]

    place = f"tile {chunk.tile} of {entry.name!r}"
    now = tile_digest(box)
    if now == chunk.result_digest:
        return
    if chunk.base_digest is not None and now != chunk.base_digest:
        raise ReferenceFault("wrong-base", "F12", f"{place} is another one")
    after = box.copy()
    across = col1 - col0
    for x, value in zip(positions_of(chunk, entry, box), chunk.values, strict=True):
        row, col = divmod(x, across)
        cell = after[row, col * entry.width : (col + 1) * entry.width]
        if chunk.is_relative:
            old = int.from_bytes(cell.tobytes(), "little")
            value = add_step(old, value, entry.width, entry.dtype)
        cell[:] = np.frombuffer(value.to_bytes(entry.width, "little"), np.uint8)
    if chunk.result_digest is not None and tile_digest(after) != chunk.result_digest:
        raise fault(chunk, "F13", f"{place} would end in another state")
    box[:] = after


def fault(chunk: Chunk, rule: str, message: str) -> ReferenceFault:
    """Of a chunk and a tile that do not fit: with a base digest, the tile was right."""
    if chunk.base_digest is None:
        return ReferenceFault("wrong-base", rule, message, chunk.offset)
    return corrupt(rule, message, chunk.offset)


def positions_of(chunk: Chunk, entry: Tensor, box: NDArray[np.uint8]) -> list[int]:
    """The positions in the order of the values; ``box`` is the tile before, in bytes."""
    if chunk.positions is not None:
        return chunk.positions
    assert chunk.partition is not None
    found = located(chunk.partition, patterns_of(box, entry.width), entry.dtype)
    if found is None:
        raise fault(chunk, "F25", "a class has fewer elements than a rank says")
    return found


def patterns_of(box: NDArray[np.uint8], width: int) -> NDArray[np.uint64]:
    """A tile's elements as numbers, shape (elements,)."""
    return np.ascontiguousarray(box).reshape(-1).view(f"<u{width}").astype(np.uint64)


def state_of(state: State, names: list[str]) -> digest.Lanes:
    return digest.add(
        (0, 0),
        *(
            digest.tensor_digest(name, state[name].dtype, state[name].shape, state[name].data)
            for name in names
        ),
    )


def state_digest(state: State) -> bytes:
    return digest.stored(state_of(state, list(state)))
