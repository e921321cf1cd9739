"""Ranks that step slices of a flat buffer, as ZeRO and distributed optimizers do.

Such a rank knows what changed in its slice, which may begin and end anywhere in a tensor. The
weights themselves are complete on every rank when it publishes. So tiles are shared out by where
they begin, and what was found in a tile that belongs to another rank is sent there: positions and
old values of at most a few tiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .journal import Found, Journal
from .served import Box

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist


@dataclass(frozen=True, eq=False)
class Slice:
    """Elements of a tensor that this rank's optimizer steps within a flat parameter.

    Used in place of a parameter in a detector's mapping. The slices of all ranks cover each tensor
    once; a rank leaves out tensors of which it steps nothing.

    Attributes:
        tensor: what is served of it, or what that is cast from: complete on this rank, and up to
            date, whenever it publishes. Such as the BF16 weights after they were gathered.
        flat: one dimension, the parameter that the optimizer holds. Its elements are the FP32
            masters of ``tensor``.
        offset: where the slice begins in ``flat``.
        start: the flattened tensor's element that lies there.
        count: number of elements.
    """

    tensor: torch.Tensor
    flat: torch.Tensor
    offset: int
    start: int
    count: int

    def __post_init__(self) -> None:
        whole = self.tensor.numel()
        if not (self.start >= 0 and self.count >= 0 and self.start + self.count <= whole):
            raise ValueError(
                f"elements {self.start} to {self.start + self.count} of a tensor of {whole}"
            )
        if self.flat.dim() != 1 or not 0 <= self.offset <= self.flat.numel() - self.count:
            raise ValueError(
                f"{self.count} elements from {self.offset} on of a buffer of shape "
                f"{list(self.flat.shape)}"
            )


def band(rows: int, cols: int, tile_rows: int, start: int, count: int) -> Box:
    """The rows whose tiles begin in ``count`` elements from ``start`` on."""
    size = tile_rows * cols
    if size == 0:
        return 0, 0, 0, cols
    first, last = -(-start // size), -(-(start + count) // size)
    row = min(first * tile_rows, rows)
    return row, min(last * tile_rows, rows) - row, 0, cols


def within(found: Found, first: int, last: int) -> Found:
    """What was found in elements ``first`` to ``last``, counted from ``first``."""
    a, b = np.searchsorted(found.positions, [first, last])
    return Found(found.positions[a:b] - first, found.sure[a:b], found.old[a:b], found.other[a:b])


def outside(found: Found, first: int, last: int) -> Found:
    """What was found elsewhere."""
    a, b = np.searchsorted(found.positions, [first, last])

    def rest(column: Any) -> Any:
        return np.concatenate([column[:a], column[b:]])

    return Found(rest(found.positions), rest(found.sure), rest(found.old), rest(found.other))


@dataclass(frozen=True)
class Sent:
    """What one rank found in tiles of others: by tensor, with why more may be missing."""

    found: dict[str, Found]
    lost: dict[str, str]


def exchanged(
    journals: dict[str, Journal], kept: dict[str, tuple[int, int]], ranks: dist.ProcessGroup
) -> tuple[dict[str, Journal], dict[str, str]]:
    """Send what was found outside of ``kept``, elements of each tensor, and get the others'.

    Returns:
        Journals of what others found in what is kept here; tensors of which some rank lost track.
    """
    import torch.distributed as dist

    sent = Sent({}, {})
    for name, journal in journals.items():
        rest = outside(journal.found, *kept.get(name, (0, 0)))
        if len(rest):
            sent.found[name] = rest
        if journal.lost is not None:
            sent.lost[name] = journal.lost
    everyone: list[Any] = [None] * dist.get_world_size(ranks)
    dist.all_gather_object(everyone, sent, group=ranks)
    mine: dict[str, Journal] = {}
    lost: dict[str, str] = {}
    here = dist.get_rank(ranks)
    for rank, other in enumerate(everyone):
        lost.update({name: why for name, why in other.lost.items() if name in kept})
        if rank == here:
            continue
        for name, found in other.found.items():
            if name not in kept:
                continue
            part = within(found, *kept[name])
            if len(part):
                journal = mine.setdefault(name, Journal(part.old.dtype.itemsize))
                journal.add(part)
    return mine, lost


def together(found: Found, extra: Journal | None) -> Found:
    """What this rank found and what others did."""
    if extra is None:
        return found
    both = Journal(found.old.dtype.itemsize)
    both.add(found)
    both.add(extra.found)
    return both.found
