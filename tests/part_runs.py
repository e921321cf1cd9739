"""A small model that several ranks hold between them, in several ways, and publish together."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import deltawire as dw
from board_runs import fresh_memory, stored

Arrays = dict[str, npt.NDArray[Any]]
Held = dict[str, Any]

#: So that small tensors are cut where up to eight ranks are.
TILING = dw.Tiling(min_elements=1)

SHAPES: dict[str, tuple[tuple[int, ...], type]] = {
    "embed.weight": ((96, 32), np.float32),
    "0.q.weight": ((64, 48), np.float16),
    "0.down_proj.weight": ((48, 64), np.float16),
    "0.norm.weight": ((48,), np.float32),
    "1.experts.weight": ((8, 16, 24), np.float16),
    "1.steps": ((), np.int64),
    "nothing": ((0, 4), np.int8),
}

LAYOUTS = {
    "tp2": 2,
    "tp4": 4,
    "pp2": 2,
    "ep4": 4,
    "tp2pp2": 4,
    "one": 1,
    "idle": 3,
}


def model(version: int = 0) -> Arrays:
    """A version; some elements of every tensor differ from one to the next."""
    rng = np.random.default_rng(5)
    arrays: Arrays = {
        name: rng.standard_normal(shape).astype(dtype)
        if np.issubdtype(dtype, np.floating)
        else np.zeros(shape, dtype)
        for name, (shape, dtype) in SHAPES.items()
    }
    for step in range(1, version + 1):
        rng = np.random.default_rng(step)
        for array in arrays.values():
            if np.issubdtype(array.dtype, np.floating):
                chosen = rng.random(array.shape) < 0.05
                array[chosen] = np.nextafter(array[chosen], np.inf, dtype=array.dtype)
            else:
                array += step
    return arrays


def rows(array: npt.NDArray[Any], rank: int, ranks: int) -> dw.Shard:
    """One rank's part of the first dimension."""
    step = array.shape[0] // ranks
    part = array[rank * step : (rank + 1) * step].copy()
    return dw.Shard(part, array.shape, (rank * step,) + (0,) * (array.ndim - 1))


def columns(array: npt.NDArray[Any], rank: int, ranks: int) -> dw.Shard:
    """One rank's part of the last dimension."""
    step = array.shape[-1] // ranks
    part = array[..., rank * step : (rank + 1) * step].copy()
    return dw.Shard(part, array.shape, (0,) * (array.ndim - 1) + (rank * step,))


def tensor_parallel(arrays: Arrays, rank: int, ranks: int) -> Held:
    """Rows and columns; what is not split, or cannot be, is rank 0's."""
    held: Held = {}
    for name, array in arrays.items():
        if name.endswith("down_proj.weight"):
            held[name] = columns(array, rank, ranks)
        elif array.ndim > 1 and array.size:
            held[name] = rows(array, rank, ranks)
        elif rank == 0:
            held[name] = array.copy()
    return held


def held(layout: str, arrays: Arrays, rank: int) -> Held:
    """What a rank of a layout publishes."""
    ranks = LAYOUTS[layout]
    first = {name: arrays[name] for name in arrays if not name.startswith("1.")}
    second = {name: arrays[name] for name in arrays if name.startswith("1.")}
    if layout.startswith("tp2pp2"):
        return tensor_parallel(first if rank < 2 else second, rank % 2, 2)
    if layout.startswith("tp"):
        return tensor_parallel(arrays, rank, ranks)
    if layout == "pp2":
        return dict(first if rank == 0 else second)
    if layout == "ep4":
        own: Held = {name: array for name, array in arrays.items() if "experts" not in name}
        experts = {"1.experts.weight": rows(arrays["1.experts.weight"], rank, ranks)}
        return {**own, **experts} if rank == 3 else experts
    # Ranks but the first have nothing to publish, one not even a tensor, one a shard without rows.
    empty = {"0.norm.weight": dw.Shard(np.zeros(0, np.float32), (48,), (0,))}
    return dict(arrays) if rank == 0 else [{}, empty][rank - 1]


def blank(part: Mapping[str, Any]) -> Held:
    """The same shards and tensors with zeros, to be followed with."""
    return {
        name: dw.Shard(np.zeros_like(tensor.tensor), tensor.shape, tensor.offset)
        if isinstance(tensor, dw.Shard)
        else np.zeros_like(tensor)
        for name, tensor in part.items()
    }


def same_part(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Equal bits."""
    views = [
        (dw.tensors.as_view(found[name]).data, dw.tensors.as_view(wanted[name]).data)
        for name in wanted
    ]
    return set(found) == set(wanted) and all(np.array_equal(a, b) for a, b in views)


def upload(board: dw.Board, ticket: dw.PublishTicket, layout: str, rank: int) -> dw.UploadedPart:
    """One rank's part, with its ticket and answer sent as JSON."""
    ticket = dw.PublishTicket.from_dict(json.loads(json.dumps(ticket.as_dict())))
    part = board.upload_part(
        ticket,
        rank,
        base=held(layout, model(ticket.base_version), rank),
        new=held(layout, model(ticket.version), rank),
        threads=1,
    )
    return dw.UploadedPart.from_dict(json.loads(json.dumps(part.as_dict())))


def publish_together(
    board: dw.Board, publisher: dw.Publisher, layout: str, **settings: Any
) -> dw.PublishStats:
    """The next version, by all ranks of a layout."""
    ranks = LAYOUTS[layout]
    with publisher.begin(parts=ranks, tiling=TILING, **settings) as pending:
        parts = [upload(board, pending.ticket, layout, rank) for rank in range(ranks)]
        # In no order.
        return pending.commit(parts[::-1])


@pytest.fixture
def memory() -> dw.Board:
    """A board in memory with an anchor."""
    board = dw.Board(fresh_memory(), create=True)
    start(board)
    return board


def start(board: dw.Board, **settings: Any) -> None:
    """Publish the anchor of version 0."""
    with board.publisher(run="test", **settings) as publisher:
        publisher.publish_anchor(0, model(0))


def objects(board: dw.Board, version: int) -> list[str]:
    """Paths of the objects of a version."""
    return [path for path in stored(board) if path.startswith(f"objects/{version}/")]
