"""Which tensors a rank publishes, and how they are cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import _native
from ..errors import LayoutMismatch
from ..tensors import matrix_shape, torch_dtype_name
from ..types import Tiling
from .placement import Placement, placement_of, steps_of
from .served import Box, Origin, Part
from .slices import Slice, band

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist


@dataclass(frozen=True)
class Parts:
    """Served tensors in order.

    Attributes:
        all: name, dtype, shape and tile of every tensor of every rank.
        mine: those of which this rank publishes what it holds.
        watched: what this rank's optimizers step; mostly the same.
        sliced: names of tensors that ranks step slices of, and so do not own by themselves.
    """

    all: dict[str, tuple[str, tuple[int, ...], tuple[int, int]]]
    mine: list[Part]
    watched: list[Part]
    sliced: frozenset[str]


@dataclass(frozen=True)
class Held:
    """What a rank says of one tensor: small, and sent to the others.

    Attributes:
        name, dtype, shape: of the tensor.
        place: the box of its matrix that the rank holds.
        steps: as in ``Placement``.
        stepped: whether an optimizer of this rank steps it.
        sliced: whether that is a slice, which need not be the box.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    place: Box
    steps: tuple[int | None, int | None]
    stepped: bool
    sliced: bool = False

    @property
    def elements(self) -> int:
        """Elements of the box."""
        return self.place[1] * self.place[3]


def unwrapped(model: Any) -> Any:
    """The module in wrappers that rename its parameters: data parallel, compiled."""
    while True:
        if hasattr(model, "_orig_mod"):
            model = model._orig_mod
        elif type(model).__name__ in ("DistributedDataParallel", "DataParallel"):
            model = model.module
        else:
            return model


def tensors_of(model: Any) -> list[tuple[str, torch.Tensor | Slice]]:
    """Parameters and persistent buffers of a module under their names, tied ones once."""
    if isinstance(model, Mapping):
        return list(model.items())
    module = unwrapped(model)
    every = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    state: Iterable[tuple[str, torch.Tensor]] = module.state_dict(keep_vars=True).items()
    buffers = [(name, tensor) for name, tensor in state if name not in every]
    return [*module.named_parameters(), *buffers]


def parts_of(
    model: Any,
    *,
    view: Any,
    tiling: Tiling,
    ranks: dist.ProcessGroup | None,
    stepped: set[int],
) -> Parts:
    """The served tensors of a model under a view.

    With ``ranks``, all of them call this: each tells the others what it holds, once. Of a box that
    several hold one publishes, of those whose optimizers step it, and such that all publish alike.
    ``stepped`` are the ids of the parameters that this rank's optimizers step.
    """
    here: list[tuple[Held, Origin]] = []
    slices: list[tuple[Held, Slice]] = []
    for name, tensor in tensors_of(model):
        if isinstance(tensor, Slice):
            origin = Origin(name, tensor.tensor, cast_of(view))
            held = _of_slice(origin, tensor, tiling, id(tensor.flat) in stepped)
            here.append((held, origin))
            slices.append((held, tensor))
            continue
        origin = Origin(name, tensor, cast_of(view))
        placed = placement_of(tensor, name)
        for served, dtype in origin.served().items():
            place = placed if origin.casts else _of_callback(origin, served, placed)
            held = Held(
                served,
                torch_dtype_name(dtype, name),
                place.shape,
                place.place,
                place.steps,
                id(tensor) in stepped,
            )
            here.append((held, origin))
        origin.release()
    for name, times in Counter(held.name for held, _ in here).items():
        if times > 1:
            raise LayoutMismatch("is served twice", tensor=name)
    mine = [held for held, _ in here]
    everyone = [mine] if ranks is None else _exchanged(mine, ranks)
    number = 0 if ranks is None else _rank(ranks)
    by_name: dict[str, list[tuple[int, Held]]] = {}
    for rank, some in enumerate(everyone):
        for held in some:
            by_name.setdefault(held.name, []).append((rank, held))
    tiles = {name: _tile(holders, tiling) for name, holders in by_name.items()}
    owners = _owners(by_name, len(everyone), complete=ranks is not None)
    parts = [
        Part(
            held.name,
            held.dtype,
            held.shape,
            tiles[held.name],
            held.place,
            origin,
            complete=held.sliced,
        )
        for held, origin in here
        if owners.get((held.name, held.place)) == number
    ]
    table = {
        name: (holders[0][1].dtype, holders[0][1].shape, tiles[name])
        for name, holders in by_name.items()
    }
    sliced = frozenset(held.name for _, some in by_name.items() for _, held in some if held.sliced)
    watched = [part for part in parts if part.name not in sliced]
    watched += [_watched(held, one, cast_of(view)) for held, one in slices if one.count]
    return Parts(table, parts, watched, sliced)


