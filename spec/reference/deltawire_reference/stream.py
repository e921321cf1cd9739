"""Header, chunk, index and trailer, read front to back, every checksum before its bytes."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

from .classes import Partition, decode_classes
from .columns import COLUMNS, decode_columns
from .positions import decode_positions
from .primitives import (
    DICTIONARY,
    PAYLOAD_LIMIT,
    RECORD_LIMIT,
    TENSOR_LIMIT,
    Cursor,
    ReferenceFault,
    check_seal,
    corrupt,
    decode_map,
    decode_stage,
    digest_or_nil,
    text_map,
    typed,
    unzigzag,
)
from .tensors import Tensor
from .values import STEP, decode_values

MAGIC = b"\x93DWIRE\x1a\n"
END_MAGIC = b"DWE\n"
LZ4_HEADER = 1
CHUNK, INDEX, CLASSES = 1, 2, 4
HEADER_LENGTH, TRAILER_LENGTH = 24, 12
HEADER_KEYS = ("run", "version", "base_version", "base_state", "profile", "meta", *COLUMNS)
INDEX_KEYS = (
    "changed", "tensors", "tiles", "lengths", "digests", "base_state", "result_state",
)  # fmt: skip


@dataclass
class Header:
    run: str
    version: int
    base_version: int | None
    base_state: bytes | None
    profile: str
    meta: dict[str, str]
    tensors: list[Tensor]
    minor: int = 0
    required: int = 0
    optional: int = 0


@dataclass
class Chunk:
    """One record. ``values`` are new patterns, or steps.

    A record of type CLASSES has a ``partition``, all codecs 0, and steps in the order of the ranks.
    Its ``positions`` are None where only the base turns ranks into positions.
    """

    kind: int
    tensor: int
    tile: int
    position_codec: int
    position_stage: int
    value_codec: int
    value_stage: int
    base_digest: int | None
    result_digest: int | None
    changes: int
    positions: list[int] | None
    values: list[int]
    partition: Partition | None
    offset: int
    length: int

    @property
    def is_relative(self) -> bool:
        return self.kind == CLASSES or self.value_codec == STEP


@dataclass
class Index:
    """``digests`` are the low 32 bits of lane 0 of each tensor's."""

    changed: int
    chunks: list[tuple[int, int, int]]
    digests: list[int | None]
    base_state: bytes | None
    result_state: bytes | None


@dataclass
class Delta:
    header: Header
    chunks: list[Chunk] = field(default_factory=list)
    index: Index | None = None


def decode(data: bytes) -> Delta:
    """A whole delta, every requirement checked that needs no target."""
    cursor = Cursor(bytes(data))
    header = decode_header(cursor)
    delta = Delta(header)
    while True:
        offset = cursor.offset
        kind = cursor.take(1)[0]
        cursor.at -= 1
        if kind not in (CHUNK, CLASSES):
            break
        delta.chunks.append(decode_chunk(cursor, header))
        check_order(delta.chunks)
    if kind != INDEX:
        raise corrupt("F2", f"record type {kind} where a chunk or the index belongs", offset)
    delta.index = decode_index(cursor, header)
    length = cursor.offset - offset
    check_index(delta, offset)
    if decode_trailer(cursor) != length:
        raise corrupt("F21", f"the index has {length} bytes, not as many", cursor.offset)
    cursor.finish("trailer")
    return delta


def decode_header(cursor: Cursor) -> Header:
    start = cursor.at
    head = cursor.take(HEADER_LENGTH)
    major, minor, n, required, optional = struct.unpack("<HHIII", head[8:])
    if head[:8] != MAGIC:
        raise corrupt("F21", "not a delta", 0)
    if major != 1:
        raise ReferenceFault("unsupported", "F7", f"major version {major}", 8)
    if n > PAYLOAD_LIMIT:
        raise ReferenceFault("limit", "Limits", f"a header of {n} bytes", 12)
    payload = cursor.take(n)
    cursor.take(4)
    check_seal(cursor.data[start : cursor.at], start)
    if required & ~LZ4_HEADER:
        raise ReferenceFault("unsupported", "F7", f"required features {required:#x}", 16)
    at = HEADER_LENGTH
    payload = decode_stage(required & LZ4_HEADER, payload, PAYLOAD_LIMIT, at, DICTIONARY, "limit")
    fields = decode_map(payload, HEADER_KEYS, at)
    if fields["base_version"] is not None:
        typed(fields["base_version"], int, "base_version", at)
    if len(typed(fields["names"], list, "names", at)) > TENSOR_LIMIT:
        raise ReferenceFault("limit", "Limits", f"{len(fields['names'])} tensors", at)
    return Header(
        run=typed(fields["run"], str, "run", at),
        version=typed(fields["version"], int, "version", at),
        base_version=fields["base_version"],
        base_state=digest_or_nil(fields["base_state"], "base_state", at),
        profile=typed(fields["profile"], str, "profile", at),
        meta=text_map(fields["meta"], at),
        tensors=decode_columns(fields, at),
        minor=minor,
        required=required,
        optional=optional,
    )


