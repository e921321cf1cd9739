"""Reading deltas: chunk by chunk, as bytes arrive, by range, and what they hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _native
from .digest import PRIME
from .partition import Partition, from_parts
from .sources import is_path, open_delta, placed
from .tensors import as_view
from .types import DeltaInfo, Limits, TensorInfo


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
        view = None if base is None else as_view(base, self.tensor).native
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
            return self._native.apply(view.native)


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
            return describe(self._delta, self._path)


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


def describe(delta: _native.Delta, path: str | None) -> DeltaInfo:
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
            digest = sum_ % PRIME % 2**32
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
