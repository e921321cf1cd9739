"""Where a rank's shard lies in its tensor.

Reads the layout of a ``DTensor`` (FSDP2, HSDP, tensor parallelism); asks no other rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from ..errors import LayoutMismatch
from ..tensors import matrix_shape
from .served import Box

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Placement:
    """What this rank holds of a tensor.

    Attributes:
        shape: of the whole tensor.
        place: the box of its matrix that is here.
        steps: rows and columns at whose multiples all ranks' boxes end; None where that
            dimension is not split.
    """

    shape: tuple[int, ...]
    place: Box
    steps: tuple[int | None, int | None] = (None, None)


def placement_of(parameter: torch.Tensor, name: str) -> Placement:
    """The placement of a parameter, which may be a ``DTensor``.

    Raises:
        LayoutMismatch: its shard is no box of the tensor's matrix, or is a partial sum.
    """
    shape = tuple(parameter.shape)
    mesh = getattr(parameter, "device_mesh", None)
    if mesh is None:
        rows, cols = matrix_shape(shape)
        return Placement(shape, (0, rows, 0, cols))
    placements = parameter.placements
    if any(p.is_partial() for p in placements):
        raise LayoutMismatch("is a partial sum over ranks, which has no served value", tensor=name)
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise LayoutMismatch("this rank is not in the parameter's device mesh", tensor=name)
    sizes = tuple(mesh.shape)
    boxes = {
        at: _box(shape, sizes, at, placements, name) for at in product(*(range(n) for n in sizes))
    }
    place = boxes[tuple(coordinate)]
    return Placement(shape, place, steps_of(shape, boxes.values()))


def steps_of(shape: tuple[int, ...], boxes: Iterable[Box]) -> tuple[int | None, int | None]:
    """The largest numbers of rows and columns at whose multiples every box begins and ends."""
    rows, cols = matrix_shape(shape)
    held = [box for box in boxes if box[1] and box[3]]

    def step(ends: list[int], all_: int) -> int | None:
        inner = [end for end in ends if 0 < end < all_]
        return math.gcd(*inner) if inner else None

    return (
        step([end for row, n, _, _ in held for end in (row, row + n)], rows),
        step([end for _, _, col, n in held for end in (col, col + n)], cols),
    )


def _box(
    shape: tuple[int, ...],
    sizes: tuple[int, ...],
    coordinate: tuple[int, ...],
    placements: Any,
    name: str,
) -> Box:
    """The box of a tensor's matrix at a place of the mesh."""
    found = _local(shape, sizes, coordinate, placements)
    local, offset = found if found is not None else (list(shape), [])
    if 0 in local:
        return 0, 0, 0, matrix_shape(shape)[1]
    leading = len(shape) if len(shape) < 2 else len(shape) - 1
    split = next((i for i in range(leading) if local[i] != 1), leading)
    if found is None or any(local[i] != shape[i] for i in range(split + 1, leading)):
        raise LayoutMismatch(
            f"the shards of a tensor of shape {list(shape)} under {list(placements)} are not one "
            "box of its matrix each; shard its first or its last dimension",
            tensor=name,
        )
    row = 0
    for first, all_ in zip(offset[:leading], shape[:leading], strict=True):
        row = row * all_ + first
    rows = math.prod(local[:leading])
    return (row, rows, offset[-1], local[-1]) if len(shape) >= 2 else (row, rows, 0, 1)


#: Indices along one dimension: ranges, one after another.
Ranges = list[tuple[int, int]]


def _local(
    shape: tuple[int, ...],
    sizes: tuple[int, ...],
    coordinate: tuple[int, ...],
    placements: Any,
) -> tuple[list[int], list[int]] | None:
    """Shape and offset of the shard at a place of the mesh; None where it has gaps.

    Mesh dimensions split one after another, each what those before it left.
    """
    held: list[Ranges] = [[(0, n)] for n in shape]
    for placement, ways, at in zip(placements, sizes, coordinate, strict=True):
        dim = getattr(placement, "dim", None)
        if dim is None:
            continue
        # FSDP over tensor parallelism: the dimension was split by ``split_factor`` before.
        factor = getattr(placement, "split_factor", 1)
        length = _length(held[dim])
        outer = -(-length // factor)
        kept: Ranges = []
        for first in range(0, length, max(outer, 1)):
            part = _cut(held[dim], first, first + outer)
            inner = -(-_length(part) // ways)
            kept += _cut(part, at * inner, (at + 1) * inner)
        held[dim] = _joined(kept)
    if any(len(ranges) > 1 for ranges in held):
        return None
    local = [_length(ranges) for ranges in held]
    return local, [ranges[0][0] if ranges else 0 for ranges in held]


def _length(ranges: Ranges) -> int:
    return sum(stop - start for start, stop in ranges)


def _cut(ranges: Ranges, first: int, last: int) -> Ranges:
    """The ``first`` to ``last`` of the indices."""
    out, seen = [], 0
    for start, stop in ranges:
        a, b = max(first - seen, 0), min(last - seen, stop - start)
        if a < b:
            out.append((start + a, start + b))
        seen += stop - start
    return out


def _joined(ranges: Ranges) -> Ranges:
    out: Ranges = []
    for start, stop in ranges:
        if out and out[-1][1] == start:
            out[-1] = (out[-1][0], stop)
        else:
            out.append((start, stop))
    return out
