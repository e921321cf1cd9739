"""Tensors of any library as byte matrices, without copying.

The codec sees a tensor as a row-major matrix of elements (see ``spec/format-v1.md``):
rank 0 is 1 x 1, rank 1 is length x 1, and from rank 2 on the last dimension gives the
columns and all others the rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .errors import LayoutMismatch, TargetError

if TYPE_CHECKING:
    import torch

#: Known dtypes under their safetensors names, with the width of an element in bytes.
ITEMSIZE: dict[str, int] = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E4M3FNUZ": 1,
    "F8_E5M2FNUZ": 1,
    "F8_E8M0": 1,
    "BF16": 2,
    "F16": 2,
    "I16": 2,
    "U16": 2,
    "F32": 4,
    "I32": 4,
    "U32": 4,
    "F64": 8,
    "I64": 8,
    "U64": 8,
    "C64": 8,
}

_NUMPY_DTYPES: dict[str, str] = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "float16": "F16",
    "int16": "I16",
    "uint16": "U16",
    "float32": "F32",
    "int32": "I32",
    "uint32": "U32",
    "float64": "F64",
    "int64": "I64",
    "uint64": "U64",
    "complex64": "C64",
    # Registered by the ml_dtypes package.
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
}

_TORCH_DTYPES: dict[str, str] = {"torch." + name: dtype for name, dtype in _NUMPY_DTYPES.items()}


def torch_dtype_name(dtype: object, tensor: str = "") -> str:
    """safetensors name of a ``torch.dtype``.

    Raises:
        LayoutMismatch: it has none; ``tensor`` is reported.
    """
    name = _TORCH_DTYPES.get(str(dtype))
    if name is None:
        raise LayoutMismatch(f"{dtype} cannot be carried", tensor=tensor or None)
    return name


Bytes = npt.NDArray[np.uint8]


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of the matrix that stands for a tensor of this shape."""
    if len(shape) == 0:
        return 1, 1
    if len(shape) == 1:
        return shape[0], 1
    return math.prod(shape[:-1]), shape[-1]


#: What the extension takes for a tensor: its bytes; or a shard's, with the whole matrix' rows and
#: bytes of a row, and the row and byte at which the shard begins.
NativeMatrix = Bytes | tuple[Bytes, int, int, int, int]


