"""What all competitors share: tensors as BF16 bit matrices, one lean envelope, zstd and LZ4.

A layout turns one tensor's change into byte streams and back; a framing compresses the streams of
all tensors and says where they lie. The published formats each carry a header of their own, with
shapes, offsets and digests; here every one gets the same small header (names and stream lengths,
zstd-compressed), so that sizes compare what is said about the changes. That favours competitors.
"""

from __future__ import annotations

import json
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

import lz4.block  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt
import zstandard

#: A tensor as a contiguous matrix (rows, columns) of BF16 bit patterns.
Bits = npt.NDArray[np.uint16]
Tensors = Mapping[str, Bits]
Stream = npt.NDArray[Any]

ZSTD_LEVEL = 1

In = TypeVar("In")
Out = TypeVar("Out")


class Layout(Protocol):
    """How the change of one tensor is written down."""

    def pack(self, old: Bits, new: Bits) -> Sequence[Stream]:
        """Streams that lead from ``old`` to ``new``; none where they are equal."""
        ...

    def unpack(self, streams: Sequence[memoryview], target: Bits) -> None:
        """Change ``target``, which holds the old state, in place."""
        ...


class Codec(ABC):
    """A whole format.

    Attributes:
        name: as it stands in the table.
        about: one line on the layout and who uses it.
    """

    def __init__(self, name: str, about: str, layout: Layout) -> None:
        self.name = name
        self.about = about
        self.layout = layout

    @abstractmethod
    def encode(self, base: Tensors, new: Tensors, threads: int = 1) -> bytes:
        """Everything that is sent, comparison of the dense tensors included."""

    @abstractmethod
    def decode(self, delta: bytes, target: Tensors, threads: int = 1) -> None:
        """Bring ``target``, which holds the base, to the new state in place."""

    def packed(self, base: Tensors, new: Tensors, threads: int) -> list[tuple[str, list[Stream]]]:
        """Names and streams of the tensors that changed."""
        pairs = [(name, base[name], fresh) for name, fresh in new.items()]
        streams = spread(lambda pair: list(self.layout.pack(pair[1], pair[2])), pairs, threads)
        return [(pair[0], parts) for pair, parts in zip(pairs, streams, strict=True) if parts]

    def unpacked(
        self, parts: Iterable[tuple[str, list[memoryview]]], target: Tensors, threads: int
    ) -> None:
        """Apply the streams of every tensor."""
        spread(lambda part: self.layout.unpack(part[1], target[part[0]]), list(parts), threads)


def spread(do: Callable[[In], Out], items: Sequence[In], threads: int) -> list[Out]:
    """``do`` for each item, on that many threads (numpy, zstd and LZ4 release the lock)."""
    if threads == 1:
        return [do(item) for item in items]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(do, items))


def with_header(entries: list[list[Any]], payload: Iterable[Any]) -> bytes:
    """Length of the header, the header, the payload."""
    header = zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(
        json.dumps(entries, separators=(",", ":")).encode()
    )
    return b"".join([struct.pack("<I", len(header)), header, *payload])


def split_header(delta: bytes) -> tuple[list[list[Any]], memoryview]:
    """What ``with_header`` put together."""
    view = memoryview(delta)
    (length,) = struct.unpack_from("<I", view)
    entries: list[list[Any]] = json.loads(
        zstandard.ZstdDecompressor().decompress(view[4 : 4 + length])
    )
    return entries, view[4 + length :]


def cut(data: memoryview, lengths: Iterable[int]) -> list[memoryview]:
    """Consecutive pieces of these lengths."""
    pieces = []
    start = 0
    for length in lengths:
        pieces.append(data[start : start + length])
        start += length
    return pieces


class Plain(Codec):
    """Streams as they are, one after another: the first streams of all tensors, then the second.

    The published formats go tensor by tensor. In models as large as theirs a stream fills many zstd
    blocks; the tensors here are small, and streams of different kinds would share a block.
    """

    def _close(self, payload: bytes, threads: int) -> bytes:
        return payload

    def _open(self, payload: memoryview) -> memoryview:
        return payload

    def encode(self, base: Tensors, new: Tensors, threads: int = 1) -> bytes:
        parts = self.packed(base, new, threads)
        entries = [[name, *(stream.nbytes for stream in streams)] for name, streams in parts]
        by_kind = zip(*(streams for _, streams in parts), strict=True)
        joined = b"".join(stream.data for streams in by_kind for stream in streams)
        return with_header(entries, [self._close(joined, threads)])

    def decode(self, delta: bytes, target: Tensors, threads: int = 1) -> None:
        entries, payload = split_header(delta)
        names = [entry[0] for entry in entries]
        by_kind = list(zip(*(entry[1:] for entry in entries), strict=True))
        pieces = cut(self._open(payload), (length for lengths in by_kind for length in lengths))
        kinds = [pieces[i : i + len(names)] for i in range(0, len(pieces), max(len(names), 1))]
        parts = [(name, [kind[i] for kind in kinds]) for i, name in enumerate(names)]
        self.unpacked(parts, target, threads)


class OneFrame(Plain):
    """All streams in one zstd frame, as PULSE and PULSEPT1 have it, kinds together."""

    def _close(self, payload: bytes, threads: int) -> bytes:
        workers = threads if threads > 1 else 0
        return zstandard.ZstdCompressor(level=ZSTD_LEVEL, threads=workers).compress(payload)

    def _open(self, payload: memoryview) -> memoryview:
        return memoryview(zstandard.ZstdDecompressor().decompress(payload))


class PerTensor(Codec):
    """Each stream compressed alone, as where every tensor is sent for itself.

    Args:
        stage: "zstd" or "lz4".
    """

    def __init__(self, name: str, about: str, layout: Layout, stage: str) -> None:
        super().__init__(name, about, layout)
        self.stage = stage

    def _press(self, stream: Stream) -> bytes:
        if self.stage == "lz4":
            return bytes(lz4.block.compress(stream.data, store_size=False))
        return zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(stream.data)

    def _expand(self, stored: memoryview, nbytes: int) -> memoryview:
        if self.stage == "lz4":
            return memoryview(lz4.block.decompress(stored, uncompressed_size=nbytes))
        return memoryview(zstandard.ZstdDecompressor().decompress(stored))

    def encode(self, base: Tensors, new: Tensors, threads: int = 1) -> bytes:
        def one(name: str) -> list[tuple[int, bytes]]:
            streams = self.layout.pack(base[name], new[name])
            return [(stream.nbytes, self._press(stream)) for stream in streams]

        names = list(new)
        parts = [
            (name, pressed)
            for name, pressed in zip(names, spread(one, names, threads), strict=True)
            if pressed
        ]
        entries = [
            [name, *(n for size, stored in pressed for n in (size, len(stored)))]
            for name, pressed in parts
        ]
        return with_header(entries, (stored for _, pressed in parts for _, stored in pressed))

    def decode(self, delta: bytes, target: Tensors, threads: int = 1) -> None:
        entries, payload = split_header(delta)
        stored = iter(cut(payload, (n for entry in entries for n in entry[2::2])))
        parts = [(entry[0], [(next(stored), size) for size in entry[1::2]]) for entry in entries]

        def one(part: tuple[str, list[tuple[memoryview, int]]]) -> None:
            streams = [self._expand(piece, size) for piece, size in part[1]]
            self.layout.unpack(streams, target[part[0]])

        spread(one, parts, threads)
