"""Writes any delta that the format allows, and on request many that it does not.

``encode`` makes a correct stream in which the caller picks tile, codec, stage and flags. The
functions under it take raw fields and only add lengths and checksums, so a test can lie in any
field and still have a valid checksum.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgpack
import numpy as np

from . import digest
from .apply import State, patterns_of, state_of
from .classes import (
    GROUPED_COLS,
    Parameters,
    Partition,
    class_members,
    encode_classes,
    exponents,
    partition_of,
)
from .columns import encode_columns
from .positions import ALL, GAPS, encode_positions
from .primitives import DICTIONARY, encode_stage, encode_varint, sealed, zigzag
from .stream import CHUNK, CLASSES, END_MAGIC, INDEX, LZ4_HEADER, MAGIC
from .tensors import EXPONENTS, WIDTHS, Tensor, matrix, step
from .values import PLANES, RAW, STEP, encode_planes, encode_raw, encode_steps


@dataclass(frozen=True)
class Coding:
    """How to write a chunk. ``positions=None`` takes ``all`` where every element changed.

    ``by_class`` makes it a record of changes by class: ``classes``, ``top`` (the tile's largest
    exponent where None), ``groups`` of rows (by how many changes they have, or as ``rows`` says),
    and ``parameters``. There is one class where the dtype has no exponent field, and one group
    where rows are short. Positions, values, their stages and ``base_digest`` are then of no use.
    """

    positions: int | None = GAPS
    position_stage: int = 0
    values: int = RAW
    value_stage: int = 0
    base_digest: bool = False
    result_digest: bool = False
    k: int = 3
    k_gaps: int = 2
    k_sizes: int = 1
    plane_stages: tuple[int, ...] | None = None
    by_class: bool = False
    classes: int = 1
    top: int | None = None
    groups: int = 1
    rows: tuple[int, ...] | None = None
    parameters: Parameters = field(default_factory=Parameters)


@dataclass
class Options:
    """How to write a stream. ``digests``: those of tensors in the index; None: as ``states``."""

    coding: Coding | Callable[[Tensor, int], Coding] = field(default_factory=Coding)
    tiles: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    run: str = ""
    version: int = 1
    base_version: int | None = 0
    profile: str = "compact"
    meta: Mapping[str, str] = field(default_factory=dict)
    lz4_header: bool = False
    lz4_index: bool = False
    header_state: bool = True
    states: bool = True
    digests: bool | None = None
    minor: int = 0
    optional: int = 0
    plain_table: bool = False
    extra_header: Mapping[str, Any] = field(default_factory=dict)
    extra_index: Mapping[str, Any] = field(default_factory=dict)
    order: Sequence[str] | None = None


def default_tile(width: int, shape: tuple[int, ...], most: int = 1 << 12) -> tuple[int, int]:
    """Whole rows, or the widest part of a row that a multiple of eight bytes allows."""
    rows, cols = matrix(shape)
    if rows * cols == 0:
        return 0, 0
    if cols > most:
        return 1, most - most * width % 8 // width
    return max(1, min(rows, most // cols)), cols


def table_of(state: State, tiles: Mapping[str, tuple[int, int]]) -> list[Tensor]:
    table = []
    for name, value in state.items():
        width = WIDTHS[value.dtype]
        tile = tiles.get(name) or default_tile(width, value.shape)
        table.append(Tensor(name, value.dtype, width, value.shape, tile))
    return table


def header_fields(
    options: Options, table: Sequence[Tensor], base_state: bytes | None
) -> dict[str, Any]:
    return {
        "run": options.run,
        "version": options.version,
        "base_version": options.base_version,
        "base_state": base_state if options.header_state else None,
        "profile": options.profile,
        "meta": dict(options.meta),
        **encode_columns(table, plain=options.plain_table),
        **options.extra_header,
    }


def encode_header(
    payload: bytes,
    *,
    major: int = 1,
    minor: int = 0,
    required: int = 0,
    optional: int = 0,
    magic: bytes = MAGIC,
) -> bytes:
    """Table "Header", from a payload already staged."""
    head = magic + struct.pack("<HHIII", major, minor, len(payload), required, optional)
    return sealed(head + payload)


def chunk_record(
    *,
    tensor: int,
    tile: int,
    changes: int,
    values: bytes,
    positions: bytes = b"",
    position_byte: int = 0,
    value_byte: int = 0,
    base: int | None = None,
    result: int | None = None,
    kind: int = CHUNK,
    flags: int | None = None,
    positions_length: int | None = None,
    body: bytes | None = None,
    body_length: int | None = None,
    long_length: bool = False,
) -> bytes:
    """Table "Chunk", from streams already staged.

    ``position_byte`` and ``value_byte`` have the codec in bits 0-3 and the stage in bits 4-7.
    ``flags`` replaces those of digests and stages, ``body`` all fields, ``positions_length`` and
    ``body_length`` what the record says of them. ``long_length`` says it with a superfluous byte.
    """
    if flags is None:
        flags = (base is not None) | (result is not None) << 1
        flags |= (position_byte >> 4) << 2 | value_byte & 0xF0
    codecs = position_byte & 15 | (value_byte & 15) << 4
    head = bytes([codecs, flags & 0xFF]) if kind != CLASSES else b""
    head += b"".join(encode_varint(number) for number in (tensor, tile, changes))
    head += b"".join(struct.pack("<Q", d) for d in (base, result) if d is not None)
    if kind != CLASSES:
        head += encode_varint(len(positions) if positions_length is None else positions_length)
        head += positions
    if body is None:
        body = head + values
    length = encode_varint(len(body) if body_length is None else body_length)
    if long_length:
        length = length[:-1] + bytes([length[-1] | 0x80, 0])
    return sealed(bytes([kind]) + length + body)


def encode_index(fields: Mapping[str, Any], *, lz4: bool = False, reserved: int = 0) -> bytes:
    """Table "Index"."""
    return index_record(encode_payload(fields, lz4=lz4), int(lz4), reserved)


def encode_payload(fields: Mapping[str, Any], *, lz4: bool = False) -> bytes:
    """A payload of header or index."""
    return encode_stage(int(lz4), msgpack.packb(dict(fields)), DICTIONARY)


def index_record(payload: bytes, flags: int = 0, reserved: int = 0) -> bytes:
    return sealed(struct.pack("<BBHI", INDEX, flags, reserved, len(payload)) + payload)


def encode_trailer(length: int) -> bytes:
    """Table "Trailer"."""
    return sealed(struct.pack("<I", length)) + END_MAGIC


def index_fields(
    rows: Iterable[tuple[int, int, int]],
    changed: int,
    digests: Sequence[int | None],
    base_state: bytes | None,
    result_state: bytes | None,
) -> dict[str, Any]:
    """``rows``: tensor, tile and record length of each chunk. Tiles that descend wrap."""
    columns: tuple[list[int], list[int], list[int]] = ([], [], [])
    before = (0, -1)
    for tensor, tile, length in rows:
        columns[0].append(zigzag(tensor - before[0]))
        skipped = tile - before[1] - 1 if tensor == before[0] else tile
        columns[1].append(skipped & (1 << 64) - 1)
        columns[2].append(length)
        before = (tensor, tile)
    packed = [b"".join(encode_varint(number) for number in column) for column in columns]
    return {
        "changed": changed,
        "tensors": packed[0],
        "tiles": packed[1],
        "lengths": packed[2],
        "digests": list(digests),
        "base_state": base_state,
        "result_state": result_state,
    }


def chunk_fields(
    entry: Tensor, number: int, tile: int, old: bytes, new: bytes, coding: Coding
) -> dict[str, Any] | None:
    """The changes of one tile as arguments of ``chunk_record``; None where nothing changed."""
    row0, row1, col0, col1 = entry.box(tile)
    width = entry.width

    def cut(data: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
        grid = np.frombuffer(data, np.uint8).reshape(entry.rows, entry.cols * width)
        return np.ascontiguousarray(grid[row0:row1, col0 * width : col1 * width])

    before, after = cut(old), cut(new)
    a, b = before.reshape(-1, width), after.reshape(-1, width)
    positions = [int(x) for x in np.flatnonzero((a != b).any(axis=1))]
    if coding.positions == ALL and not coding.by_class:
        positions = list(range(len(a)))
    if not positions:
        return None

    def numbers(cells: np.ndarray[Any, np.dtype[np.uint8]]) -> list[int]:
        return [int.from_bytes(cells[x].tobytes(), "little") for x in positions]

    def steps() -> list[int]:
        pairs = zip(numbers(a), numbers(b), strict=True)
        found = [step(x, y, width, entry.dtype) for x, y in pairs]
        if 0 in found:
            raise ValueError("a step is never 0: positions 'all' wants every element changed")
        return found

    key = digest.key(entry.name, entry.dtype, entry.shape)
    sums = [
        digest.box_sum(key, box, entry.words_per_row, row0, col0 * width // 8)[0]
        for box in (before, after)
    ]
    fields: dict[str, Any] = {"tensor": number, "tile": tile, "changes": len(positions)}
    if coding.by_class:
        partition = classified(
            positions, steps(), patterns_of(before, width), row1 - row0, entry, coding
        )
        stream = encode_classes(partition, coding.parameters)
        return {**fields, "values": stream, "result": sums[1], "kind": CLASSES}
    codec = coding.positions
    if codec is None:
        codec = ALL if len(positions) == len(a) else GAPS
    if coding.values == STEP:
        stream = encode_steps(steps(), width, coding.k_gaps, coding.k_sizes)
    elif coding.values == PLANES:
        stream = encode_planes(numbers(b), width, coding.plane_stages)
    else:
        stream = encode_raw(numbers(b), width)
    where = encode_positions(codec, positions, len(a), coding.k)
    relative = coding.values == STEP
    proven = coding.result_digest or (relative and not coding.base_digest)
    return {
        **fields,
        "positions": encode_stage(coding.position_stage, where),
        "values": encode_stage(coding.value_stage, stream),
        "position_byte": codec | coding.position_stage << 4,
        "value_byte": coding.values | coding.value_stage << 4,
        "base": sums[0] if coding.base_digest else None,
        "result": sums[1] if proven else None,
    }


def classified(
    positions: list[int], steps: list[int], patterns: np.ndarray[Any, np.dtype[np.uint64]],
    rows: int, entry: Tensor, coding: Coding,
) -> Partition:  # fmt: skip
    """The changes of a tile by class, as ``coding`` wants it where the tile can have it."""
    classes, groups, top = coding.classes, coding.groups, coding.top or 0
    of_row: tuple[int, ...] = ()
    if entry.dtype not in EXPONENTS:
        classes = groups = 1
    across = len(patterns) // rows
    if groups > 1 and across >= GROUPED_COLS:
        counts = [0] * rows
        for x in positions:
            counts[x // across] += 1
        most = max(counts)
        of_row = coding.rows or tuple(min(groups * n // (most + 1), groups - 1) for n in counts)
    else:
        groups = 1
    if classes * groups == 1:
        everything = [[np.arange(len(patterns))]]
        return partition_of(positions, steps, everything)
    if coding.top is None:
        top = int(exponents(patterns, entry.dtype).max())
    members = class_members(patterns, entry.dtype, classes, top, of_row, groups)
    return partition_of(positions, steps, members, top, of_row)


def encode(base: State, new: State, options: Options | None = None) -> bytes:
    """A delta from ``base`` to ``new``, which have the same names, dtypes and shapes."""
    head, chunks, index = encode_parts(base, new, options or Options())
    return join(head, chunks, index)


def join(head: bytes, chunks: Sequence[bytes], index: bytes) -> bytes:
    return head + b"".join(chunks) + index + encode_trailer(len(index))


def all_chunks(base: State, new: State, options: Options) -> list[dict[str, Any]]:
    """Arguments of ``chunk_record`` for all chunks in their order."""
    table = table_of(base, options.tiles)
    numbers = {entry.name: number for number, entry in enumerate(table)}
    found = []
    for name in options.order or list(base):
        entry = table[numbers[name]]
        for tile in range(entry.tiles):
            coding = options.coding
            if not isinstance(coding, Coding):
                coding = coding(entry, tile)
            old, after = base[name].data, new[name].data
            fields = chunk_fields(entry, numbers[name], tile, old, after, coding)
            if fields is not None:
                found.append(fields)
    return found


def states_of(base: State, new: State, options: Options) -> dict[str, Any]:
    """Digests and states of the index."""
    names = list(base)
    known = options.states if options.digests is None else options.digests
    return {
        "digests": [state_of(new, [n])[0] & 0xFFFFFFFF if known else None for n in names],
        "base_state": digest.stored(state_of(base, names)) if options.states else None,
        "result_state": digest.stored(state_of(new, names)) if options.states else None,
    }


def encode_parts(base: State, new: State, options: Options) -> tuple[bytes, list[bytes], bytes]:
    """Header, chunk records and index record."""
    chunks = all_chunks(base, new, options)
    records = [chunk_record(**chunk) for chunk in chunks]
    rows = [
        (chunk["tensor"], chunk["tile"], len(record))
        for chunk, record in zip(chunks, records, strict=True)
    ]
    states = states_of(base, new, options)
    fields = index_fields(rows, sum(chunk["changes"] for chunk in chunks), **states)
    table = table_of(base, options.tiles)
    payload = header_fields(options, table, states["base_state"])
    head = encode_header(
        encode_payload(payload, lz4=options.lz4_header),
        minor=options.minor,
        required=LZ4_HEADER if options.lz4_header else 0,
        optional=options.optional,
    )
    index = encode_index({**fields, **options.extra_index}, lz4=options.lz4_index)
    return head, records, index
