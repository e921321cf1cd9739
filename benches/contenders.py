"""What is compared on one data set: deltawire's profiles and the published layouts."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np

import deltawire as dw
from competitors import COMPETITORS, Bits, Codec
from data import DataSet, Tensors, copy_of
from deltawire.types import Profile
from measure import CountingSink, Operation

PROFILES: tuple[Profile, ...] = ("compact", "fast", "overwrite")
THREADS = (1, 2)

#: Competitors take part in every third round: they are slow, and slow times vary less.
SLOW = 3


@dataclass
class Contender:
    """One way to send a data set's change.

    Attributes:
        codec: name in the table.
        published: a layout of others, in numpy; not one of deltawire's profiles.
        nbytes: size of the whole file.
        operations: "encode N", "decode N" and, for deltawire, "apply N" with N threads.
        commits: by number of threads, seconds of each commit so far; empty for the others, whose
            whole apply is the pause.
    """

    codec: str
    published: bool
    nbytes: int
    operations: list[Operation]
    commits: dict[int, list[float]]

    @property
    def pauses(self) -> dict[str, float]:
        """Median pause by number of threads, in seconds."""
        return {str(threads): median(seconds) for threads, seconds in self.commits.items()}


class Target:
    """The receiver's tensors, which every contender changes in turn."""

    def __init__(self, data: DataSet) -> None:
        self.data = data
        self.tensors = copy_of(data.base)

    def reset(self) -> None:
        """Back to the base."""
        for name, view in self.data.base.items():
            np.copyto(self.tensors[name].data, view.data)

    def checker(self, what: str) -> Callable[[], None]:
        """A check for the new state: a benchmark of wrong results is worth nothing."""

        def check() -> None:
            for name, view in self.data.new.items():
                if not np.array_equal(self.tensors[name].data, view.data):
                    raise SystemExit(
                        f"{self.data.name}, {what}: tensor {name!r} is not bit-exact after apply"
                    )

        return check


def profile(data: DataSet, target: Target, name: Profile) -> Contender:
    """One of deltawire's profiles."""
    buffer = io.BytesIO()
    # A publisher knows the state of the head, as nobody else has written it.
    state = dw.diff(data.base, data.new, buffer, profile=name).base_state
    delta = buffer.getvalue()
    commits: dict[int, list[float]] = {n: [] for n in THREADS}

    def encode(threads: int) -> None:
        dw.diff(
            data.base, data.new, CountingSink(), profile=name, threads=threads, base_state=state
        )

    def decode(threads: int) -> None:
        # As one that follows: the state was proven when the version before was applied.
        dw.apply(delta, target.tensors, base_state=state, threads=threads)

    def apply(threads: int) -> None:
        done = dw.apply(delta, target.tensors, threads=threads)
        commits[threads].append(done.commit_seconds)

    operations = []
    for n in THREADS:
        check = target.checker(f"{name}, {n} threads")
        operations += [
            Operation(f"encode {n}", partial(encode, n)),
            Operation(f"decode {n}", partial(decode, n), target.reset, check),
            Operation(f"apply {n}", partial(apply, n), target.reset, check),
        ]
    return Contender(name, False, len(delta), operations, commits)


def bits(tensors: Tensors) -> dict[str, Bits]:
    """BF16 tensors as matrices of bit patterns, where they lie."""
    return {name: view.data.view(np.uint16) for name, view in tensors.items()}


def competitor(data: DataSet, target: Target, codec: Codec) -> Contender:
    """One published layout."""
    base, new, held = bits(data.base), bits(data.new), bits(target.tensors)
    delta = codec.encode(base, new)
    operations = []
    for n in THREADS:
        check = target.checker(f"{codec.name}, {n} threads")
        operations += [
            Operation(f"encode {n}", partial(codec.encode, base, new, n), every=SLOW),
            Operation(
                f"decode {n}", partial(codec.decode, delta, held, n), target.reset, check, SLOW
            ),
        ]
    return Contender(codec.name, True, len(delta), operations, {})


def contenders(data: DataSet) -> list[Contender]:
    """Everything in the order of the table, all with the same target."""
    target = Target(data)
    return [profile(data, target, name) for name in PROFILES] + [
        competitor(data, target, codec) for codec in COMPETITORS
    ]
