"""What the core does in Rust, on torch tensors where they are: host side of the Triton kernels.

Tensors are read in place, on the current stream of their device. Nothing of a tensor's size is
allocated: there are counters, 12 bytes for 1,024 elements (136 in ``partition``), and what grows
with the changes. Positions are element numbers, row-major, ascending, and the same in every run.
``differing`` and ``boundary`` wait for the device, since their results' sizes depend on the data;
other calls where they say so.

A tensor is a matrix as everywhere (``tensors.matrix_shape``): its rows may lie apart, the elements
of a row may not. Where that, a dtype or a device does not fit, calls raise ``LayoutMismatch``. On
CPU tensors the kernels run in Triton's interpreter only. Tiles by class are in ``tiles.py``.
"""

from __future__ import annotations

import hashlib
import math
import struct
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..digest import PRIME
from ..errors import LayoutMismatch
from .matrices import ELEMENTS, NARROW, alike, as_matrix, launch, layout, select
from .step import AdamWStep
from .tiles import PendingPartition, choose, exponents, partition, start_partition

if TYPE_CHECKING:
    import torch

__all__ = [
    "Boundary",
    "Key",
    "PendingPartition",
    "boundary",
    "choose",
    "differing",
    "digest",
    "digest_bytes",
    "exponents",
    "key",
    "partition",
    "start_partition",
    "summed",
]

#: Bytes of one input that a program compares.
_COMPARED = 8192
#: Words of a program.
_DIGESTED = 2048


