"""Header, chunk, index and trailer, read front to back, every checksum before its bytes."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

from . import digest
from .positions import decode_positions
from .primitives import (
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
)
from .ranks import Ranks
from .tensors import Tensor
from .values import GROUPED, STEP, decode_values

MAGIC = b"\x93DWIRE\x1a\n"
END_MAGIC = b"DWE\n"
LZ4_HEADER = 1
CHUNK, INDEX, TRAILER = 1, 2, 3


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
    """One record. ``values`` are steps when ``value_codec`` is STEP or GROUPED, else new patterns.

    ``positions`` is None where they are ranks in several classes: only the base turns those into
    positions.
    """

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
    ranks: Ranks | None
    values: list[int]
    offset: int
    length: int


@dataclass
class Index:
    count: int
    changed: int
    chunks: list[tuple[int, int, int]]
    digests: list[bytes | None]
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
        if kind != CHUNK:
            break
        delta.chunks.append(decode_chunk(cursor, header))
        check_order(delta.chunks)
    if kind != INDEX:
        raise corrupt("F2", f"record type {kind} where a chunk or the index belongs", offset)
    delta.index = decode_index(cursor, header)
    length = cursor.offset - offset
    check_index(delta, offset)
    check_trailer(decode_trailer(cursor), offset, length, cursor.offset - 24)
    cursor.finish("trailer")
    return delta


def decode_header(cursor: Cursor) -> Header:
    start = cursor.at
    head = cursor.take(32)
    major, minor, n, required, optional = struct.unpack("<HHIQQ", head[8:])
    if head[:8] != MAGIC:
        raise corrupt("F21", "not a delta", 0)
    if major != 1:
        raise ReferenceFault("unsupported", "F7", f"major version {major}", 8)
    if required & ~LZ4_HEADER:
        raise ReferenceFault("unsupported", "F7", f"required features {required:#x}", 16)
    if n > PAYLOAD_LIMIT:
        raise ReferenceFault("limit", "Limits", f"a header of {n} bytes", 12)
    payload = cursor.take(n)
    cursor.take(4)
    check_seal(cursor.data[start : cursor.at], start)
    payload = decode_stage(required & LZ4_HEADER, payload, PAYLOAD_LIMIT, 32, limit=True)
    fields = decode_map(
        payload,
        ("run", "version", "base_version", "base_state", "profile", "meta", "tensors"),
        32,
    )
    if fields["base_version"] is not None:
        typed(fields["base_version"], int, "base_version", 32)
    return Header(
        run=typed(fields["run"], str, "run", 32),
        version=typed(fields["version"], int, "version", 32),
        base_version=fields["base_version"],
        base_state=digest_or_nil(fields["base_state"], "base_state", 32),
        profile=typed(fields["profile"], str, "profile", 32),
        meta=text_map(fields["meta"], 32),
        tensors=decode_table(typed(fields["tensors"], list, "tensors", 32)),
        minor=minor,
        required=required,
        optional=optional,
    )


def decode_table(entries: list[Any]) -> list[Tensor]:
    """The tensor table. [F4] [F5] [F6] [F8] [F9]"""
    if len(entries) > TENSOR_LIMIT:
        raise ReferenceFault("limit", "Limits", f"{len(entries)} tensors", 32)
    table = []
    for entry in entries:
        if type(entry) is not list or len(entry) != 5:
            raise corrupt("F8", "a table entry of other than five fields", 32)
        name, dtype, width, shape, tile = entry
        for dims in (shape, tile):
            for dim in typed(dims, list, "shape or tile", 32):
                typed(dim, int, "a dimension", 32)
        if len(tile) != 2:
            raise corrupt("F8", f"a tile of {len(tile)} dimensions", 32)
        tensor = Tensor(
            typed(name, str, "name", 32),
            typed(dtype, str, "dtype", 32),
            typed(width, int, "width", 32),
            tuple(shape),
            (tile[0], tile[1]),
        )
        tensor.check(32)
        table.append(tensor)
    if len({tensor.name for tensor in table}) != len(table):
        raise corrupt("F8", "a tensor name is repeated", 32)
    return table


def decode_chunk(cursor: Cursor, header: Header) -> Chunk:
    start, at = cursor.at, cursor.offset
    head = cursor.take(24)
    _, codecs_p, codecs_v, flags, tensor, tile, c, p, v = struct.unpack("<4B5I", head)
    if flags & ~3:
        raise corrupt("F2", f"flags {flags:#x}", at + 3)
    digests = 8 * (flags & 1) + 8 * (flags >> 1 & 1)
    if 24 + digests + p + v + 4 > RECORD_LIMIT:
        raise ReferenceFault("limit", "Limits", "a chunk record above the limit", at)
    body = Cursor(cursor.take(digests + p + v), at + 24)
    cursor.take(4)
    record = cursor.data[start : cursor.at]
    check_seal(record, at)
    if tensor >= len(header.tensors):
        raise corrupt("F10", f"tensor {tensor} of {len(header.tensors)}", at + 4)
    entry = header.tensors[tensor]
    if tile >= entry.tiles:
        raise corrupt("F10", f"tile {tile} of {entry.tiles}", at + 8)
    row0, row1, col0, col1 = entry.box(tile)
    elements = (row1 - row0) * (col1 - col0)
    if not 1 <= c <= elements:
        raise corrupt("F10", f"{c} changes in {elements} elements", at + 12)
    base = struct.unpack("<Q", body.take(8))[0] if flags & 1 else None
    result = struct.unpack("<Q", body.take(8))[0] if flags & 2 else None
    if codecs_v & 15 in (STEP, GROUPED) and base is None:
        raise corrupt("F12", "steps without a base digest", at + 3)
    at_p = body.offset
    positions: list[int] | Ranks | None = decode_positions(
        codecs_p & 15, codecs_p >> 4, body.take(p), c, elements, entry.dtype, at_p
    )
    ranks, counts = None, [c]
    if isinstance(positions, Ranks):
        ranks, positions = positions, None
        counts = [len(group) for group in ranks.groups]
        if ranks.top is None:
            positions = ranks.groups[0]
        elif base is None:
            raise corrupt("F12", "ranks in several classes without a base digest", at + 3)
    at_v = body.offset
    values = decode_values(codecs_v & 15, codecs_v >> 4, body.take(v), counts, entry.width, at_v)
    return Chunk(
        tensor, tile, codecs_p & 15, codecs_p >> 4, codecs_v & 15, codecs_v >> 4,
        base, result, c, positions, ranks, values, at, len(record),
    )  # fmt: skip


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
    if flags & ~1 or reserved:
        raise corrupt("F2", "reserved bits of the index are not zero", at + 1)
    if n > PAYLOAD_LIMIT:
        raise ReferenceFault("limit", "Limits", f"an index of {n} bytes", at + 4)
    payload = cursor.take(n)
    cursor.take(4)
    check_seal(cursor.data[start : cursor.at], at)
    payload = decode_stage(flags, payload, PAYLOAD_LIMIT, at + 8, limit=True)
    fields = decode_map(
        payload,
        ("count", "changed", "chunks", "digests", "base_state", "result_state"),
        at + 8,
    )
    rows = Cursor(typed(fields["chunks"], bytes, "chunks", at + 8), at + 8, "F19")
    chunks = []
    while rows.left:
        chunks.append((rows.varint(), rows.varint(), rows.varint()))
    digests = typed(fields["digests"], list, "digests", at + 8)
    index = Index(
        count=typed(fields["count"], int, "count", at + 8),
        changed=typed(fields["changed"], int, "changed", at + 8),
        chunks=chunks,
        digests=[digest_or_nil(d, "digests", at + 8) for d in digests],
        base_state=digest_or_nil(fields["base_state"], "base_state", at + 8),
        result_state=digest_or_nil(fields["result_state"], "result_state", at + 8),
    )
    if len(digests) != len(header.tensors):
        raise corrupt("F19", f"{len(digests)} digests, {len(header.tensors)} tensors", at + 8)
    return index


def check_index(delta: Delta, at: int) -> None:
    """[F19] [F20]"""
    index = delta.index
    assert index is not None
    if index.count != len(delta.chunks) or index.chunks != [
        (chunk.tensor, chunk.tile, chunk.length) for chunk in delta.chunks
    ]:
        raise corrupt("F19", "the index names other chunks than the stream has", at)
    if index.changed != sum(chunk.changes for chunk in delta.chunks):
        raise corrupt("F19", "the index counts other changes than the stream has", at)
    states = (delta.header.base_state, index.base_state)
    if None not in states and states[0] != states[1]:
        raise corrupt("F20", "header and index name different base states", at)
    known = [digest.loaded(d) for d in index.digests if d is not None]
    if index.result_state is not None and len(known) == len(index.digests):
        total = digest.add((0, 0), *known)
        if digest.stored(total) != index.result_state:
            raise corrupt("F20", "the digests do not add up to the result state", at)


def decode_trailer(cursor: Cursor) -> tuple[int, int]:
    """Length and offset of the index record."""
    at = cursor.offset
    record = cursor.take(24)
    if record[20:] != END_MAGIC:
        raise corrupt("F21", "the end magic is missing", at + 20)
    check_seal(record[:20], at)
    if record[0] != TRAILER or record[1:4] != b"\0\0\0":
        raise corrupt("F2", "not a trailer", at)
    length, offset = struct.unpack("<IQ", record[4:16])
    return length, offset


def check_trailer(claim: tuple[int, int], offset: int, length: int, at: int) -> None:
    """[F21]"""
    if claim != (length, offset):
        raise corrupt("F21", f"the trailer names an index {claim}, it is {(length, offset)}", at)


def decode_range(data: bytes, number: int) -> Chunk:
    """Chunk ``number`` by way of the trailer and the index, without the chunks before it."""
    header_end = Cursor(data)
    header = decode_header(header_end)
    if len(data) < header_end.at + 24:
        raise corrupt("F21", "no room for a trailer", len(data))
    length, offset = decode_trailer(Cursor(data[-24:], len(data) - 24))
    if offset + length != len(data) - 24 or offset < header_end.at:
        raise corrupt("F21", "the index does not end where the trailer begins", len(data) - 24)
    cursor = Cursor(data[offset : offset + length], offset)
    if cursor.data[:1] != bytes([INDEX]):
        raise corrupt("F2", "not an index", offset)
    index = decode_index(cursor, header)
    cursor.finish("index")
    if index.count != len(index.chunks) or offset - header_end.at != sum(
        row[2] for row in index.chunks
    ):
        raise corrupt("F19", "the chunks do not fill the stream", offset)
    begin = header_end.at + sum(row[2] for row in index.chunks[:number])
    tensor, tile, size = index.chunks[number]
    record = Cursor(data[begin : begin + size], begin, "F19")
    if record.data[:1] != bytes([CHUNK]):
        raise corrupt("F2", "not a chunk", begin)
    chunk = decode_chunk(record, header)
    record.finish("chunk")
    if (chunk.tensor, chunk.tile) != (tensor, tile):
        raise corrupt("F19", "the index names another tile", begin)
    return chunk
