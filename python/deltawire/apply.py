"""Applying a delta in place: everything is proven before the first element changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _native
from .errors import LayoutMismatch, TargetError, UntrustedDelta, WrongBase
from .reader import describe
from .sources import open_delta, placed
from .stream import Progress
from .tensors import (
    Bytes,
    NativeMatrix,
    TensorView,
    as_view,
    matrix_shape,
    require_writable,
    shared_memory,
)
from .types import ApplyStats, DeltaInfo, Limits


def target_view(target: Mapping[str, Any], name: str) -> TensorView:
    """The bytes of one target tensor, to be changed in place.

    Raises:
        LayoutMismatch: the target has no such tensor.
        TargetError: it is read-only, or its rows overlap.
    """
    view = _member(target, name)
    require_writable({name: view})
    return view


def _member(target: Mapping[str, Any], name: str) -> TensorView:
    try:
        tensor = target[name]
    except KeyError:
        raise LayoutMismatch(
            "is in the delta but not in the target; apply it to the model that it was made for",
            tensor=name,
        ) from None
    return as_view(tensor, name)


def _absent(dtype: str, shape: tuple[int, ...]) -> TensorView:
    """A shard without elements, at the end: where a tensor without elements does not begin."""
    return TensorView(dtype, shape, np.empty((0, 0), np.uint8), corner=matrix_shape(shape))


def matching_views(
    header: Mapping[str, Any], target: Mapping[str, Any], *, partial: bool
) -> dict[str, TensorView]:
    """The target's bytes for each tensor of a delta, in the order of its table.

    Args:
        header: ``tensors`` of it are used.
        partial: tensors that the target lacks are shards without elements.

    Raises:
        LayoutMismatch: a tensor is missing, or has another dtype or shape.
    """
    views: dict[str, TensorView] = {}
    for name, dtype, shape, *_ in header["tensors"]:
        absent = partial and name not in target
        view = _absent(dtype, tuple(shape)) if absent else _member(target, name)
        if (view.dtype, view.shape) != (dtype, tuple(shape)):
            raise LayoutMismatch(
                f"is {view.dtype} of shape {list(view.shape)} in the target, but {dtype} of "
                f"shape {shape} in the delta",
                tensor=name,
            )
        views[name] = view
    return views


@dataclass(frozen=True)
class Tile:
    """Contents of one tile of a delta's tensor.

    Attributes:
        tensor: index of the tensor in the delta's table.
        tile: number of the tile.
        name: of the tensor.
        view: the tile, a shard of the tensor in memory of its own.
    """

    tensor: int
    tile: int
    name: str
    view: TensorView

    def place_in(self, target: TensorView) -> Bytes:
        """The tile's bytes in a target that holds it, of the shape of ``view.data``."""
        row, col = self.view.corner or (0, 0)
        first_row, first_col = target.corner or (0, 0)
        rows, width = self.view.data.shape
        top, left = row - first_row, (col - first_col) * self.view.itemsize
        return target.data[top : top + rows, left : left + width]


def damaged_tiles(
    source: Any, target: Mapping[str, Any], *, partial: bool = False, threads: int | None = None
) -> tuple[list[Tile], int]:
    """The tiles of a target that hold neither the base of a delta nor its result.

    Only tiles that the delta changes are looked at: of others it is not known what they should
    hold, and ``stage`` refuses the target as a whole.

    Args:
        source, target, partial, threads: as for ``stage``.

    Returns:
        The tiles, their contents zeros in memory that is not taken before it is written; and the
        bytes that the target holds of the delta's tensors.

    Raises:
        CorruptDelta, LayoutMismatch, StoreError: as ``stage``.
    """
    delta, path = open_delta(source)
    with placed(path):
        views = matching_views(delta.info(), target, partial=partial)
        rows = delta.damaged([view.native for view in views.values()], threads)
    names = list(views)
    tiles = []
    for tensor, tile, row, col, height, width in rows:
        name = names[tensor]
        like = views[name]
        data = np.zeros((height, width * like.itemsize), np.uint8)
        view = TensorView(like.dtype, like.shape, data, corner=(row, col))
        tiles.append(Tile(tensor, tile, name, view))
    return tiles, sum(view.data.size for view in views.values())