def cast_of(view: Any) -> Any:
    """The view, or what it is where none is given: BF16."""
    import torch

    return torch.bfloat16 if view is None else view


def _of_slice(origin: Origin, one: Slice, tiling: Tiling, stepped: bool) -> Held:
    """What a rank with a slice publishes: the tiles that begin in it."""
    if not origin.casts:
        raise LayoutMismatch(
            "is a slice, and a callback needs whole parameters", tensor=origin.name
        )
    ((name, dtype),) = origin.served().items()
    shape = tuple(one.tensor.shape)
    rows, cols = matrix_shape(shape)
    tile_rows = _shape_of_tile(name, torch_dtype_name(dtype, name), shape, tiling, (None, None))[0]
    place = band(rows, cols, tile_rows, one.start, one.count)
    steps = (None if place[1] == rows else tile_rows, None)
    return Held(name, torch_dtype_name(dtype, name), shape, place, steps, stepped, sliced=True)


def _watched(held: Held, one: Slice, view: Any) -> Part:
    """A slice as what is stepped: one column, in a tensor of its own."""
    origin = Origin(held.name, one.flat, view, span=(one.offset, one.count))
    return Part(
        held.name,
        held.dtype,
        (one.count,),
        (one.count, 1),
        (0, one.count, 0, 1),
        origin,
        first=one.start,
    )


def _rank(ranks: dist.ProcessGroup) -> int:
    import torch.distributed as dist

    return int(dist.get_rank(ranks))


def _exchanged(mine: list[Held], ranks: dist.ProcessGroup) -> list[list[Held]]:
    import torch.distributed as dist

    out: list[Any] = [None] * dist.get_world_size(ranks)
    dist.all_gather_object(out, mine, group=ranks)
    return out


def _owners(
    by_name: dict[str, list[tuple[int, Held]]], ranks: int, *, complete: bool
) -> dict[tuple[str, Box], int]:
    """Which rank publishes each box. The same on all ranks."""
    owners: dict[tuple[str, Box], int] = {}
    load = [0] * ranks
    for name, holders in by_name.items():
        first = holders[0][1]
        for rank, held in holders:
            if (held.dtype, held.shape) != (first.dtype, first.shape):
                raise LayoutMismatch(
                    f"is {held.dtype} of shape {list(held.shape)} on rank {rank}, but "
                    f"{first.dtype} of shape {list(first.shape)} on rank {holders[0][0]}",
                    tensor=name,
                )
        rows, cols = matrix_shape(first.shape)
        boxes: dict[Box, list[tuple[int, Held]]] = {}
        for rank, held in holders:
            # A tensor without elements belongs to one rank too, a shard without any to none.
            if held.elements or 0 in first.shape:
                boxes.setdefault(held.place, []).append((rank, held))
        if 0 in first.shape:
            boxes = dict(list(boxes.items())[:1])
        elif complete and sum(box[1] * box[3] for box in boxes) != rows * cols:
            covered = sum(box[1] * box[3] for box in boxes)
            raise LayoutMismatch(
                f"the ranks' shards have {covered} of {rows * cols} elements; give all ranks that "
                "hold some of the model, and shards that do not overlap",
                tensor=name,
            )
        for box, some in boxes.items():
            stepping = [rank for rank, held in some if held.stepped]
            owner = min(stepping or [rank for rank, _ in some], key=lambda rank: (load[rank], rank))
            owners[name, box] = owner
            load[owner] += box[1] * box[3]
    return owners


def _of_callback(origin: Origin, served: str, placed: Placement) -> Placement:
    if placed.steps != (None, None):
        raise LayoutMismatch(
            "is sharded, and a callback needs whole parameters; serve a dtype, or publish from a "
            "rank that has it whole",
            tensor=origin.name,
        )
    shape = tuple(origin.whole()[served].shape)
    rows, cols = matrix_shape(shape)
    return Placement(shape, (0, rows, 0, cols))


def _tile(holders: list[tuple[int, Held]], tiling: Tiling) -> tuple[int, int]:
    held = holders[0][1]
    steps = held.steps
    if len(holders) > 1:
        steps = steps_of(held.shape, [one.place for _, one in holders])
    return _shape_of_tile(held.name, held.dtype, held.shape, tiling, steps)


def _shape_of_tile(
    name: str,
    dtype: str,
    shape: tuple[int, ...],
    tiling: Tiling,
    steps: tuple[int | None, int | None],
) -> tuple[int, int]:
    tile = _native.tile_shape(
        name,
        dtype,
        list(shape),
        (tiling.max_elements, tiling.ways, tiling.min_elements),
        steps,
    )
    if tile is None:
        raise LayoutMismatch(
            f"columns are split at multiples of {steps[1]}, which cuts 8-byte words; split them at "
            "multiples of eight bytes",
            tensor=name,
        )
    return tile[0], tile[1]
