"""Comparing what is served of a parameter with what was, tile by tile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .. import _native
from ..tensors import ITEMSIZE
from .journal import Bits, Found, nothing
from .ondevice import on_device
from .served import Box, Part, integers_of, torch_from

if TYPE_CHECKING:
    import torch

#: Served bytes that are compared at once.
_PIECE_BYTES = 4 << 20


def _boxes(part: Part) -> Iterator[Box]:
    """The part in boxes of some rows each."""
    row, rows, col, cols = part.place
    step = max(1, _PIECE_BYTES // max(1, cols * ITEMSIZE[part.dtype]))
    for first in range(0, rows, step):
        yield row + first, min(step, rows - first), col, cols


class Snapshot:
    """The served elements of a part at one moment.

    Attributes:
        data: uint8 ``[rows, bytes of a row]``, on the host.
        tensor: or a tensor of the served dtype ``[rows, cols]``, on the parameter's device.
    """

    tensor: torch.Tensor | None = None

    def __init__(self, part: Part) -> None:
        row, rows, _, cols = part.place
        source = part.source()
        if on_device(source):
            served = part.origin.served()[part.name]
            self.tensor = source.to(served, copy=True).contiguous()
            part.origin.release()
            return
        self.data: npt.NDArray[np.uint8] = np.empty((rows, cols * ITEMSIZE[part.dtype]), np.uint8)
        for box in _boxes(part):
            data = part.read(source, box)[0]
            self.data[box[0] - row : box[0] - row + box[1]] = data
        part.origin.release()

    def take(self, positions: npt.NDArray[np.int64], new: Bits) -> None:
        """Change elements to what they are now."""
        if self.tensor is None:
            self.data.reshape(-1).view(new.dtype)[positions] = new
            return
        import torch

        flat = _integers(self.tensor).view(-1)
        values = torch_from(new).to(flat.device)
        flat[torch.from_numpy(positions).to(flat.device)] = values


def _integers(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(integers_of(tensor.element_size()))


def _device_differences(part: Part, before: torch.Tensor) -> tuple[Found, Bits]:
    """As :func:`differences`, where the elements lie, some rows at a time."""
    import torch

    from .device import differing

    unsigned = np.dtype(f"u{ITEMSIZE[part.dtype]}")
    source, (row, _, _, cols) = part.source(), part.place
    found: list[torch.Tensor] = []
    values: list[tuple[torch.Tensor, torch.Tensor]] = []
    for box in _boxes(part):
        first = box[0] - row
        old = before[first : first + box[1]]
        new = source[first : first + box[1]].to(before.dtype)
        at = differing(old, new)
        found.append(at + first * cols)
        values.append((_integers(old).reshape(-1)[at], _integers(new).reshape(-1)[at]))
    part.origin.release()
    if not found:
        empty = nothing(unsigned.itemsize)
        return empty, empty.old
    old, new = (
        torch.cat(list(one)).cpu().numpy().view(unsigned) for one in zip(*values, strict=True)
    )
    return Found.certain(torch.cat(found).cpu().numpy(), old), new


def differences(part: Part, before: Snapshot) -> tuple[Found, Bits]:
    """Elements that are other bits than in a snapshot, with their old ones; and the new ones."""
    if before.tensor is not None:
        return _device_differences(part, before.tensor)
    width = ITEMSIZE[part.dtype]
    bits = np.dtype(f"u{width}")
    source, (row, _, _, cols) = part.source(), part.place
    positions: list[Any] = []
    old: list[Any] = []
    new: list[Any] = []
    for box in _boxes(part):
        data = part.read(source, box)[0]
        first = box[0] - row
        a, b = before.data[first : first + box[1]], np.ascontiguousarray(data)
        at = np.frombuffer(_native.differing(a, b, width), np.int64)
        if len(at):
            positions.append(at + first * cols)
            old.append(a.reshape(-1).view(bits)[at])
            new.append(b.reshape(-1).view(bits)[at])
    part.origin.release()
    if not positions:
        empty = nothing(width)
        return empty, empty.old
    return Found.certain(np.concatenate(positions), np.concatenate(old)), np.concatenate(new)
