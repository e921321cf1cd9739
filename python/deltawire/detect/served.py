"""What receivers serve of a trainer's parameters, read tile by tile.

A trainer mostly holds FP32 masters, receivers serve BF16. A :class:`Part` is one served tensor, or
the box of it that this rank holds, over the parameter that it comes from; nothing of it is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import LayoutMismatch
from ..tensors import ITEMSIZE, Bytes, as_view, matrix_shape
from .journal import Bits

if TYPE_CHECKING:
    import torch

#: First row and number of rows of a box, first column and number of columns, in elements.
Box = tuple[int, int, int, int]


def integers_of(width: int) -> torch.dtype:
    """The torch integers of so many bytes."""
    import torch

    return {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[width]


def torch_from(bits: Bits) -> torch.Tensor:
    """Unsigned patterns as a tensor of integers as wide, in memory of its own."""
    import torch

    width = bits.dtype.itemsize
    return torch.from_numpy(bits.view(np.uint8 if width == 1 else f"i{width}").copy())


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a tensor, of a ``DTensor`` its shard; without gradients."""
    held = tensor.detach()
    to_local = getattr(held, "to_local", None)
    return held if to_local is None else to_local()


def _matrix(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """A tensor as its matrix, without copying it."""
    if tensor.dim() == 2:
        return tensor
    rows, cols = matrix_shape(tuple(tensor.shape))
    try:
        return tensor.view(rows, cols)
    except RuntimeError as error:
        raise LayoutMismatch(
            f"a parameter of shape {list(tensor.shape)} with strides {list(tensor.stride())} has "
            "no rows that lie apart evenly; make it contiguous",
            tensor=name,
        ) from error


@dataclass(eq=False)
class Origin:
    """A parameter, and what is served of it.

    Attributes:
        name: of the parameter.
        parameter: may be a ``DTensor``; read anew each time, as trainers replace its storage.
        view: the served dtype of floating-point parameters; or a callback that tells what is served
            of a parameter, by name.
        span: the first element of the flattened parameter and their number, if it is not all.
        dtype: of the parameter when it was first seen.
    """

    name: str
    parameter: torch.Tensor
    view: Any
    span: tuple[int, int] | None = None
    dtype: torch.dtype = field(init=False)
    _made: Mapping[str, torch.Tensor] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self.dtype = self.parameter.dtype

    @property
    def casts(self) -> bool:
        """Whether elements are served as they are or cast, so that tiles can be read alone."""
        return not callable(self.view)

    def served(self) -> dict[str, torch.dtype]:
        """Names and dtypes of what is served."""
        if self.casts:
            dtype = self.parameter.dtype
            return {self.name: self.view if dtype.is_floating_point else dtype}
        return {name: tensor.dtype for name, tensor in self.whole().items()}

    def whole(self) -> Mapping[str, torch.Tensor]:
        """What a callback serves of the parameter as it is now; kept until :meth:`release`."""
        if self._made is None:
            self._made = self.view(self.name, local_of(self.parameter))
        return self._made

    def release(self) -> None:
        """Forget what a callback gave: the parameter has changed, or its turn is over."""
        self._made = None

    def matrix(self, served: str) -> torch.Tensor:
        """The local source of what is served under a name, as a matrix."""
        source = local_of(self.parameter) if self.casts else self.whole()[served]
        if self.span is not None:
            first, count = self.span
            source = source.view(-1)[first : first + count]
        return _matrix(source, self.name)


@dataclass(eq=False)
class Part:
    """One served tensor, or the box of it that this rank holds and publishes.

    Attributes:
        name: name in the checkpoint.
        dtype: safetensors name of the served dtype.
        shape: of the whole tensor.
        tile: rows and columns of a tile.
        place: the box of the tensor's matrix that is here.
        origin: where it comes from.
        first: what is found here lies so many elements further in the journal of the tensor.
        complete: whether all of the tensor is here, of which ``place`` is the box to publish.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    tile: tuple[int, int]
    place: Box
    origin: Origin
    first: int = 0
    complete: bool = False

    @property
    def elements(self) -> int:
        """Elements that are here."""
        return self.place[1] * self.place[3]

    @property
    def nbytes(self) -> int:
        """Served bytes of them."""
        return self.elements * ITEMSIZE[self.dtype]

    def source(self) -> torch.Tensor:
        """The matrix that tiles are read from.

        Raises:
            LayoutMismatch: it no longer has the shape that it had.
        """
        matrix = self.origin.matrix(self.name)
        row, rows, _, cols = self.place
        expected = matrix_shape(self.shape) if self.complete else (rows, cols)
        if tuple(matrix.shape) != expected:
            raise LayoutMismatch(
                f"the parameter is now a matrix of {list(matrix.shape)} here, and was one of "
                f"{list(expected)}; make a new detector",
                tensor=self.name,
            )
        if self.origin.parameter.dtype != self.origin.dtype:
            raise LayoutMismatch(
                f"the parameter is now {self.origin.parameter.dtype}, and was "
                f"{self.origin.dtype}; make a new detector",
                tensor=self.name,
            )
        return matrix[row : row + rows] if self.complete else matrix

    def read(self, source: torch.Tensor, box: Box) -> tuple[Bytes, int, int, int, int]:
        """A box of the tensor's matrix in the served dtype, as that box of the whole tensor.

        Without a copy where the source is served as it is, from the CPU's memory.
        """
        import torch

        row, rows, col, cols = box
        here = source[
            row - self.place[0] : row - self.place[0] + rows,
            col - self.place[2] : col - self.place[2] + cols,
        ]
        served = self.origin.served()[self.name]
        aligned = here.stride(1) == 1 or cols == 1
        if here.dtype != served or here.device.type != "cpu" or not aligned:
            here = torch.empty((rows, cols), dtype=served).copy_(here)
        whole_rows, whole_cols = matrix_shape(self.shape)
        width = ITEMSIZE[self.dtype]
        data = as_view(here, self.name).data
        return data, whole_rows, whole_cols * width, row, col * width
