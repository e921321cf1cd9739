"""Writing and reading deltas: whole, as streams, and by range."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from . import _native
from .errors import LayoutMismatch
from .partition import Partition, from_parts, to_parts
from .sources import PathLike, Sink, is_path, open_delta, opened_sink, opened_tensors, placed
from .tensors import ITEMSIZE, TensorView, as_view, as_views, matrix_shape
from .types import Changes, DeltaInfo, DeltaStats, Limits, Profile, TensorInfo, Tiling

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
        progress: called with the number of dense bytes just done.

    Returns:
        Sizes and the state digests of both sides.

    Raises:
        LayoutMismatch: the two sides have different tensors; names the first.
        CorruptCheckpoint: a path that is not a valid checkpoint.
        StoreError: the sink fails; a path is then as before.

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
        base_state: state digest of the base, 16 bytes, where known; written into the header and
            checked at the end.

    Attributes:
        stats: ``DeltaStats``, after a regular end.
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
        self._opened = opened_sink(sink)
        out = self._opened.__enter__()
        try:
            self._native = _native.Writer(
                out,
                [
                    (name, dtype, list(shape), None)
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
            [(self._entry(name, base, new), base.data, new.data) for name, base, new in pairs],
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
        self._native.add_found(index, positions, values, None if view is None else view.data)

    def partitions(self, name: str, *, base: Any, new: Any) -> Iterator[Partition]:
        """Compare one tensor's two states tile by tile, without writing: what a scanner yields.

        The twin of a GPU scanner, and what ``add_partitions`` takes.

        Raises:
            LayoutMismatch: unknown name, or another dtype or shape.
        """
        old, after = as_view(base, name), as_view(new, name)
        index = self._entry(name, old, after)
        for tile in range(self._native.tiles(index)[0]):
            parts, _, result = self._native.partition(index, tile, old.data, after.data)
            if parts is not None:
                lane0 = int.from_bytes(result[:8], "little")
                yield from_parts(tile, parts, old.itemsize, lane0)

    def add_partitions(
        self, name: str, partitions: Iterable[Partition], *, base_digest: bytes, digest: bytes
    ) -> None:
        """Write changes of one tensor that are in classes already. Costs O(changes).

        Args:
            name: name in the table; each once.
            partitions: one for each tile that changes, tiles ascending.
            base_digest, digest: the tensor's state digest before and after, 16 bytes each, as
                ``tensor_digests`` gives.

        Raises:
            LayoutMismatch: a partition that contradicts itself or does not fit its tile; the
                writer is then finished.
        """
        index = self._entry(name)
        itemsize = ITEMSIZE[self._table[name][1]]
        items = [(p.tile, to_parts(p, itemsize, name), p.result) for p in partitions]
        self._native.add_partitions(index, base_digest, digest, items)

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
            size, changed, chunks, base_state, result_state = self._native.finish()
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


class Chunk:
    """Changes of one tile of one tensor; its checksum is verified.

    Attributes:
        tensor: name of the tensor.
        tile: number of the tile.
        box: ``((row, end), (col, end))`` in elements of the tensor's matrix.
        changes: number of changed elements.
        nbytes: bytes of the chunk in the delta.
        offset: its place in the delta.
        codec: names of its codecs, "positions+values", or "classes" for both.
    """

    def __init__(self, native: _native.Chunk, path: str | None = None) -> None:
        self._native = native
        self._path = path
        self.tensor = native.tensor
        self.tile = native.tile
        row, row_end, col, col_end = native.bounds
        self.box = ((row, row_end), (col, col_end))
        self.changes = native.changes
        self.nbytes = native.nbytes
        self.offset = native.offset
        self.codec = native.codec

    def __repr__(self) -> str:
        return f"Chunk({self.tensor!r}, tile={self.tile}, changes={self.changes}, {self.codec})"

    def positions(self, base: Any = None) -> npt.NDArray[np.int64]:
        """Changed elements as int64 positions, flat in the tensor, ascending in the tile.

        Args:
            base: the tensor before the chunk (torch, numpy or ``TensorView``). Needed where the
                codec is "classes", whose positions count within exponent classes of the base.

        Raises:
            WrongBase: the base is needed and not given, or is another.
        """
        view = None if base is None else as_view(base, self.tensor).data
        with placed(self._path):
            return np.frombuffer(self._native.positions(view), np.int64)

    def partition(self) -> Partition | None:
        """The changes by exponent class, without the base; None where the codec is another.

        Raises:
            CorruptDelta: the chunk's contents are malformed.
        """
        with placed(self._path):
            parts = self._native.partition()
        result = self._native.result
        if parts is None or result is None:
            return None
        return from_parts(self.tile, parts, self._native.itemsize, result)

    def apply_(self, target: Mapping[str, Any]) -> bool:
        """Change ``target[self.tensor]`` in place; all of the chunk or nothing.

        Returns:
            False where the tile had the result already.

        Raises:
            WrongBase: the tile holds neither base nor result.
            LayoutMismatch, TargetError: the target does not fit, or cannot be written.
            CorruptDelta: the chunk's contents are malformed.
        """
        from .apply import target_view

        view = target_view(target, self.tensor)
        with placed(self._path):
            return self._native.apply(view.data)


class StreamReader:
    """Reads a delta's chunks: pulled from a source, pushed as bytes arrive, or by range.

        for chunk in dw.StreamReader(path):      # pull
            chunk.apply_(target)

        reader = dw.StreamReader()               # push
        for data in connection:
            for chunk in reader.feed(data):
                chunk.apply_(target)
        reader.finish()

        reader.chunk(i)                          # by range (path, bytes, or after reading a file)

    Chunk by chunk, a delta is applied before its end has been seen; ``apply`` checks all of it
    first.

    Args:
        source: path, bytes-like object, or binary file object; None for the push form.
        limits: what to accept.

    Raises:
        CorruptDelta, UnsupportedDelta, LimitExceeded: with path and offset.
    """

    #: Bytes read at a time from a file object.
    _PIECE = 1 << 20

    def __init__(self, source: Any = None, *, limits: Limits | None = None) -> None:
        self._limits = limits
        self._delta: _native.Delta | None = None
        self._push: _native.PushReader | None = None
        self._file: Any = None
        self._path: str | None = None
        if source is None or (not is_path(source) and hasattr(source, "read")):
            self._file = source
            name = getattr(source, "name", None)
            self._path = name if isinstance(name, str) else None
            self._push = _native.PushReader(None if limits is None else limits.as_tuple())
        else:
            self._delta, self._path = open_delta(source, limits)

    def feed(self, data: Any) -> list[Chunk]:
        """Take the next bytes; returns the chunks that they complete. Push form only.

        Raises:
            CorruptDelta, UnsupportedDelta, LimitExceeded: and again on every later call.
        """
        if self._push is None:
            raise ValueError("feed() is for a reader without a source")
        with placed(self._path):
            chunks = self._push.feed(data if isinstance(data, bytes) else bytes(data))
        return [Chunk(chunk, self._path) for chunk in chunks]

    def finish(self) -> None:
        """Say that nothing more comes.

        Raises:
            CorruptDelta: the delta is not complete.
        """
        if self._push is not None:
            with placed(self._path):
                self._push.finish()

    def __iter__(self) -> Iterator[Chunk]:
        if self._delta is not None:
            for i in range(len(self._delta)):
                yield self.chunk(i)
            return
        if self._file is None:
            raise ValueError("a reader without a source gives its chunks from feed()")
        while data := self._file.read(self._PIECE):
            yield from self.feed(data)
        self.finish()

    def __len__(self) -> int:
        if self._delta is None:
            raise TypeError("the number of chunks is known only by range")
        return len(self._delta)

    def chunk(self, i: int) -> Chunk:
        """Chunk ``i`` in stream order, read by range.

        Raises:
            CorruptDelta: it is damaged, or not the one that the index names.
        """
        if self._delta is None:
            raise ValueError("chunk() needs a path or bytes as source")
        if not 0 <= i < len(self._delta):
            raise IndexError(f"chunk {i} of a delta with {len(self._delta)} chunks")
        with placed(self._path):
            return Chunk(self._delta.chunk(i), self._path)

    @property
    def header(self) -> dict[str, Any]:
        """What the header says: run, version, base_version, profile, meta, tensors.

        Raises:
            ValueError: push form, and the header has not arrived yet.
        """
        if self._delta is not None:
            return self._delta.info()
        if self._push is None:
            raise ValueError("the reader has no source")
        return self._push.header()

    @property
    def info(self) -> DeltaInfo:
        """All about the delta, by range; reads and checks every chunk."""
        if self._delta is None:
            raise ValueError("info needs a path or bytes as source")
        with placed(self._path):
            return _describe(self._delta, self._path)


def inspect(source: Any, *, limits: Limits | None = None) -> DeltaInfo:
    """What a delta holds; every checksum in it is verified.

    Args:
        source: path, bytes-like object, or binary file object (read to its end).
        limits: what to accept.

    Raises:
        CorruptDelta, UnsupportedDelta, LimitExceeded: with path and offset.
        StoreError: the file cannot be read.
    """
    return StreamReader(_whole(source), limits=limits).info


def _whole(source: Any) -> Any:
    """A file object's bytes, anything else as it is."""
    return source.read() if not is_path(source) and hasattr(source, "read") else source


