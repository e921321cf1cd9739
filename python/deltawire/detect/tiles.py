"""Partitions of tiles that lie on a device: classes, ranks and steps of their changes.

Only what a ``Partition`` holds crosses the bus, and before it, if ``choose`` is asked, a histogram.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ..errors import LayoutMismatch
from ..partition import Partition
from ..tensors import _TORCH_DTYPES, ITEMSIZE
from .matrices import ELEMENTS, Matrix, alike, as_matrix, launch, layout

if TYPE_CHECKING:
    import torch

#: Changes that are looked up at a time.
_GROUP = 128

#: As in ``rust/format/src/classify.rs``: most classes, and fewest changes that are worth them.
MAX_CLASSES = 16
_FEW = 24

#: Bits below the exponent field, and its mask, as in ``rust/format/src/dtype.rs``.
EXPONENTS = {
    "BF16": (7, 0xFF),
    "F16": (10, 0x1F),
    "F32": (23, 0xFF),
    "F64": (52, 0x7FF),
    "F8_E4M3": (3, 0xF),
    "F8_E4M3FNUZ": (3, 0xF),
    "F8_E5M2": (2, 0x1F),
    "F8_E5M2FNUZ": (2, 0x1F),
}


def _dtype(base: torch.Tensor, dtype: str | None) -> str:
    name = dtype or _TORCH_DTYPES.get(str(base.dtype))
    if name is None or ITEMSIZE.get(name) != base.element_size():
        raise LayoutMismatch(f"elements of {base.dtype} are not {name or 'of a known dtype'}")
    return name


def _positions(positions: torch.Tensor, base: Matrix) -> torch.Tensor:
    import torch

    if positions.dim() != 1 or positions.device != base.bits.device:
        raise LayoutMismatch(
            f"positions are one-dimensional and where the base is, not of shape "
            f"{list(positions.shape)} on {positions.device}"
        )
    return positions.to(torch.int64).contiguous()


def exponents(
    base: torch.Tensor, positions: torch.Tensor, dtype: str | None = None
) -> torch.Tensor:
    """Histogram of the exponent fields that changed elements have in the base.

    Args:
        base: elements before, of one tile or a whole tensor.
        positions: int64 ``[changes]``, element numbers in it, row-major.
        dtype: safetensors name where the tensor's own dtype does not tell it (FP8 as uint8).

    Returns:
        int64, one number for each value of the exponent field, on the device. The call does not
        wait; histograms of several tiles may be added.

    Raises:
        LayoutMismatch: a dtype without exponents, or a base or positions that cannot be used.
    """
    import torch

    from . import kernels

    name = _dtype(base, dtype)
    if name not in EXPONENTS:
        raise LayoutMismatch(f"{name} has no exponents; its tiles have one class")
    shift, mask = EXPONENTS[name]
    old = as_matrix(base, "the base")
    places = _positions(positions, old)
    histogram = torch.zeros(mask + 1, dtype=torch.int64, device=base.device)
    if len(places) and old.elements:
        launch(
            kernels.exponents,
            -(-len(places) // ELEMENTS),
            old.bits,
            places,
            histogram,
            len(places),
            old.elements,
            old.cols,
            old.stride,
            SHIFT=shift,
            MASK=mask,
            LAYOUT=layout(old),
            BLOCK=ELEMENTS,
        )
    return histogram


def choose(histogram: torch.Tensor) -> tuple[int, int]:
    """Top exponent and number of classes that suit changes with these exponents; waits for them.

    The rule of ``rust/format/src/classify.rs``: class 0 begins at the highest exponent that more
    than 8 changes and one in 512 have or exceed; the last class at the lowest one, counted likewise
    from below; there are 16 at most. Fewer than 24 changes are not worth classes.
    """
    counts = [int(n) for n in histogram.tolist()]
    total = sum(counts)
    if total < _FEW:
        return 0, 1
    few = total // 512 + 8

    def reach(order: range) -> int:
        passed = 0
        for exponent in order:
            passed += counts[exponent]
            if passed > few:
                return exponent
        return 0

    top = reach(range(len(counts) - 1, -1, -1))
    low = min(reach(range(len(counts))), top)
    classes = min(top - low + 1, MAX_CLASSES)
    return (top, classes) if classes > 1 else (0, 1)


class PendingPartition:
    """A partition on its way to the host."""

    def __init__(
        self, tile: int, top: int, result: int | torch.Tensor, arrays: list[torch.Tensor]
    ) -> None:
        import torch

        self._tile, self._top, self._result = tile, top, result
        sent = [*arrays, result] if isinstance(result, torch.Tensor) else arrays
        device = arrays[0].device
        self._event: Any = None
        if device.type == "cuda":
            # From pageable memory a copy would wait for the device.
            pinned = [torch.empty(x.shape, dtype=x.dtype, pin_memory=True) for x in sent]
            for host, array in zip(pinned, sent, strict=True):
                host.copy_(array, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(device))
            sent = pinned
        self._host = sent

    def wait(self) -> Partition:
        """The partition, once it has come."""
        if self._event is not None:
            self._event.synchronize()
        counts, ranks, steps, *lanes = (x.numpy() for x in self._host)
        result = int(lanes[0].reshape(-1)[0]) if lanes else cast(int, self._result)
        return Partition(
            tile=self._tile,
            top=self._top,
            rows=None,
            counts=counts.view(np.uint32).reshape(1, -1),
            ranks=ranks.view(np.uint32),
            steps=steps,
            result=result,
        )


def start_partition(
    base: torch.Tensor,
    positions: torch.Tensor,
    new: torch.Tensor,
    tile: int,
    top: int,
    classes: int,
    result: int | torch.Tensor,
    dtype: str | None = None,
) -> PendingPartition:
    """Start making the partition of one tile; with all its rows in one group. Waits for nothing.

    Args:
        base: the tile's elements before, a matrix of at most 2^31 - 1 elements.
        positions: integers ``[changes]``, ascending element numbers in the tile, row-major, as
            ``differing`` gives.
        new: elements after: of the base's shape, or ``[changes]`` in the order of the positions.
        tile: number of the tile in its tensor.
        top, classes: as ``choose`` gives; with one class ``top`` is of no account.
        result: lane 0 of the tile's digest after the change; or what ``digest`` gives.
        dtype: safetensors name where the base's own dtype does not tell it (FP8 as uint8).

    Raises:
        LayoutMismatch: an unknown dtype, a base, positions or new elements that do not fit
            together, or classes that the dtype or the format does not have.

    Nothing outside the tile is read, whatever the positions are. Wrong ones give a partition that
    ``add_partitions`` refuses, as it does one without changes, or that cannot be applied since it
    does not lead to ``result``.
    """
    import torch

    from . import kernels

    name = _dtype(base, dtype)
    dense = new.shape == base.shape
    if dense:
        old, after = alike({"base": base, "new": new})
    else:
        old, after = as_matrix(base, "the base"), as_matrix(new.contiguous(), "new")
        if new.shape != positions.shape or new.element_size() != base.element_size():
            raise LayoutMismatch(
                f"new elements are {new.dtype} of shape {list(new.shape)}, for "
                f"{len(positions)} changes of {base.dtype} of shape {list(base.shape)}"
            )
    places = _positions(positions, old)
    if old.elements >= 1 << 31 or not 1 <= classes <= MAX_CLASSES or not 0 <= top < 1 << 11:
        raise LayoutMismatch(f"{classes} classes from {top} on, of {old.elements} elements")
    if classes > 1 and name not in EXPONENTS:
        raise LayoutMismatch(f"{name} has no exponents; its tiles have one class")
    shift, mask = EXPONENTS.get(name, (0, 0))
    n, device = len(places), base.device
    number = torch.zeros(n, dtype=torch.int32, device=device)
    steps = torch.zeros_like(number, dtype=old.bits.dtype)
    common: dict[str, Any] = {"SHIFT": shift, "MASK": mask, "BLOCK": ELEMENTS}
    if n and old.elements:
        launch(
            kernels.moves,
            -(-n // ELEMENTS),
            old.bits,
            after.bits,
            places,
            number,
            steps,
            n,
            old.elements,
            old.cols,
            old.stride,
            after.stride,
            top,
            classes - 1,
            BITS=8 * base.element_size(),
            FLOAT=name in EXPONENTS,
            DENSE=dense,
            LAYOUT=layout(old, after) if dense else layout(old),
            **common,
        )
    if classes == 1 or n == 0 or old.elements == 0:
        counts = torch.zeros(classes, dtype=torch.int32, device=device)
        counts[0] = n
        ranks = places.to(torch.int32)
        return PendingPartition(tile, 0 if classes == 1 else top, result, [counts, ranks, steps])
    ranks = _ranks(old, places, top, classes, common)
    number, order = number.sort(stable=True)
    ends = torch.searchsorted(
        number, torch.arange(classes, dtype=torch.int32, device=device), right=True
    )
    counts = ends.diff(prepend=ends.new_zeros(1)).to(torch.int32)
    return PendingPartition(tile, top, result, [counts, ranks[order], steps[order]])


def _ranks(
    base: Matrix, positions: torch.Tensor, top: int, classes: int, common: dict[str, Any]
) -> torch.Tensor:
    """Rank of each change within its class, in the order of the positions: int32."""
    import torch

    from . import kernels

    programs, device = -(-base.elements // ELEMENTS), base.bits.device
    numbers = (base.elements, base.cols, base.stride, top, classes - 1)
    options = {**common, "LAYOUT": layout(base)}
    counts = torch.empty((programs, MAX_CLASSES), dtype=torch.int32, device=device)
    launch(kernels.class_counts, programs, base.bits, counts, *numbers, **options)
    before = counts.cumsum(0, dtype=torch.int32) - counts
    begins = torch.searchsorted(
        positions, torch.arange(programs + 1, dtype=torch.int64, device=device) * ELEMENTS
    )
    ranks = torch.zeros(len(positions), dtype=torch.int32, device=device)
    launch(
        kernels.ranks,
        programs,
        base.bits,
        positions,
        begins,
        before,
        ranks,
        *numbers,
        GROUP=_GROUP,
        **options,
    )
    return ranks


def partition(
    base: torch.Tensor,
    positions: torch.Tensor,
    new: torch.Tensor,
    tile: int,
    top: int,
    classes: int,
    result: int | torch.Tensor,
    dtype: str | None = None,
) -> Partition:
    """The partition of one tile: ``start_partition`` and ``wait``."""
    return start_partition(base, positions, new, tile, top, classes, result, dtype).wait()