@dataclass(frozen=True)
class TensorView:
    """The bytes of one tensor, or of a shard of it, where they lie.

    Attributes:
        dtype: safetensors name, a key of ``ITEMSIZE``.
        shape: the tensor's own shape, any rank.
        data: uint8 array of shape ``(rows, cols * itemsize)``; the last axis is
            contiguous, the distance between rows is free.
        owner: kept alive as long as the view is (a memory map, a tensor).
        corner: of a shard, the row and column of its first element in the tensor's matrix; ``data``
            then has the shard's rows and columns. None: the whole tensor.
    """

    dtype: str
    shape: tuple[int, ...]
    data: Bytes
    owner: object = None
    corner: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.dtype not in ITEMSIZE:
            raise LayoutMismatch(
                f"dtype {self.dtype!r} is not known; known are {', '.join(ITEMSIZE)}"
            )
        rows, cols = matrix_shape(self.shape)
        if self.corner is not None:
            held, width = self.data.shape
            row, col = self.corner
            if row < 0 or col < 0 or row + held > rows or col + width // self.itemsize > cols:
                raise LayoutMismatch(
                    f"a shard of {held} rows and {width // self.itemsize} columns from row {row} "
                    f"and column {col} on lies outside a tensor of shape {list(self.shape)}"
                )
            rows, cols = held, width // self.itemsize
        if self.data.dtype != np.uint8 or self.data.shape != (rows, cols * self.itemsize):
            raise LayoutMismatch(
                f"a {self.dtype} tensor of shape {list(self.shape)} needs uint8 data of shape "
                f"{(rows, cols * self.itemsize)}, got {self.data.dtype} {self.data.shape}"
            )

    @classmethod
    def from_bytes(
        cls, dtype: str, shape: tuple[int, ...], buffer: Any, *, offset: int = 0
    ) -> TensorView:
        """A view over ``buffer`` (any contiguous buffer) from byte ``offset`` on.

        Raises:
            LayoutMismatch: unknown dtype, or the buffer is too short.
        """
        if dtype not in ITEMSIZE:
            raise LayoutMismatch(f"dtype {dtype!r} is not known; known are {', '.join(ITEMSIZE)}")
        rows, cols = matrix_shape(shape)
        nbytes = rows * cols * ITEMSIZE[dtype]
        available = memoryview(buffer).nbytes - offset
        if available < nbytes:
            raise LayoutMismatch(
                f"a {dtype} tensor of shape {list(shape)} needs {nbytes} bytes, "
                f"the buffer has {max(available, 0)}"
            )
        flat: Bytes
        if nbytes == 0:
            flat = np.empty(0, np.uint8)
        else:
            flat = np.frombuffer(buffer, np.uint8, nbytes, offset)
        return cls(dtype, shape, flat.reshape(rows, cols * ITEMSIZE[dtype]), buffer)

    @property
    def itemsize(self) -> int:
        """Width of one element in bytes."""
        return ITEMSIZE[self.dtype]

    @property
    def rows(self) -> int:
        """Rows of the matrix."""
        return matrix_shape(self.shape)[0]

    @property
    def cols(self) -> int:
        """Columns of the matrix, in elements."""
        return matrix_shape(self.shape)[1]

    @property
    def elements(self) -> int:
        """Number of elements."""
        return self.rows * self.cols

    @property
    def nbytes(self) -> int:
        """Bytes of the elements (gaps between rows not counted)."""
        return self.elements * self.itemsize

    @property
    def writable(self) -> bool:
        """Whether the bytes may be changed in place."""
        return bool(self.data.flags.writeable) or self.data.size == 0

    @property
    def whole(self) -> bool:
        """Whether all of the tensor is here."""
        return self.corner is None or self.data.shape == (self.rows, self.cols * self.itemsize)

    @property
    def native(self) -> NativeMatrix:
        """What the extension takes."""
        if self.corner is None:
            return self.data
        row, col = self.corner
        width = self.itemsize
        return self.data, self.rows, self.cols * width, row, col * width

    def contiguous(self) -> Bytes:
        """The elements as flat bytes, without a copy where they lie in one piece."""
        return self.data.reshape(-1)


@dataclass(frozen=True)
class Shard:
    """One rank's part of a tensor, to be used wherever a tensor is.

    Deltas and digests are those of the whole tensor: a rank applies just its part of a delta, and
    deltas and state digests that ranks make of their shards add up to those of the whole.

    Attributes:
        tensor: the part: torch tensor (CPU), numpy array or ``TensorView``.
        shape: shape of the whole tensor.
        offset: index of the part's first element in it, one number a dimension.

    A part is a box of the matrix that stands for the tensor (its last dimension by all others). So
    of the dimensions but the last one only one may be split, and those before it have length 1 in
    the part. It may not cut tiles: with the default tiling, equal parts for 2, 4 or 8 ranks of at
    least 2^19 elements do not; for smaller ones make deltas with ``Tiling(min_elements=...)``.
    """

    tensor: Any
    shape: tuple[int, ...]
    offset: tuple[int, ...]

    def view(self, name: str = "") -> TensorView:
        """The part's bytes.

        Raises:
            LayoutMismatch: it does not lie in the tensor, or is no box of its matrix.
        """
        local = as_view(self.tensor, name)
        shape, offset = tuple(self.shape), tuple(self.offset)
        if not len(local.shape) == len(shape) == len(offset) or local.corner is not None:
            raise LayoutMismatch(
                f"a shard of shape {list(local.shape)} needs a whole shape and an offset with as "
                f"many dimensions, got {list(shape)} and {list(offset)}",
                tensor=name or None,
            )
        inside = all(
            first >= 0 and first + n <= all_
            for first, n, all_ in zip(offset, local.shape, shape, strict=True)
        )
        leading = len(shape) if len(shape) < 2 else len(shape) - 1
        # Dimensions of length 1, then one that may be split, then whole ones.
        split = next((i for i in range(leading) if local.shape[i] != 1), leading)
        is_box = all(local.shape[i] == shape[i] for i in range(split + 1, leading))
        if not inside or not is_box:
            what = "is no box of its matrix; pass its parts" if inside else "lies outside"
            raise LayoutMismatch(
                f"a shard of shape {list(local.shape)} at {list(offset)} of a tensor of shape "
                f"{list(shape)} {what}",
                tensor=name or None,
            )
        row = 0
        for first, all_ in zip(offset[:leading], shape[:leading], strict=True):
            row = row * all_ + first
        col = offset[-1] if len(shape) >= 2 else 0
        return TensorView(local.dtype, shape, local.data, self.tensor, (row, col))


