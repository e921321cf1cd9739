"""Parts of an anchor's files, each block checked before its bytes are used."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from .. import _native
from ..checkpoint.header import MAX_HEADER_BYTES, PREFIX_BYTES, Entry, parse_header
from ..errors import CorruptCheckpoint, UntrustedDelta
from ..tensors import Bytes, TensorView
from .transfer import fetch_object

if TYPE_CHECKING:
    from .board import Board
    from .manifest import AnchorFile

#: First byte, and the one behind the last.
Range: TypeAlias = tuple[int, int]

#: Bytes of one piece of a tensor.
PIECE_BYTES = 8 << 20
#: Bytes of blocks that are fetched, and held, together.
_BATCH_BYTES = 32 << 20
_HASH_BYTES = 32


class BlockFile:
    """A file of an anchor that is read in whole blocks, each checked with its BLAKE3.

    Attributes:
        fetched: bytes fetched so far, those of the hashes among them.
    """

    def __init__(self, board: Board, file: AnchorFile) -> None:
        """Fetch the hashes.

        Args:
            file: with ``blocks``.

        Raises:
            UntrustedDelta: other hashes than the record vouches for.
            StoreError: they cannot be read.
        """
        assert file.blocks is not None
        self._store = board.store
        self._file = file
        self._place = f"{board.url.rstrip('/')}/{file.path}"
        self._size = file.blocks.block_bytes
        raw = io.BytesIO()
        fetch_object(board, file.blocks, raw, None)
        self._hashes = raw.getvalue()
        self.fetched = file.blocks.bytes
        self._blocks: dict[int, bytes] = {}

    def read(self, ranges: Sequence[Range]) -> list[bytes]:
        """The bytes of some ranges; neighbours are best asked for together, in ascending order.

        Raises:
            UntrustedDelta: a block has another BLAKE3 than the one vouched for.
            StoreError: it cannot be read.
        """
        found = []
        for group in self._groups(ranges):
            self._load(group)
            found += [self._cut(begin, end) for begin, end in group]
        return found

    def check(self, ranges: Sequence[Range]) -> None:
        """As :meth:`read`, but only to see that the bytes are right."""
        for group in self._groups(ranges):
            self._load(group)

    def forget(self) -> None:
        """Drop the blocks of the last ranges, which are kept for those that follow."""
        self._blocks = {}

    def header(self) -> tuple[Entry, ...]:
        """The tensors of a weight file.

        Raises:
            CorruptCheckpoint: no valid safetensors file.
            UntrustedDelta, StoreError: as :meth:`read`.
        """
        return read_header(
            lambda begin, end: self.read([(begin, end)])[0], self._file.bytes, self._place
        )

    def _numbers(self, begin: int, end: int) -> range:
        return range(begin // self._size, -(-end // self._size)) if begin < end else range(0)

    def _groups(self, ranges: Sequence[Range]) -> Iterator[list[Range]]:
        group: list[Range] = []
        blocks: set[int] = set()
        for item in ranges:
            more = blocks.union(self._numbers(*item))
            if group and len(more) * self._size > _BATCH_BYTES:
                yield group
                group, more = [], set(self._numbers(*item))
            group.append(item)
            blocks = more
        if group:
            yield group

    def _load(self, ranges: list[Range]) -> None:
        """Hold just the blocks that cover these ranges."""
        needed = {number for item in ranges for number in self._numbers(*item)}
        missing = sorted(needed - self._blocks.keys())
        self._blocks = {number: self._blocks[number] for number in needed & self._blocks.keys()}
        places = [
            (number * self._size, min((number + 1) * self._size, self._file.bytes))
            for number in missing
        ]
        if not places:
            return
        for number, block in zip(
            missing, self._store.read_ranges(self._file.path, places), strict=True
        ):
            self.fetched += len(block)
            if _native.blake3(block) != self._hashes[number * _HASH_BYTES :][:_HASH_BYTES]:
                raise UntrustedDelta(
                    f"block {number} has another BLAKE3 than the one vouched for; fetch it again, "
                    "or tell the publisher",
                    path=self._place,
                )
            self._blocks[number] = block

    def _cut(self, begin: int, end: int) -> bytes:
        parts = []
        for number in self._numbers(begin, end):
            first = number * self._size
            parts.append(self._blocks[number][max(begin - first, 0) : end - first])
        return b"".join(parts)


class Wanted:
    """A sink for a whole weight file that keeps the bytes of some tensors.

    What it keeps is to be used only once all of the file was seen and its BLAKE3 is right.
    """

    def __init__(
        self, length: int, place: str, ranges: Callable[[tuple[Entry, ...]], list[Range]]
    ) -> None:
        """For a file of ``length`` bytes.

        Args:
            ranges: which bytes to keep of a file with these tensors, in any order.
        """
        self._length = length
        self._place = place
        self._choose = ranges
        self._head = bytearray()
        self._at = 0
        self._ranges: list[tuple[Range, bytearray]] | None = None
        self._error: CorruptCheckpoint | None = None

    def write(self, data: bytes) -> int:
        """Take the next bytes."""
        if self._ranges is None:
            # Until the header is whole; at most some pieces more than it.
            self._head += data
            self._begin()
        else:
            self._keep(data)
        return len(data)

    def found(self) -> list[bytes]:
        """The bytes of the ranges, in their order.

        Raises:
            CorruptCheckpoint: no valid safetensors file.
        """
        if self._error is not None:
            raise self._error
        if self._ranges is None:
            raise CorruptCheckpoint("too short for a safetensors file", path=self._place, offset=0)
        return [bytes(kept) for _, kept in self._ranges]

    def _begin(self) -> None:
        head = self._head
        if len(head) < PREFIX_BYTES:
            return
        end = PREFIX_BYTES + int.from_bytes(head[:PREFIX_BYTES], "little")
        if end <= min(MAX_HEADER_BYTES + PREFIX_BYTES, self._length) and len(head) < end:
            return
        try:
            entries = read_header(lambda a, b: bytes(head[a:b]), self._length, self._place)
            ranges = self._choose(entries)
        except CorruptCheckpoint as error:
            # If these are not the bytes vouched for, that is what is wrong.
            self._error, ranges = error, []
        self._ranges = [(item, bytearray()) for item in ranges]
        self._head = bytearray()
        self._keep(bytes(head))

    def _keep(self, data: bytes) -> None:
        assert self._ranges is not None
        first, last = self._at, self._at + len(data)
        for (begin, end), kept in self._ranges:
            if begin < last and end > first:
                kept += data[max(begin - first, 0) : end - first]
        self._at = last


def read_header(read: Callable[[int, int], bytes], length: int, place: str) -> tuple[Entry, ...]:
    """The tensors of a weight file of ``length`` bytes.

    Args:
        read: gives its bytes from the first number up to the second.
        place: the file's name, for errors.

    Raises:
        CorruptCheckpoint: no valid safetensors file.
    """
    if length < PREFIX_BYTES:
        raise CorruptCheckpoint("too short for a safetensors file", path=place, offset=0)
    size = int.from_bytes(read(0, PREFIX_BYTES), "little")
    if size > min(MAX_HEADER_BYTES, length - PREFIX_BYTES):
        raise CorruptCheckpoint(f"a header of {size} bytes is claimed", path=place, offset=0)
    return parse_header(read(PREFIX_BYTES, PREFIX_BYTES + size), length, place).entries


def pieces(view: TensorView) -> Iterator[tuple[Bytes, int]]:
    """A view in pieces of at most ``PIECE_BYTES``, and where they begin in the tensor's bytes."""
    data = view.data
    if data.size == 0:
        return
    stride = view.cols * view.itemsize
    row, col = view.corner or (0, 0)
    width, first = data.shape[1], row * stride + col * view.itemsize
    if width < stride:
        # A shard of columns: each row by itself.
        for number, line in enumerate(data):
            for begin in range(0, width, PIECE_BYTES):
                yield line[begin : begin + PIECE_BYTES], first + number * stride + begin
        return
    if data.flags.c_contiguous:
        data = data.reshape(1, -1)
        width = data.shape[1]
    if width >= PIECE_BYTES:
        for number, line in enumerate(data):
            for begin in range(0, width, PIECE_BYTES):
                yield line[begin : begin + PIECE_BYTES], first + number * width + begin
        return
    step = PIECE_BYTES // width
    for begin in range(0, len(data), step):
        yield data[begin : begin + step], first + begin * width