def _describe(delta: _native.Delta, path: str | None) -> DeltaInfo:
    info = delta.info()
    codecs: Counter[str] = Counter()
    changed: Counter[int] = Counter()
    chunks: Counter[int] = Counter()
    size: Counter[int] = Counter()
    digests: list[int | None] = info["digests"]
    told: list[int | None] = list(info["starts"])
    for tensor, _tile, changes, length, codec, result in delta.chunk_table():
        sum_ = told[tensor]
        told[tensor] = None if sum_ is None or result is None else sum_ + result
        codecs[codec] += 1
        changed[tensor] += changes
        chunks[tensor] += 1
        size[tensor] += length

    def lane0(i: int) -> bytes | None:
        """Low half of lane 0 after the delta: in the index, or told by the chunks of all tiles."""
        digest, sum_ = digests[i], told[i]
        known = info["result_state"] is not None and chunks[i] == info["tiles"][i]
        if digest is None and known and sum_ is not None:
            digest = sum_ % 2**32
        return None if digest is None else digest.to_bytes(4, "little")

    tensors = [
        TensorInfo(
            name=name,
            dtype=dtype,
            shape=tuple(shape),
            tile=(tile[0], tile[1]),
            elements=elements,
            changed=changed[i],
            chunks=chunks[i],
            bytes=size[i],
            digest=lane0(i),
        )
        for i, (name, dtype, shape, tile, elements, _) in enumerate(info["tensors"])
    ]
    return DeltaInfo(
        path=path,
        format=info["format"],
        run=info["run"],
        version=info["version"],
        base_version=info["base_version"],
        profile=info["profile"],
        meta=info["meta"],
        bytes=info["bytes"],
        header_bytes=info["header_bytes"],
        index_bytes=info["index_bytes"],
        elements=sum(t.elements for t in tensors),
        changed=info["changed"],
        chunks=info["chunks"],
        dense_bytes=sum(entry[5] for entry in info["tensors"]),
        base_state=info["base_state"],
        result_state=info["result_state"],
        tensors=tensors,
        codecs=dict(codecs.most_common()),
    )