def _bytes_of_numpy(array: npt.NDArray[Any]) -> Bytes | None:
    """The byte matrix of an array, or None where that would need a copy."""
    rows, cols = matrix_shape(array.shape)
    width = array.dtype.itemsize
    if array.size == 0:
        return np.empty((rows, cols * width), np.uint8)
    try:
        matrix = array.view()
        # Setting the shape in place fails where reshape would copy.
        matrix.shape = (rows, cols)
    except AttributeError:
        return None
    if cols > 1 and matrix.strides[1] != width:
        return None
    bytes_ = np.lib.stride_tricks.as_strided(
        matrix.view(np.uint8) if matrix.flags.c_contiguous else _first_byte(matrix),
        (rows, cols * width),
        (matrix.strides[0], 1),
        writeable=bool(array.flags.writeable),
    )
    return bytes_


def _first_byte(matrix: npt.NDArray[Any]) -> Bytes:
    """A one-byte array at the matrix' first element, to be strided over."""
    first: npt.NDArray[Any] = matrix[:1, :1]
    return np.lib.stride_tricks.as_strided(first, (1,), (first.dtype.itemsize,)).view(np.uint8)


def _view_numpy(array: npt.NDArray[Any], name: str) -> TensorView:
    dtype = _NUMPY_DTYPES.get(array.dtype.name)
    if dtype is None or array.dtype.byteorder == ">":
        raise LayoutMismatch(
            f"numpy dtype {array.dtype} cannot be carried; use TensorView for other 1, 2, 4 or "
            "8-byte elements",
            tensor=name or None,
        )
    data = _bytes_of_numpy(array)
    if data is None:
        raise LayoutMismatch(
            f"an array of shape {list(array.shape)} with strides {array.strides} is not a matrix "
            "with contiguous rows; pass numpy.ascontiguousarray(...) of an input, or a contiguous "
            "target",
            tensor=name or None,
        )
    return TensorView(dtype, tuple(array.shape), data, array)


def _view_torch(tensor: torch.Tensor, name: str) -> TensorView:
    import torch

    dtype = torch_dtype_name(tensor.dtype, name)
    if tensor.layout != torch.strided or tensor.device.type != "cpu":
        raise LayoutMismatch(
            f"a {tensor.layout} tensor on {tensor.device} cannot be read in place; move it to the "
            "CPU first",
            tensor=name or None,
        )
    if tensor.is_conj() or tensor.is_neg():
        raise LayoutMismatch("resolve the lazy conjugate or negative first", tensor=name or None)
    width = tensor.element_size()
    # Reinterpreted as integers, because numpy has no BF16 or FP8.
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[width]
    array = tensor.detach().view(integers).numpy()
    data = _bytes_of_numpy(array)
    if data is None:
        raise LayoutMismatch(
            f"a tensor of shape {list(tensor.shape)} with strides {list(tensor.stride())} is not a "
            "matrix with contiguous rows; pass .contiguous() of an input, or a contiguous target",
            tensor=name or None,
        )
    return TensorView(dtype, tuple(tensor.shape), data, tensor)