class Staged:
    """A delta that is read, checked and proven against a target, ready to commit.

    Between ``stage`` and ``commit`` the target may be read by anybody and written by nobody.

    Attributes:
        version: version that the delta leads to.
        base_version: version that it starts from.
        chunks: chunks of the delta.
        skipped: chunks whose tile has the result already.
        changed: elements that ``commit`` will write.
        base_state: proven state digest of the target's tensors now, or the caller's ``base_state``
            where the proof rests on it; None with ``verify=False``, and
            where the target is at neither of the states that the delta names (partly applied).
        result_state: proven state digest after the commit; None with ``verify=False``, and where
            the target holds shards.
        shard_states: sums of the digests of what the target holds, before and after the commit, 16
            bytes each; None with ``verify=False``. Those of all ranks, added up with
            ``deltawire.digest.combine``, are the states of the whole.
        stage_seconds: wall time of staging.
    """

    def __init__(
        self,
        delta: _native.Delta,
        path: str | None,
        plan: _native.Plan,
        data: list[NativeMatrix],
        header: dict[str, Any],
        threads: int | None,
        stage_seconds: float,
        writes: list[tuple[Bytes, Bytes]],
    ) -> None:
        self._delta = delta
        self._path = path
        self._plan = plan
        self._data = data
        self._threads = threads
        self._writes = writes
        self.version: int = header["version"]
        self.base_version: int | None = header["base_version"]
        self.chunks = len(delta)
        self.skipped = plan.skipped
        self.changed = plan.changed
        states = plan.states
        before, after = (None, None) if states is None else states
        self.base_state = None if before is None else bytes(before)
        self.result_state = None if after is None else bytes(after)
        sums = plan.sums
        self.shard_states = None if sums is None else (bytes(sums[0]), bytes(sums[1]))
        self.stage_seconds = stage_seconds

    @property
    def info(self) -> DeltaInfo:
        """All about the delta; reads it once more."""
        with placed(self._path):
            return describe(self._delta, self._path)

    def commit(self) -> ApplyStats:
        """Write the changed elements. Costs O(changes); the only time the target is in between.

        Raises:
            TargetTorn: a delta too large to be kept by ``stage`` changed, or could no longer be
                read, after writing had begun. Applying the delta again completes it.
            TargetError: the target became read-only; nothing is written.
        """
        begun = time.perf_counter()
        try:
            for place, tile in self._writes:
                place[...] = tile
            with placed(self._path):
                changed = self._delta.commit(self._plan, self._data, self._threads)
        except BufferError as error:
            raise TargetError(f"{error}; nothing was written") from error
        return ApplyStats(
            chunks=self.chunks,
            skipped=self.skipped,
            changed=changed,
            result_state=self.result_state,
            stage_seconds=self.stage_seconds,
            commit_seconds=time.perf_counter() - begun,
        )


def _starts_from(header: Mapping[str, Any], state: bytes) -> bool:
    """Whether the delta starts from a state; False where that is its result.

    Raises:
        WrongBase: it is neither.
    """
    base, result = header["base_state"], header["result_state"]
    if base is not None and base != state and result != state:
        raise WrongBase(
            f"the target holds state {state.hex()}, but the delta starts from {base.hex()}; apply "
            "the deltas between, or fetch an anchor",
            version=header["version"],
        )
    return bool(base == state)


