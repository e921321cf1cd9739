"""The data sets of the benchmark: synthetic policies, recordings where they are at hand, MiniLM."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

import minilm
from deltawire.checkpoint import Checkpoint
from deltawire.tensors import TensorView
from synth import Decoder, policy_step

Tensors = dict[str, TensorView]

#: About so many percent of a synthetic policy's elements change -> the learning rate that does it.
LEARNING_RATES = {"0.3": 0.3e-6, "1": 1.1e-6, "2": 2.5e-6, "3": 4.1e-6}

#: Sizes of the two architectures, normal and for a quick run.
DENSE = Decoder()
MOE = Decoder(layers=2, experts=20)
QUICK_DENSE = Decoder(hidden=256, inner=640, layers=2, kv=64, vocab=2048)
QUICK_MOE = replace(QUICK_DENSE, experts=8, expert_inner=96)


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


@dataclass(frozen=True)
class Source:
    """A data set that is not made before it is asked for.

    Attributes:
        load: makes it; None, after a line on what is missing, where it cannot.
    """

    name: str
    load: Callable[[], tuple[Tensors, Tensors] | None]


def copy_of(tensors: Tensors) -> Tensors:
    """The same tensors in memory of their own."""
    return {
        name: TensorView.from_bytes(view.dtype, view.shape, view.contiguous().copy())
        for name, view in tensors.items()
    }


def opened(path: Path) -> Tensors:
    """A checkpoint's tensors in memory."""
    with Checkpoint.open(path) as checkpoint:
        return copy_of(dict(checkpoint.items()))


def recorded(directory: Path) -> tuple[Tensors, Tensors]:
    """The last two versions of a recorded run: ``base.safetensors`` and ``changes_N.npz``."""
    new = opened(directory / "base.safetensors")
    base = new
    for step in range(1, 1 + len(list(directory.glob("changes_*.npz")))):
        base = new
        new = copy_of(base)
        with np.load(directory / f"changes_{step}.npz") as changes:
            for name in {key.rpartition("|")[0] for key in changes.files}:
                values = new[name].contiguous().view(np.uint16)
                values[changes[f"{name}|i"]] = changes[f"{name}|v"]
    return base, new


def fine_tuned() -> tuple[Tensors, Tensors] | None:
    """MiniLM before and after one step, most of it embeddings; trained where not cached."""
    paths = minilm.recording()
    return None if paths is None else (opened(paths[0]), opened(paths[1]))


def sources(recordings: Path, *, quick: bool) -> Iterator[Source]:
    """Synthetic policies, every recording in the folder, MiniLM (not in a quick run)."""
    shapes = {"dense": QUICK_DENSE, "moe": QUICK_MOE} if quick else {"dense": DENSE, "moe": MOE}
    for kind, sizes in shapes.items():
        for percent, lr in LEARNING_RATES.items():
            yield Source(f"{kind}-{percent}", partial(policy_step, sizes, lr))
    for base in sorted(recordings.glob("*/base.safetensors")):
        yield Source(base.parent.name, partial(recorded, base.parent))
    if not quick:
        yield Source(minilm.NAME, fine_tuned)