def as_view(tensor: Any, name: str = "") -> TensorView:
    """The bytes of a ``torch.Tensor`` (CPU), numpy array, ``Shard`` or ``TensorView``, not copied.

    Raises:
        LayoutMismatch: a dtype, device or stride that cannot be read in place; ``name`` is
            reported.
    """
    if isinstance(tensor, TensorView):
        return tensor
    if isinstance(tensor, Shard):
        return tensor.view(name)
    if isinstance(tensor, np.ndarray):
        return _view_numpy(tensor, name)
    if isinstance(tensor, np.generic):
        return _view_numpy(np.asarray(tensor), name)
    if type(tensor).__module__.partition(".")[0] == "torch" or hasattr(tensor, "element_size"):
        return _view_torch(tensor, name)
    raise LayoutMismatch(
        f"expected a torch tensor, a numpy array or a TensorView, got {type(tensor).__name__}",
        tensor=name or None,
    )


def as_views(tensors: Mapping[str, Any]) -> dict[str, TensorView]:
    """``as_view`` of every tensor, in the mapping's order."""
    return {name: as_view(tensor, name) for name, tensor in tensors.items()}


def require_writable(views: Mapping[str, TensorView]) -> None:
    """Refuse a target with a read-only or overlapping tensor before anything is written.

    Raises:
        TargetError: names the first such tensor.
    """
    for name, view in views.items():
        if not view.writable:
            raise TargetError(
                "the target is read-only; open the checkpoint with writable=True, or pass arrays "
                "that may be written",
                tensor=name,
            )
        if view.data.shape[0] > 1 and view.data.strides[0] < view.data.shape[1]:
            raise TargetError(
                "the target's rows overlap in memory; pass a tensor of its own", tensor=name
            )


def _span(data: Bytes) -> tuple[int, int]:
    """First address of a byte matrix, and the one behind its last."""
    start: int = data.__array_interface__["data"][0]
    rows, width = data.shape
    if rows == 0 or width == 0:
        return start, start
    return start, start + (rows - 1) * data.strides[0] + width


def _apart(a: Bytes, b: Bytes) -> bool:
    """Whether two matrices whose spans overlap have no byte in common.

    True for columns of one larger matrix, such as the halves of a fused weight.
    """
    stride = a.strides[0] if a.shape[0] > 1 else b.strides[0]
    for matrix in (a, b):
        if matrix.shape[0] > 1 and matrix.strides[0] != stride:
            return False
    distance: int = (_span(b)[0] - _span(a)[0]) % stride if stride else 0
    return bool(a.shape[1] <= distance and distance + b.shape[1] <= stride)


def shared_memory(views: Mapping[str, TensorView]) -> list[int | None]:
    """For each view, the index of the first one that is the very same memory (tied weights).

    Raises:
        TargetError: two views overlap in any other way.
    """
    aliases: list[int | None] = [None] * len(views)
    names, matrices = list(views), list(views.values())
    spans = [_span(view.data) for view in matrices]
    order = sorted(range(len(names)), key=spans.__getitem__)
    active: list[int] = []
    for i in order:
        view = matrices[i]
        start, end = spans[i]
        if start == end:
            continue
        active = [j for j in active if spans[j][1] > start]
        for j in active:
            other = matrices[j]
            same = (
                spans[j] == spans[i]
                and (other.dtype, other.shape, other.corner)
                == (view.dtype, view.shape, view.corner)
                and (view.data.shape[0] == 1 or other.data.strides == view.data.strides)
            )
            if same:
                first, later = min(i, j), max(i, j)
                known = aliases[later]
                aliases[later] = first if known is None else min(known, first)
            elif not _apart(other.data, view.data):
                raise TargetError(
                    f"overlaps {names[j]!r} in memory; tied tensors must be the same memory as a "
                    "whole, others need memory of their own",
                    tensor=names[i],
                )
        active.append(i)
    return aliases
