"""Deltas that follow one another, folded into one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from . import _native
from .errors import LayoutMismatch
from .sources import PathLike, Sink, open_delta, opened_sink, opened_tensors, placed
from .stream import Progress
from .tensors import NativeMatrix, as_view
from .types import DeltaStats, Limits, Profile


def compose(
    deltas: Sequence[Any],
    sink: PathLike | Sink,
    *,
    base: PathLike | Mapping[str, Any] | None = None,
    profile: Profile | None = None,
    threads: int | None = None,
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> DeltaStats:
    """Write the delta that does what several do one after the other.

    Works chunk by chunk, in bounded memory; only tiles that change are looked at.

    Args:
        deltas: paths, bytes-like objects or binary file objects, in order: each starts from the
            version that the one before leads to. The same tensors in the same tiles.
        sink: path, which appears only when all is written, or object with ``write(bytes)``.
        base: the state that the first delta starts from: a checkpoint path, or names to tensors. It
            is only read. The result is then the very delta that ``diff`` would make of the first
            and the last state. Without it, the deltas must have positions of their own (profiles
            ``fast`` and ``overwrite``), and steps and new elements stay what they are.
        profile: of the result; None: ``compact`` with a base, otherwise that of the last delta.
        threads: as many as processors where None.
        limits: what to accept from the deltas.
        progress: called with the number of dense bytes just done, of tiles that change.

    Raises:
        LayoutMismatch: the deltas do not follow one another, or have other tensors than ``base``.
        WrongBase: the base is needed, or is not what the first delta starts from.
        CorruptDelta, UnsupportedDelta, LimitExceeded: a delta is unusable, or the changes do not
            add up to the state that the last one names.
        StoreError: a source or the sink fails.
    """
    begun = time.perf_counter()
    if not deltas:
        raise LayoutMismatch("there are no deltas to compose")
    opened: list[_native.Delta] = []
    for source in deltas:
        delta, path = open_delta(source, limits)
        with placed(path):
            opened.append(delta)
    first, last = opened[0].info(), opened[-1].info()
    if profile is None:
        profile = last["profile"] if base is None else "compact"
    with contextlib.ExitStack() as stack:
        matrices: list[NativeMatrix] | None = None
        if base is not None:
            tensors = stack.enter_context(opened_tensors(base))
            matrices = [_matrix(tensors, entry) for entry in first["tensors"]]
        out = stack.enter_context(opened_sink(sink))
        size, changed, chunks, base_state, result_state, hashes = _native.compose(
            out, opened, matrices, profile, threads, progress
        )
    return DeltaStats(
        elements=sum(entry[4] for entry in first["tensors"]),
        changed=changed,
        dense_bytes=sum(entry[5] for entry in first["tensors"]),
        bytes=size,
        chunks=chunks,
        base_state=None if base_state is None else bytes(base_state),
        result_state=None if result_state is None else bytes(result_state),
        seconds=time.perf_counter() - begun,
        record_hashes=bytes(hashes),
    )


def _matrix(tensors: Mapping[str, Any], entry: Sequence[Any]) -> NativeMatrix:
    name, dtype, shape = entry[0], entry[1], tuple(entry[2])
    if name not in tensors:
        raise LayoutMismatch("is in the deltas but not in the base", tensor=name)
    view = as_view(tensors[name], name)
    if (view.dtype, view.shape) != (dtype, shape):
        raise LayoutMismatch(
            f"is {view.dtype} of shape {list(view.shape)} in the base, but {dtype} of shape "
            f"{list(shape)} in the deltas",
            tensor=name,
        )
    return view.native