def stage(
    source: Any,
    target: Mapping[str, Any],
    *,
    verify: bool = True,
    base_state: bytes | None = None,
    expect_result: bytes | None = None,
    threads: int | None = None,
    limits: Limits | None = None,
    progress: Callable[[int], object] | None = None,
    read_only: bool = False,
    partial: bool = False,
    replaced: Sequence[Tile] = (),
) -> Staged:
    """Check a delta against a target without writing to it.

    Every byte of the delta is checked. Tiles of relative chunks must hold the base, or the result
    already. With ``verify`` every tile of the delta's tensors is digested, and the state after the
    commit is proven to be the one that the delta names. Tied tensors (several names for the same
    memory) are written once, after it is checked that the delta changes them alike. What will be
    written is kept in about four bytes a change of two-byte elements, 128 MiB at most.

    Args:
        source: path, bytes-like object, or binary file object. A path may be read again
            by ``commit``.
        target: names to torch tensors (CPU), numpy arrays, ``Shard``, ``TensorView``, or a writable
            ``Checkpoint``. Tensors beyond those of the delta are left alone. With shards, chunks of
            other ranks are not read, and the state of the whole is for the ranks to add up.
        verify: prove the whole state, in one pass over the target at memory bandwidth; False: only
            each tile that changes.
        base_state: state digest that the target was proven to hold, with nobody writing to it
            since: ``result_state`` of the apply before, or ``state_digest``. If the delta starts
            from it, it is taken on the caller's word: what changes is proven to lead from there to
            the delta's result, and elements that stay are hardly looked at, which takes a fraction
            of the time. Damage to the target since then goes unnoticed. Without effect on shards,
            and where the delta does not name its states.
        expect_result: state digest that the delta must lead to, as from a manifest.
        threads: as many as processors where None.
        limits: what to accept from the delta.
        progress: called with the number of dense bytes just done.
        read_only: only check; the target need not be writable, and ``commit`` may fail.
        partial: tensors that the target lacks are those of other ranks, and left out.
        replaced: tiles of the delta that ``commit`` overwrites first; all is proven as if that was
            done already.

    Raises:
        CorruptDelta, UnsupportedDelta, LimitExceeded: the delta is unusable.
        UntrustedDelta: it leads to another state than ``expect_result``.
        WrongBase: the target holds something else; names the tensor. Or ``base_state`` is neither
            the delta's base nor its result.
        LayoutMismatch: a tensor is missing, or has another dtype or shape.
        TargetError: the target is read-only, or tensors overlap in part.
        StoreError: the source cannot be read.
    """
    begun = time.perf_counter()
    delta, path = open_delta(source, limits)
    with placed(path):
        header = delta.info()
        claimed = header["result_state"]
        if None not in (expect_result, claimed) and claimed != expect_result:
            raise UntrustedDelta(
                "the delta leads to another state than the one expected of it; fetch it again",
                version=header["version"],
            )
        views = matching_views(header, target, partial=partial)
        if not read_only:
            require_writable(views)
        data = [view.native for view in views.values()]
        tiles = [(tile.tensor, tile.tile, tile.view.native) for tile in replaced]
        trusted = base_state is not None and _starts_from(header, base_state)
        plan = delta.plan(data, shared_memory(views), verify, threads, progress, tiles, trusted)
        states = plan.states
        if expect_result is not None and states is not None and bytes(states[1]) != expect_result:
            raise UntrustedDelta(
                "the target would end in another state than the one expected; fetch an anchor",
                version=header["version"],
            )
    writes = [(tile.place_in(views[tile.name]), tile.view.data) for tile in replaced]
    return Staged(delta, path, plan, data, header, threads, time.perf_counter() - begun, writes)


def apply(
    source: Any,
    target: Mapping[str, Any],
    *,
    verify: bool = True,
    base_state: bytes | None = None,
    threads: int | None = None,
    limits: Limits | None = None,
    progress: Progress | None = None,
    partial: bool = False,
) -> ApplyStats:
    """Apply a delta in place: ``stage(...)``, then ``commit()``.

    Nothing is written unless all of the delta is sound and fits the target. Applying it once more
    changes nothing. Arguments and errors as for ``stage`` and ``Staged.commit``.
    """
    return stage(
        source,
        target,
        verify=verify,
        base_state=base_state,
        threads=threads,
        limits=limits,
        progress=progress,
        partial=partial,
    ).commit()