def decode_chunk(cursor: Cursor, header: Header) -> Chunk:
    start, at = cursor.at, cursor.offset
    kind = cursor.take(1)[0]
    length = cursor.varint()
    if cursor.at - start + length + 4 > RECORD_LIMIT:
        raise ReferenceFault("limit", "Limits", "a chunk record above the limit", at)
    at_body = cursor.offset
    body = Cursor(cursor.take(length), at_body, "F27")
    cursor.take(4)
    record = cursor.data[start : cursor.at]
    check_seal(record, at)
    codecs, flags = body.take(2) if kind == CHUNK else (0, 2)
    numbers = tensor, tile, c = body.varint(), body.varint(), body.varint()
    if max(numbers) >> 32:
        raise corrupt("F10", f"tensor, tile and changes {numbers}", at)
    if tensor >= len(header.tensors):
        raise corrupt("F10", f"tensor {tensor} of {len(header.tensors)}", at)
    entry = header.tensors[tensor]
    if tile >= entry.tiles:
        raise corrupt("F10", f"tile {tile} of {entry.tiles}", at)
    row0, row1, col0, col1 = entry.box(tile)
    elements = (row1 - row0) * (col1 - col0)
    if not 1 <= c <= elements:
        raise corrupt("F10", f"{c} changes in {elements} elements", at)
    base = int.from_bytes(body.take(8), "little") if flags & 1 else None
    result = int.from_bytes(body.take(8), "little") if flags & 2 else None
    chunk = Chunk(
        kind, tensor, tile, codecs & 15, flags >> 2 & 3, codecs >> 4, flags >> 4,
        base, result, c, None, [], None, at, len(record),
    )  # fmt: skip
    if kind == CLASSES:
        partition = decode_classes(body, c, elements, row1 - row0, entry.dtype, entry.width)
        chunk.partition, chunk.values = partition, partition.steps
        if not partition.needs_base:
            chunk.positions = partition.groups[0].ranks[0]
        return chunk
    stored = body.take(body.varint())
    at_values = body.offset
    values = body.take(body.left)
    chunk.positions = decode_positions(
        chunk.position_codec, chunk.position_stage, stored, c, elements, at_values - len(stored)
    )
    chunk.values = decode_values(
        chunk.value_codec, chunk.value_stage, values, c, entry.width, at_values
    )
    if chunk.is_relative and base is None and result is None:
        raise corrupt("F12", "steps without a digest", at)
    return chunk


def check_order(chunks: list[Chunk]) -> None:
    """[F11]"""
    last = chunks[-1]
    before = [chunk.tile for chunk in chunks[:-1] if chunk.tensor == last.tensor]
    if not before:
        return
    if chunks[-2].tensor != last.tensor:
        raise corrupt("F11", f"tensor {last.tensor} comes twice", last.offset)
    if before[-1] >= last.tile:
        raise corrupt("F11", f"tile {last.tile} after tile {before[-1]}", last.offset)


