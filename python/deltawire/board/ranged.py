"""Fetching only those chunks of a delta that a rank's shards need."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

from .. import _native
from ..apply import matching_views
from ..errors import UntrustedDelta
from ..tensors import Shard, TensorView, as_view

if TYPE_CHECKING:
    from .board import Board
    from .manifest import PartRef

#: A target, or several: of a tensor each holds one shard.
Needs: TypeAlias = Mapping[str, Any] | Sequence[Mapping[str, Any]]

#: Smaller deltas are fetched whole: one request costs less than several.
WORTH_BYTES = 128 << 10
#: Bytes at the beginning and at the end that are read first; headers and indexes are seldom longer.
_FIRST_BYTES = 4 << 10
#: Bytes of chunks that are fetched together.
_BATCH_BYTES = 8 << 20
#: What a header begins with, and what a trailer is.
_FIXED_BYTES, _TRAILER_BYTES, _CRC_BYTES = 24, 12, 4
_HASH_BYTES = 32


def is_partial(target: Mapping[str, Any]) -> bool:
    """Whether some tensor of a target is a shard."""
    shards = (tensor for tensor in target.values() if isinstance(tensor, Shard | TensorView))
    return any(not as_view(tensor).whole for tensor in shards)


def needed_chunks(delta: _native.Delta, target: Needs) -> list[tuple[int, int, int]]:
    """Number, offset and bytes of each chunk that a rank needs, in the order of the delta.

    Args:
        target: names to tensors or shards, or several such mappings; tensors of the delta that
            are in none are not needed.

    Raises:
        LayoutMismatch: a tensor has another dtype or shape, or a shard cuts tiles.
    """
    header = delta.info()
    needed: set[tuple[int, int, int]] = set()
    for each in [target] if isinstance(target, Mapping) else target:
        views = matching_views(header, each, partial=True)
        needed.update(delta.needed([view.native for view in views.values()]))
    return sorted(needed)


def fetch_needed(board: Board, item: PartRef, target: Needs, file: BinaryIO, at: int = 0) -> int:
    """Write those records of a delta into ``file``, at their places, that ``target`` needs.

    What is not needed is left as a hole. Every record is checked with its BLAKE3, which the
    manifest vouches for.

    Args:
        item: with ``records``.
        target: as for :func:`needed_chunks`.
        file: unbuffered reading by another descriptor must be possible, and it must reach to the
            end of the delta.
        at: where in the file the delta begins.

    Returns:
        Bytes fetched.

    Raises:
        UntrustedDelta: other bytes than the manifest vouches for.
        CorruptDelta, LayoutMismatch, StoreError.
    """
    return _Fetch(board, item, file, at).run(target)


def fetch_ends(board: Board, item: PartRef, file: BinaryIO, at: int) -> int:
    """As :func:`fetch_needed`, but only the header, and index and trailer."""
    fetch = _Fetch(board, item, file, at)
    fetch.ends()
    return fetch.fetched


class _Fetch:
    def __init__(self, board: Board, item: PartRef, file: BinaryIO, at: int) -> None:
        assert item.records is not None
        self._store = board.store
        self._place = f"{board.url.rstrip('/')}/{item.path}"
        self._item = item
        self._file = file
        self._at = at
        self.fetched = item.records.bytes
        raw = io.BytesIO()
        self._store.fetch(item.records.path, item.records.bytes, item.records.blake3, raw)
        hashes = raw.getvalue()
        self._hashes = [hashes[at : at + _HASH_BYTES] for at in range(0, len(hashes), _HASH_BYTES)]

    def run(self, target: Needs) -> int:
        self.ends()
        path = f"/dev/fd/{self._file.fileno()}"
        (delta,) = _native.Delta.slices(path, [(self._at, self._item.bytes, self._place)])
        if len(delta) + 2 != len(self._hashes):
            raise self._untrusted(f"{len(self._hashes)} hashes for {len(delta)} chunks")
        for batch in _batches(needed_chunks(delta, target)):
            ranges = [(offset, offset + length) for _, offset, length in batch]
            found = self._read(ranges)
            for (chunk, offset, _), record in zip(batch, found, strict=True):
                self._keep(chunk + 1, offset, record)
        return self.fetched

    def ends(self) -> None:
        """Fetch the header, and index and trailer together."""
        size = self._item.bytes
        back = max(0, size - _FIRST_BYTES)
        head, tail = self._read([(0, min(_FIRST_BYTES, size)), (back, size)])
        header = _FIXED_BYTES + int.from_bytes(head[12:16], "little") + _CRC_BYTES
        end = int.from_bytes(tail[-_TRAILER_BYTES:][:4], "little") + _TRAILER_BYTES
        if header + end > size:
            raise self._untrusted("it is shorter than it says")
        if header > len(head):
            (head,) = self._read([(0, header)])
        if end > len(tail):
            (tail,) = self._read([(size - end, size)])
        self._keep(0, 0, head[:header])
        self._keep(len(self._hashes) - 1, size - end, tail[-end:])

    def _read(self, ranges: list[tuple[int, int]]) -> list[bytes]:
        self.fetched += sum(end - start for start, end in ranges)
        return self._store.read_ranges(self._item.path, ranges)

    def _keep(self, number: int, offset: int, record: bytes) -> None:
        if _native.blake3(record) != self._hashes[number]:
            raise self._untrusted(f"record {number} has another BLAKE3 than the one vouched for")
        os.pwrite(self._file.fileno(), record, self._at + offset)

    def _untrusted(self, message: str) -> UntrustedDelta:
        return UntrustedDelta(f"{message}; fetch it again, or tell the publisher", path=self._place)


def _batches(needed: list[tuple[int, int, int]]) -> Iterator[list[tuple[int, int, int]]]:
    batch: list[tuple[int, int, int]] = []
    size = 0
    for chunk in needed:
        batch.append(chunk)
        size += chunk[2]
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
