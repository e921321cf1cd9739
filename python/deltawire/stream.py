"""Writing deltas: whole, and tensor by tensor as a stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from . import _native
from .errors import LayoutMismatch
from .partition import Partition, from_parts, to_parts
from .sources import PathLike, Sink, opened_sink, opened_tensors
from .tensors import ITEMSIZE, NativeMatrix, TensorView, as_view, as_views, matrix_shape
from .types import Changes, DeltaStats, Profile, Tiling

Progress = Callable[[int], object]


def _require_same(base: Mapping[str, TensorView], new: Mapping[str, TensorView]) -> None:
    """Names, dtypes and shapes must be equal on both sides."""
    for name in new:
        if name not in base:
            raise LayoutMismatch(
                "is in the new tensors but not in the base; both sides need the same tensors",
                tensor=name,
            )
    for name, old in base.items():
        if name not in new:
            raise LayoutMismatch(
                "is in the base but not in the new tensors; both sides need the same tensors",
                tensor=name,
            )
        _require_layout(name, new[name], old.dtype, old.shape, "the base")


def _require_layout(
    name: str, view: TensorView, dtype: str, shape: tuple[int, ...], other: str
) -> None:
    if (view.dtype, view.shape) != (dtype, shape):
        raise LayoutMismatch(
            f"is {view.dtype} of shape {list(view.shape)}, but {dtype} of shape {list(shape)} in "
            f"{other}",
            tensor=name,
        )


def diff(
    base: Any,
    new: Any,
    sink: PathLike | Sink,
    *,
    base_version: int | None = None,
    version: int | None = None,
    run: str = "",
    profile: Profile = "compact",
    threads: int | None = None,
    meta: Mapping[str, str] | None = None,
    tiling: Tiling | None = None,
    base_state: bytes | None = None,
    progress: Progress | None = None,
) -> DeltaStats:
    """Write the delta that leads from ``base`` to ``new``.

    Args:
        base, new: checkpoint path (a safetensors file or a Hugging Face directory), ``Checkpoint``,
            or mapping of names to torch tensors (CPU), numpy arrays or ``TensorView``. The same
            names, dtypes and shapes on both sides. Not written to meanwhile.
        sink: path, which appears only when all is written, or object with ``write(bytes)``.
        base_version, version: numbers to record; 0, and one more than the base, where None.
        run: name of the run to record.
        profile: "compact", "fast" or "overwrite".
        threads: as many as processors where None.
        meta: free text to record.
        tiling: how tensors are cut.
        base_state: state digest of ``base``, 16 bytes, where known, as publishers know the head's.
            It is checked, and saves half of the digest's work.
        progress: called with the number of dense bytes just done.

    Returns:
        Sizes and the state digests of both sides.

    Raises:
        LayoutMismatch: the two sides have different tensors; names the first.
        CorruptCheckpoint: a path that is not a valid checkpoint.
        StoreError: the sink fails; a path is then as before.
        WrongBase: ``base`` does not have ``base_state``.

    Memory follows the threads and not the tensors: with two, about 20 MiB where some percent of the
    elements change, and 140 MiB where all do.
    """
    with opened_tensors(base) as old, opened_tensors(new) as fresh:
        old_views, new_views = as_views(old), as_views(fresh)
        _require_same(old_views, new_views)
        # In the new side's order, which is also that of the table.
        pairs = [(name, old_views[name], view) for name, view in new_views.items()]
        with (
            opened_sink(sink) as out,
            StreamWriter(
                out,
                new_views,
                base_version=base_version,
                version=version,
                run=run,
                profile=profile,
                threads=threads,
                meta=meta,
                tiling=tiling,
                base_state=base_state,
            ) as writer,
        ):
            writer.add_pairs(pairs, progress=progress)
        return writer.stats


class StreamWriter:
    """Writes a delta front to back, tensor by tensor, in bounded memory.

    Use it as a context manager; leaving it writes the index. On an exception nothing more is
    written, and what the sink holds is no valid delta.

        with dw.StreamWriter(sink, tensors, base_version=6, version=7) as w:
            for name in tensors:
                w.add(name, base=old[name], new=new[name])

    Args:
        sink: path or object with ``write(bytes)``.
        tensors: the tensor table: names to tensors, or to ``(dtype, shape)`` with safetensors dtype
            names.
        base_version, version, run, profile, threads, meta, tiling: as for ``diff``.
        tiles: rows and columns of the tiles of some tensors, where ``tiling`` is not to choose.
        base_state: state digest of the base, 16 bytes, where known; written into the header and
            checked at the end.

    Attributes:
        stats: ``DeltaStats``, after a regular end.
        profile: what it was made with.
    """

    stats: DeltaStats

    def __init__(
        self,
        sink: PathLike | Sink,
        tensors: Mapping[str, Any],
        *,
        base_version: int | None = None,
        version: int | None = None,
        run: str = "",
        profile: Profile = "compact",
        threads: int | None = None,
        meta: Mapping[str, str] | None = None,
        tiling: Tiling | None = None,
        tiles: Mapping[str, tuple[int, int]] | None = None,
        base_state: bytes | None = None,
    ) -> None:
        self._table: dict[str, tuple[int, str, tuple[int, ...]]] = {}
        for i, (name, tensor) in enumerate(tensors.items()):
            dtype, shape = _layout_of(tensor, name)
            self._table[name] = (i, dtype, shape)
        if base_version is None:
            base_version = 0 if version is None or version == 0 else version - 1
        if version is None:
            version = base_version + 1
        self._begun = time.perf_counter()
        tiling = tiling or Tiling()
        #: The profile it writes with.
        self.profile: Profile = profile
        self._opened = opened_sink(sink)
        out = self._opened.__enter__()
        try:
            self._native = _native.Writer(
                out,
                [
                    (name, dtype, list(shape), (tiles or {}).get(name))
                    for name, (_, dtype, shape) in self._table.items()
                ],
                run=run,
                version=version,
                base_version=base_version,
                base_state=base_state,
                profile=profile,
                meta=dict(meta or {}),
                threads=threads,
                max_tile_elements=tiling.max_elements,
                tile_ways=tiling.ways,
                min_tile_elements=tiling.min_elements,
            )
        except BaseException as error:
            self._opened.__exit__(type(error), error, error.__traceback__)
            raise

    def _entry(self, name: str, *views: TensorView) -> int:
        if name not in self._table:
            raise LayoutMismatch("is not in the writer's tensor table", tensor=name)
        index, dtype, shape = self._table[name]
        for view in views:
            _require_layout(name, view, dtype, shape, "the tensor table")
        return index

    def add(self, name: str, *, base: Any, new: Any) -> None:
        """Compare one tensor's two states and write its changes.

        Args:
            name: name in the table; each once, in any order.
            base, new: torch tensor (CPU), numpy array or ``TensorView``.

        Raises:
            LayoutMismatch: unknown or repeated name, or another dtype or shape.
            StoreError: the sink fails; the writer is then finished.
        """
        self.add_pairs([(name, as_view(base, name), as_view(new, name))])

    def add_pairs(
        self,
        pairs: list[tuple[str, TensorView, TensorView]],
        *,
        progress: Progress | None = None,
    ) -> None:
        """``add`` of several ``(name, base, new)`` at once, which keeps all threads busy."""
        self._native.add(
            [(self._entry(name, base, new), base.native, new.native) for name, base, new in pairs],
            progress,
        )

    def add_changes(self, name: str, changes: Changes, *, base: Any = None) -> None:
        """Write changes of one tensor that are already known.

        Args:
            name: name in the table; each once.
            changes: positions and new values; O(changes) bytes are copied.
            base: the tensor's elements before, where at hand. With it the chunks are relative to it
                under the profile, and carry digests. Without it they are absolute, and the delta
                has no state digests.

        Raises:
            LayoutMismatch: positions that do not ascend within the tensor, or another number or
                dtype of values.
        """
        view = None if base is None else as_view(base, name)
        index = self._entry(name, *([] if view is None else [view]))
        dtype = self._table[name][1]
        positions = np.ascontiguousarray(changes.positions, np.int64)
        values = _value_bytes(changes.values, dtype, name)
        self._native.add_found(index, positions, values, None if view is None else view.native)

    def partitions(self, name: str, *, base: Any, new: Any) -> Iterator[Partition]:
        """Compare one tensor's two states tile by tile, without writing: what a scanner yields.

        The twin of a GPU scanner, and what ``add_partitions`` takes.

        Raises:
            LayoutMismatch: unknown name, or another dtype or shape.
        """
        old, after = as_view(base, name), as_view(new, name)
        index = self._entry(name, old, after)
        for tile in self._native.tiles(index, old.native):
            parts, result = self._native.partition(index, tile, old.native, after.native)
            if parts is not None:
                yield from_parts(tile, parts, old.itemsize, result)

    def add_partitions(
        self, name: str, partitions: Iterable[Partition], *, base_digest: bytes, digest: bytes
    ) -> None:
        """Write changes of one tensor that are in classes already. Costs O(changes).

        Args:
            name: name in the table; each once.
            partitions: one for each tile that changes, tiles ascending.
            base_digest, digest: the whole tensor's state digest before and after, 16 bytes each, as
                ``tensor_digests`` gives.

        Raises:
            LayoutMismatch: a partition that contradicts itself or does not fit its tile; the
                writer is then finished.
        """
        index = self._entry(name)
        itemsize = ITEMSIZE[self._table[name][1]]
        items = [(p.tile, to_parts(p, itemsize, name), p.result) for p in partitions]
        self._native.add_partitions(index, base_digest, digest, items)

    def begin_detected(self, name: str, findings: _native.Findings) -> int:
        """Begin a tensor of which a detector has told the changes; see ``deltawire.detect``."""
        index = self._entry(name)
        self._native.begin(index, findings)
        return index

    def add_detected(
        self, index: int, findings: _native.Findings, tiles: list[tuple[int, NativeMatrix, bytes]]
    ) -> list[tuple[str, bytes]]:
        """The next tiles of it, with the digests of their pieces before: how each was proven, and
        the digests after."""
        return self._native.add_after(index, findings, tiles)

    def add_proven(
        self, name: str, index: int, tiles: list[tuple[int, Partition | None, bytes, bytes]]
    ) -> None:
        """The next tiles of it, proven elsewhere: changes by class, digests before and after."""
        itemsize = ITEMSIZE[self._table[name][1]]
        self._native.add_proven(
            index,
            [
                (tile, None if p is None else to_parts(p, itemsize, name), before, after)
                for tile, p, before, after in tiles
            ],
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._native.abandon()
            self._opened.__exit__(kind, error, trace)
            return
        try:
            size, changed, chunks, base_state, result_state, hashes = self._native.finish()
        except BaseException as failure:
            self._opened.__exit__(type(failure), failure, failure.__traceback__)
            raise
        self._opened.__exit__(None, None, None)
        elements = dense = 0
        for _, dtype, shape in self._table.values():
            rows, cols = matrix_shape(shape)
            elements += rows * cols
            dense += rows * cols * ITEMSIZE[dtype]
        self.stats = DeltaStats(
            elements=elements,
            changed=changed,
            dense_bytes=dense,
            bytes=size,
            chunks=chunks,
            base_state=None if base_state is None else bytes(base_state),
            result_state=None if result_state is None else bytes(result_state),
            seconds=time.perf_counter() - self._begun,
            record_hashes=bytes(hashes),
        )


def _layout_of(tensor: Any, name: str) -> tuple[str, tuple[int, ...]]:
    if isinstance(tensor, tuple) and len(tensor) == 2 and isinstance(tensor[0], str):
        if tensor[0] not in ITEMSIZE:
            raise LayoutMismatch(
                f"dtype {tensor[0]!r} is not known; known are {', '.join(ITEMSIZE)}", tensor=name
            )
        return tensor[0], tuple(int(n) for n in tensor[1])
    view = as_view(tensor, name)
    return view.dtype, view.shape


def _value_bytes(values: Any, dtype: str, name: str) -> npt.NDArray[np.uint8]:
    if isinstance(values, bytes | bytearray | memoryview):
        return np.frombuffer(values, np.uint8)
    if isinstance(values, np.ndarray) and values.dtype == np.uint8:
        return np.ascontiguousarray(values).reshape(-1)
    view = as_view(values, name)
    # Same width is enough: BF16 values often come as int16 bits.
    if view.itemsize != ITEMSIZE[dtype]:
        raise LayoutMismatch(f"values are {view.dtype}, the tensor is {dtype}", tensor=name)
    return np.ascontiguousarray(view.data).reshape(-1)