def decode_index(cursor: Cursor, header: Header) -> Index:
    start, at = cursor.at, cursor.offset
    _, flags, reserved, n = struct.unpack("<BBHI", cursor.take(8))
    if n > PAYLOAD_LIMIT:
        raise ReferenceFault("limit", "Limits", f"an index of {n} bytes", at + 4)
    payload = cursor.take(n)
    cursor.take(4)
    check_seal(cursor.data[start : cursor.at], at)
    if flags & ~1 or reserved:
        raise corrupt("F2", "reserved bits of the index are not zero", at + 1)
    payload = decode_stage(flags & 1, payload, PAYLOAD_LIMIT, at + 8, DICTIONARY, "limit")
    fields = decode_map(payload, INDEX_KEYS, at + 8)
    index = Index(
        changed=typed(fields["changed"], int, "changed", at + 8),
        chunks=decode_places(fields, at + 8),
        digests=typed(fields["digests"], list, "digests", at + 8),
        base_state=digest_or_nil(fields["base_state"], "base_state", at + 8),
        result_state=digest_or_nil(fields["result_state"], "result_state", at + 8),
    )
    for low in index.digests:
        if low is not None and typed(low, int, "a digest", at + 8) >> 32:
            raise corrupt("F8", f"a digest of {low}", at + 8)
    if len(index.digests) != len(header.tensors):
        message = f"{len(index.digests)} digests for {len(header.tensors)} tensors"
        raise corrupt("F19", message, at + 8)
    return index


def decode_places(fields: dict[str, Any], at: int) -> list[tuple[int, int, int]]:
    """Tensor, tile and record length of each chunk. [F19]"""
    tensors, tiles, lengths = (
        Cursor(typed(fields[key], bytes, key, at), at, "F19")
        for key in ("tensors", "tiles", "lengths")
    )
    places: list[tuple[int, int, int]] = []
    tensor = 0
    while tensors.left:
        difference = unzigzag(tensors.varint())
        follows = places and difference == 0
        tensor += difference
        tile = tiles.varint() + (places[-1][1] + 1 if follows else 0)
        place = (tensor, tile, lengths.varint())
        if not all(0 <= number < 1 << 32 for number in place):
            raise corrupt("F19", f"a chunk at {place}", at)
        places.append(place)
    tiles.finish("last chunk's tile")
    lengths.finish("last chunk's length")
    return places


def check_index(delta: Delta, at: int) -> None:
    """[F19] [F20]"""
    index = delta.index
    assert index is not None
    if index.chunks != [(chunk.tensor, chunk.tile, chunk.length) for chunk in delta.chunks]:
        raise corrupt("F19", "the index names other chunks than the stream has", at)
    if index.changed != sum(chunk.changes for chunk in delta.chunks):
        raise corrupt("F19", "the index counts other changes than the stream has", at)
    check_base(delta.header, index, at)


def check_base(header: Header, index: Index, at: int) -> None:
    """[F20]"""
    states = (header.base_state, index.base_state)
    if None not in states and states[0] != states[1]:
        raise corrupt("F20", "header and index name different base states", at)


def decode_trailer(cursor: Cursor) -> int:
    """Length of the index record."""
    at = cursor.offset
    record = cursor.take(TRAILER_LENGTH)
    if record[8:] != END_MAGIC:
        raise corrupt("F21", "the end magic is missing", at + 8)
    check_seal(record[:8], at)
    return int.from_bytes(record[:4], "little")


def decode_range(data: bytes, number: int) -> Chunk:
    """Chunk ``number`` by way of the trailer and the index, without the chunks before it."""
    header_end = Cursor(data)
    header = decode_header(header_end)
    end = len(data) - TRAILER_LENGTH
    if end < header_end.at:
        raise corrupt("F21", "no room for a trailer", len(data))
    offset = end - decode_trailer(Cursor(data[end:], end))
    if offset < header_end.at:
        raise corrupt("F21", "the index does not begin behind the header", end)
    cursor = Cursor(data[offset:end], offset)
    if cursor.data[:1] != bytes([INDEX]):
        raise corrupt("F2", "not an index", offset)
    index = decode_index(cursor, header)
    cursor.finish("index")
    if offset - header_end.at != sum(length for _, _, length in index.chunks):
        raise corrupt("F19", "the chunks do not fill the stream", offset)
    check_base(header, index, offset)
    begin = header_end.at + sum(length for _, _, length in index.chunks[:number])
    tensor, tile, length = index.chunks[number]
    record = Cursor(data[begin : begin + length], begin, "F19")
    if record.data[:1] not in (bytes([CHUNK]), bytes([CLASSES])):
        raise corrupt("F2", "not a chunk", begin)
    chunk = decode_chunk(record, header)
    record.finish("chunk")
    if (chunk.tensor, chunk.tile) != (tensor, tile):
        raise corrupt("F19", "the index names another tile", begin)
    return chunk
