"""Tensors as the kernels see them, and how kernels are launched."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import LayoutMismatch
from ..tensors import matrix_shape

if TYPE_CHECKING:
    import torch

#: Elements of a program, where nothing else is said.
ELEMENTS = 1024

#: Rows of fewer elements are divided in 32 bits.
NARROW = 1 << 30


@dataclass(frozen=True)
class Matrix:
    """A tensor as the kernels see it: integers of its width.

    Attributes:
        bits: signed integers ``[rows, cols]``, where the tensor lies.
        stride: elements from one row to the next.
    """

    bits: torch.Tensor
    rows: int
    cols: int
    stride: int

    @property
    def elements(self) -> int:
        return self.rows * self.cols

    @property
    def dense(self) -> bool:
        return self.rows <= 1 or self.stride == self.cols


def as_matrix(tensor: torch.Tensor, what: str) -> Matrix:
    """A tensor of any shape as a matrix.

    Raises:
        LayoutMismatch: rows whose elements lie apart, elements of another width than 1, 2, 4 or 8
            bytes, or a tensor on the CPU outside Triton's interpreter.
    """
    import torch

    from . import kernels

    if tensor.device.type == "cpu" and not kernels.INTERPRETED:
        raise LayoutMismatch(f"{what} is on the CPU; kernels run on a GPU, `diff` on the CPU")
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    width = tensor.element_size()
    if (
        tensor.layout != torch.strided
        or width not in integers
        or tensor.is_conj()
        or tensor.is_neg()
    ):
        raise LayoutMismatch(f"{what} is {tensor.dtype}, {tensor.layout}: not plain elements")
    rows, cols = matrix_shape(tuple(tensor.shape))
    bits = tensor.detach().view(integers[width])
    if tensor.numel() == 0:
        return Matrix(bits, rows, cols, cols)
    try:
        bits = bits.view(rows, cols)
        apart = cols > 1 and bits.stride(1) != 1
    except RuntimeError:
        apart = True
    if apart:
        raise LayoutMismatch(
            f"{what} of shape {list(tensor.shape)} with strides {list(tensor.stride())} is not a "
            "matrix with contiguous rows; pass .contiguous()"
        )
    return Matrix(bits, rows, cols, cols if rows == 1 else bits.stride(0))


def alike(tensors: dict[str, torch.Tensor], dtype: torch.dtype | None = None) -> list[Matrix]:
    """Matrices of tensors that have one shape, width and device, and the dtype if one is named.

    Raises:
        LayoutMismatch: they do not.
    """
    (first_name, first), *_ = tensors.items()
    for name, tensor in tensors.items():
        if (tensor.shape, tensor.element_size(), tensor.device) != (
            first.shape,
            first.element_size(),
            first.device,
        ):
            raise LayoutMismatch(
                f"{name} is {tensor.dtype} of shape {list(tensor.shape)} on {tensor.device}, "
                f"{first_name} {first.dtype} of shape {list(first.shape)} on {first.device}"
            )
        if dtype is not None and tensor.dtype != dtype:
            raise LayoutMismatch(f"{name} is {tensor.dtype}, not {dtype}")
    return [as_matrix(tensor, name) for name, tensor in tensors.items()]


def layout(*matrices: Matrix) -> int:
    """How elements are found in all of these."""
    if all(matrix.dense for matrix in matrices):
        return 0
    return 1 if matrices[0].cols < NARROW else 2


def launch(kernel: Any, programs: int, *args: Any, **options: Any) -> None:
    """Runs a kernel on the device of its first argument, a tensor."""
    import torch

    device = args[0].device
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        kernel[(programs,)](*args, **options)


def select(
    kernel: Any,
    inputs: list[Matrix],
    scalars: list[Any],
    block: int,
    **options: Any,
) -> torch.Tensor:
    """Positions that a counting kernel finds: counted program by program, then written."""
    import torch

    n, device = inputs[0].elements, inputs[0].bits.device
    programs = -(-n // block)
    pointers = [matrix.bits for matrix in inputs]
    numbers = [n, inputs[0].cols, *(matrix.stride for matrix in inputs), *scalars]
    options |= {"LAYOUT": layout(*inputs), "BLOCK": block}
    counts = torch.empty(programs, dtype=torch.int32, device=device)
    launch(kernel, programs, *pointers, counts, None, None, *numbers, WRITE=False, **options)
    ends = counts.cumsum(0)
    found = int(ends[-1]) if programs else 0
    out = torch.empty(found, dtype=torch.int64, device=device)
    if found:
        launch(kernel, programs, *pointers, counts, ends, out, *numbers, WRITE=True, **options)
    return out
