"""Applying a delta to a state: tensors by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from . import digest
from .primitives import ReferenceFault
from .ranks import located
from .stream import Chunk, decode
from .tensors import Tensor, add_step
from .values import GROUPED, STEP


@dataclass(frozen=True)
class Value:
    """A tensor's dtype, shape and row-major bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


State = Mapping[str, Value]


def apply(data: bytes, base: State) -> dict[str, Value]:
    """The state after the delta. ``base`` is left alone. [F12] [F13] [F22] [F23]"""
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
    for entry, wanted in zip(delta.header.tensors, delta.index.digests, strict=True):
        if wanted is not None and wanted != digest.stored(state_of(after, [entry.name])):
            raise ReferenceFault("wrong-base", "digest", f"{entry.name!r} ends in another state")
    if delta.index.result_state is not None and delta.index.result_state != digest.stored(
        state_of(after, list(after))
    ):
        raise ReferenceFault("wrong-base", "digest", "the result is another state")
    return {**base, **after}


def apply_chunk(chunk: Chunk, entry: Tensor, grid: NDArray[np.uint8]) -> None:
    """Changes one tile of ``grid``, the tensor's bytes with shape (rows, cols * width)."""
    row0, row1, col0, col1 = entry.box(chunk.tile)
    box = grid[row0:row1, col0 * entry.width : col1 * entry.width]
    key = digest.key(entry.name, entry.dtype, entry.shape)

    def tile_digest() -> int:
        word0 = col0 * entry.width // 8
        return digest.box_sum(key, box, entry.words_per_row, row0, word0)[0]

    if chunk.base_digest is not None and tile_digest() != chunk.base_digest:
        if chunk.result_digest is not None and tile_digest() == chunk.result_digest:
            return
        raise ReferenceFault("wrong-base", "F12", f"tile {chunk.tile} of {entry.name!r}")
    across = col1 - col0
    for x, value in zip(positions_of(chunk, entry, box), chunk.values, strict=True):
        row, col = divmod(x, across)
        cell = box[row, col * entry.width : (col + 1) * entry.width]
        if chunk.value_codec in (STEP, GROUPED):
            old = int.from_bytes(cell.tobytes(), "little")
            value = add_step(old, value, entry.width, entry.dtype)
        cell[:] = np.frombuffer(value.to_bytes(entry.width, "little"), np.uint8)
    if chunk.result_digest is not None and tile_digest() != chunk.result_digest:
        # With a base digest the tile was right, so the chunk is wrong; without, either may be.
        kind = "wrong-base" if chunk.base_digest is None else "corrupt"
        message = f"tile {chunk.tile} of {entry.name!r} ends in another state"
        raise ReferenceFault(kind, "F13", message, chunk.offset)


def positions_of(chunk: Chunk, entry: Tensor, box: NDArray[np.uint8]) -> list[int]:
    """The positions in the order of the values; ``box`` is the tile before, in bytes."""
    if chunk.positions is not None:
        return chunk.positions
    assert chunk.ranks is not None
    places = located(chunk.ranks, patterns_of(box, entry.width), entry.dtype, chunk.offset)
    flat = [x for group in places for x in group]
    return flat if chunk.value_codec == GROUPED else sorted(flat)


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
