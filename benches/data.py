"""The data sets of the benchmark: synthetic policies, and recorded ones where they are at hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from deltawire.checkpoint import Checkpoint
from deltawire.tensors import TensorView
from synth import Decoder, policy_step

Tensors = dict[str, TensorView]

#: Learning rates that change about 0.3, 1 and 3 % of a synthetic policy's elements.
LEARNING_RATES = (0.3e-6, 1.1e-6, 4.1e-6)


@dataclass(frozen=True)
class DataSet:
    """Two consecutive versions under a name."""

    name: str
    base: Tensors
    new: Tensors

    @property
    def nbytes(self) -> int:
        """Dense bytes of one version."""
        return sum(view.nbytes for view in self.base.values())


def recorded(directory: Path) -> DataSet:
    """The last two versions of a recorded run: ``base.safetensors`` and ``changes_N.npz``."""
    with Checkpoint.open(directory / "base.safetensors") as checkpoint:
        new = {
            name: TensorView.from_bytes(view.dtype, view.shape, view.contiguous().copy())
            for name, view in checkpoint.items()
        }
    base = new
    for step in range(1, 1 + len(list(directory.glob("changes_*.npz")))):
        base = new
        new = {
            name: TensorView.from_bytes(view.dtype, view.shape, view.contiguous().copy())
            for name, view in base.items()
        }
        with np.load(directory / f"changes_{step}.npz") as changes:
            for name in {key.rpartition("|")[0] for key in changes.files}:
                values = new[name].contiguous().view(np.uint16)
                values[changes[f"{name}|i"]] = changes[f"{name}|v"]
    return DataSet(directory.name, base, new)


def data_sets(sizes: Decoder, recordings: Path) -> Iterator[DataSet]:
    """Synthetic policies of these sizes, then every recording in the folder; one at a time."""
    for lr in LEARNING_RATES:
        yield DataSet(f"synthetic lr {lr:.1e}", *policy_step(sizes, lr))
    for base in sorted(recordings.glob("*/base.safetensors")):
        yield recorded(base.parent)