def differing(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Positions of the elements whose bits differ.

    Args:
        a, b: of one shape, on one device, elements of 1, 2, 4 or 8 bytes.

    Returns:
        int64 ``[changes]``, ascending element numbers, row-major.

    Raises:
        LayoutMismatch: they differ in shape, width or device, or rows are not contiguous.
    """
    import torch

    from . import kernels

    old, new = alike({"a": a, "b": b})
    if old.elements == 0:
        return torch.empty(0, dtype=torch.int64, device=a.device)
    block = _COMPARED // a.element_size()
    return select(kernels.differing, [old, new], [], block, num_warps=8)


class Boundary(NamedTuple):
    """Elements that may have changed in a step, and what is known of their values before.

    ``old`` is the value (``CERTAIN``; ``other`` is the same), or one of ``old`` and ``other`` is
    (``EITHER``), or nothing is known (``UNKNOWN``; both are the value now).

    Attributes:
        positions: int64 ``[n]``, ascending.
        kinds: uint8 ``[n]``: ``step.CERTAIN``, ``EITHER`` or ``UNKNOWN``.
        old, other: int16 ``[n]``, BF16 patterns.
    """

    positions: torch.Tensor
    kinds: torch.Tensor
    old: torch.Tensor
    other: torch.Tensor


def boundary(w: torch.Tensor, m: torch.Tensor, v: torch.Tensor, step: AdamWStep) -> Boundary:
    """Elements whose BF16 value may have changed in a step that left ``w``, ``m`` and ``v``.

    Served is ``w`` rounded to BF16. An element that is not listed has the same value as before the
    step, if the optimizer computed ``F`` within the step's margin.

    Args:
        w, m, v: float32 weights and moments after the step, of one shape, on one device.
        step: what the optimizer did.

    Raises:
        LayoutMismatch: they are not float32, or differ in shape or device, or rows are not
            contiguous.
    """
    import torch

    from . import boundary_kernels

    inputs = alike({"w": w, "m": m, "v": v}, torch.float32)
    device = w.device
    empty = torch.empty(0, dtype=torch.int16, device=device)
    if w.numel() == 0:
        return Boundary(empty.long(), empty.byte(), empty, empty)
    numbers = [float(np.float32(x)) for x in (step.decay, step.alpha, step.root, step.eps)]
    scalars = [*numbers, step.margin]
    options: dict[str, Any] = {
        "FIRST": step.divide_first,
        "CONTRACTED": step.contracted,
        "EXACT": step.margin == 0,
        # Else products and sums are contracted; see boundary_kernels.
        "enable_fp_fusion": False,
    }
    positions = select(boundary_kernels.unproved, inputs, scalars, ELEMENTS, **options)
    n = len(positions)
    kinds = torch.empty(n, dtype=torch.uint8, device=device)
    old, other = (torch.empty(n, dtype=torch.int16, device=device) for _ in range(2))
    if n:
        launch(
            boundary_kernels.resolve,
            -(-n // ELEMENTS),
            *(matrix.bits for matrix in inputs),
            positions,
            kinds,
            old,
            other,
            n,
            inputs[0].cols,
            *(matrix.stride for matrix in inputs),
            *scalars,
            LAYOUT=layout(*inputs),
            BLOCK=ELEMENTS,
            **options,
        )
    kept = (kinds != boundary_kernels.UNCHANGED.value).nonzero().flatten()
    return Boundary(positions[kept], kinds[kept], old[kept], other[kept])


class Key(NamedTuple):
    """What enters the state digest of one tensor beside its bytes; 64-bit numbers, unsigned.

    Attributes:
        k0, k1: of lane 0 and of lane 1; factors of blocks of words come from them.
        c0, c1: start value, added once a tensor; below 2^61 - 1.
    """

    k0: int
    k1: int
    c0: int
    c1: int

    @property
    def start(self) -> bytes:
        """Start value as a digest of 16 bytes: it and the words' add up to the tensor's."""
        return struct.pack("<2Q", self.c0, self.c1)


def key(name: str, dtype: str, shape: tuple[int, ...]) -> Key:
    """Key of a tensor; its name, safetensors dtype and whole shape (``spec/digest-v1.md``)."""
    text = b"".join(struct.pack("<I", len(x.encode())) + x.encode() for x in (name, dtype))
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    hashed = hashlib.sha256(b"deltawire digest v1\0" + text + dimensions).digest()
    k0, k1, c0, c1 = struct.unpack("<4Q", hashed)
    return Key(k0, k1, c0 % PRIME, c1 % PRIME)


def digest(
    block: torch.Tensor,
    key: Key,
    row: int = 0,
    word: int = 0,
    words_per_row: int | None = None,
    piece_rows: int | None = None,
) -> torch.Tensor:
    """State digest of a block of a tensor, without start value; those of all blocks add up.

    Args:
        block: the block's elements, any dtype, a matrix.
        key: of the whole tensor.
        row, word: row, and 8-byte word within it, of the whole tensor at which the block begins.
        words_per_row: of the whole tensor, ``ceil(cols * width / 8)``; None: the block's own.
        piece_rows: also of each piece of so many rows, the last one shorter.

    Returns:
        int64 ``[2]`` on the device: both lanes, 0 to 2^61 - 2; ``[pieces, 2]`` of pieces. The
        call does not wait for it. Sums of them are taken modulo 2^61 - 1 (``summed``).

    Raises:
        LayoutMismatch: the block reaches beyond a row, or ends within a word before its end.
    """
    import torch
    import triton

    from . import kernels

    matrix = as_matrix(block, "the block")
    width = block.element_size()
    row_bytes = matrix.cols * width
    cols = -(-row_bytes // 8)
    if words_per_row is None:
        words_per_row = word + cols
    end = word + cols
    if row < 0 or word < 0 or end > words_per_row or (row_bytes % 8 and end < words_per_row):
        raise LayoutMismatch(
            f"a block of {row_bytes} bytes a row from word {word} on does not consist of whole "
            f"words of a row of {words_per_row}"
        )
    rows, n, device = matrix.rows, matrix.rows * cols, block.device
    pieces = 1 if piece_rows is None else -(-rows // piece_rows)
    if n == 0:
        shape = (2,) if piece_rows is None else (pieces, 2)
        return torch.zeros(shape, dtype=torch.int64, device=device)
    # The widest integers that every row can be read as.
    apart = matrix.stride * width if rows > 1 else 0
    unit = math.gcd(8, matrix.bits.data_ptr(), apart, row_bytes)
    flat = rows == 1 or (unit == 8 and matrix.dense and cols == words_per_row)
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[unit]
    piece = n if piece_rows is None else piece_rows * cols
    first = row * words_per_row + word
    sharing = kernels.SHARING.value
    # Of elements that follow one another, programs begin at multiples of ``sharing`` words.
    before = sharing - math.gcd(sharing, first, piece) if flat else 0
    programs = -(-(before + piece) // _DIGESTED)
    sums = torch.empty((2, pieces * programs), dtype=torch.int64, device=device)
    launch(
        kernels.digest,
        pieces * programs,
        triton.reinterpret(matrix.bits, integers),
        _factors(device),
        sums,
        n,
        piece,
        programs,
        cols,
        row_bytes // unit,
        apart // unit,
        words_per_row,
        first,
        _signed(key.k0),
        _signed(key.k1),
        UNIT=unit,
        UNITS=min(8 // unit, row_bytes // unit),
        LAYOUT=0 if flat else 1 if cols < NARROW else 2,
        BLOCK=_DIGESTED,
    )
    lanes = sums.view(2, pieces, programs)
    lanes = (lanes[:, :, 0] if programs == 1 else summed(lanes, 2)).T
    return lanes[0] if piece_rows is None else lanes


def summed(lanes: torch.Tensor, dim: int) -> torch.Tensor:
    """Sum modulo 2^61 - 1 along a dimension of less than 2^30; the call does not wait for it.

    Args:
        lanes: int64, numbers from 0 to 2^61 - 2, as results are.
    """
    low, high = (lanes & 0xFFFFFFFF).sum(dim), (lanes >> 32).sum(dim)
    # 2^61 is 1.
    return (((high & ((1 << 29) - 1)) << 32) + (high >> 29) + low) % PRIME


@cache
def _factors(device: torch.device) -> torch.Tensor:
    """T and U of ``spec/digest-v1.md``: int64 ``[2, 256]``, made once a device."""
    import torch

    from . import kernels

    def factor(n: int) -> int:
        x: int = n * kernels.G.value % (1 << 64)
        x = (x ^ (x >> 30)) * kernels.S1.value % (1 << 64)
        x = (x ^ (x >> 27)) * kernels.S2.value % (1 << 64)
        return (x ^ (x >> 31)) >> 12 | 1

    sharing = kernels.SHARING.value
    numbers = [[factor(2 * s + i) for s in range(sharing)] for i in (1, 2)]
    return torch.tensor(numbers, dtype=torch.int64, device=device)


def _signed(number: int) -> int:
    """A 64-bit pattern as kernels take it."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def digest_bytes(lanes: torch.Tensor) -> bytes:
    """What ``digest`` gives as 16 bytes, for ``combine``; waits for it."""
    return struct.pack("<2q", *lanes.tolist())
