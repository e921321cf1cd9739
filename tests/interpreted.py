"""Kernels in Triton's interpreter, on CPU tensors: for modules that test them, imported first.

Which way kernels run is settled when triton is imported, by a variable that is set for that long.
In a process that has imported triton before, such modules are skipped.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import boundary_twin
import deltawire as dw
from deltawire.tensors import TensorView, as_view

VARIABLE = "TRITON_INTERPRET"

torch = pytest.importorskip("torch")
before = os.environ.get(VARIABLE)
os.environ[VARIABLE] = "1"
try:
    pytest.importorskip("triton", reason="comes with CUDA builds of torch")
    from triton.runtime import interpreter, jit

    from deltawire.detect import boundary_kernels, kernels  # noqa: F401

    # Imports the rest of triton.
    jit.mangle_type(0)
finally:
    os.environ.pop(VARIABLE)
    if before is not None:
        os.environ[VARIABLE] = before

if not kernels.INTERPRETED:
    pytest.skip("triton was imported before, for a GPU", allow_module_level=True)

Launch = tuple[str, str, list[tuple[str, bool]], dict[str, Any]]


def _fused(self: object, x: Any, y: Any, z: Any) -> Any:
    """The interpreter's own multiply-add rounds twice."""
    result = boundary_twin._add_product(*np.broadcast_arrays(x.data, y.data, z.data))
    return interpreter.TensorHandle(result, z.dtype.scalar)


interpreter.InterpreterBuilder.create_fma = _fused


def _kind(argument: Any) -> tuple[str, bool]:
    """Type that the compiler would see, and whether it is a multiple of 16."""
    if argument is None:
        return "constexpr", False
    number = argument.data_ptr() if hasattr(argument, "data_ptr") else argument
    return jit.mangle_type(argument), isinstance(number, int) and number % 16 == 0


class Recorder:
    """Keeps what kernels are launched with, each kind of launch once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.launches: list[Launch] = []
        run = interpreter.InterpretedFunction.run

        def recorded(kernel: Any, *args: Any, grid: Any, warmup: Any, **options: Any) -> None:
            launch = (
                kernel.fn.__module__,
                kernel.fn.__name__,
                [_kind(argument) for argument in args],
                dict(options),
            )
            if launch not in self.launches:
                self.launches.append(launch)
            run(kernel, *args, grid=grid, warmup=warmup, **options)

        monkeypatch.setattr(interpreter.InterpretedFunction, "run", recorded)


# --- Tensors. ------------------------------------------------------------------------------

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
DTYPES = {
    "U8": torch.uint8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "I16": torch.int16,
    "F32": torch.float32,
    "F64": torch.float64,
}


def noise(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Any bits."""
    tensor = torch.empty(shape, dtype=DTYPES[dtype])
    raw = rng.bytes(tensor.numel() * tensor.element_size())
    if raw:
        tensor = torch.frombuffer(bytearray(raw), dtype=tensor.dtype).reshape(shape)
    return tensor


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(INTEGERS[tensor.element_size()])


def changed(rng: np.random.Generator, tensor: torch.Tensor, rate: float) -> torch.Tensor:
    """A copy in which some elements have other bits in their lowest two places."""
    new = tensor.clone()
    hit = torch.from_numpy(np.asarray(rng.random(tuple(tensor.shape)) < rate))
    bits(new)[hit] ^= torch.from_numpy(rng.choice([1, 1, 1, 3], int(hit.sum()))).to(bits(new).dtype)
    return new


def weights(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    values = torch.from_numpy(rng.standard_normal(shape) * 0.02)
    return values.to(DTYPES[dtype]) if dtype[0] in "BF" else (values * 1000).to(DTYPES[dtype])


def moments(
    rng: np.random.Generator, shape: tuple[int, ...]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Weights and moments as in training."""
    w = rng.standard_normal(shape) * 0.02
    m = rng.standard_normal(shape) * 1e-4
    v = (rng.standard_normal(shape) * 3e-4) ** 2
    return tuple(torch.from_numpy(np.asarray(x, np.float32)) for x in (w, m, v))  # type: ignore


def viewed(tensor: torch.Tensor, dtype: str, shape: tuple[int, ...] | None = None) -> TensorView:
    """The tensor, or one of another shape that it is the matrix of, for the core."""
    data = as_view(bits(tensor)).data
    return TensorView(dtype, tuple(tensor.shape) if shape is None else shape, data, tensor)


def digest_of(
    tensor: torch.Tensor, dtype: str, shape: tuple[int, ...] | None = None, name: str = "w"
) -> bytes:
    return dw.tensor_digests({name: viewed(tensor, dtype, shape)})[name]
