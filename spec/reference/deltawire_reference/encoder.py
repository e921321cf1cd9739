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
from .positions import ALL, GAPS, RANKS, encode_positions
from .primitives import encode_stage, encode_varint, sealed
from .ranks import EXPONENTS, Ranks, encode_ranks, exponents, ranks_of
from .stream import CHUNK, END_MAGIC, INDEX, LZ4_HEADER, MAGIC, TRAILER
from .tensors import WIDTHS, Tensor, matrix, step
from .values import (
    GROUPED,
    PLANES,
    RAW,
    STEP,
    encode_grouped,
    encode_planes,
    encode_raw,
    encode_steps,
    fits_grouped,
)


@dataclass(frozen=True)
class Coding:
    """How to write a chunk. ``positions=None`` takes ``all`` where every element changed.

    ``classes`` and ``top`` are for ranks: one class where the dtype has no exponent field, ``top``
    the tile's largest exponent where None. Parameters ``q*`` of geometric streams that are None are
    fitted. GROUPED becomes STEP where a step is too large for it.
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
    classes: int = 1
    top: int | None = None
    q: int | None = None
    q_gaps: int | None = None
    q_sizes: int | None = None


@dataclass
class Options:
    """How to write a stream."""

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
    minor: int = 0
    optional: int = 0
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
        "tensors": [[t.name, t.dtype, t.width, list(t.shape), list(t.tile)] for t in table],
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
    head = magic + struct.pack("<HHIQQ", major, minor, len(payload), required, optional)
    return sealed(head + payload)


def chunk_record(
    *,
    tensor: int,
    tile: int,
    changes: int,
    positions: bytes,
    values: bytes,
    position_byte: int,
    value_byte: int,
    base: int | None = None,
    result: int | None = None,
    kind: int = CHUNK,
    flags: int | None = None,
) -> bytes:
    """Table "Chunk", from streams already staged."""
    if flags is None:
        flags = (base is not None) | (result is not None) << 1
    head = struct.pack(
        "<4B5I", kind, position_byte, value_byte, flags, tensor, tile, changes,
        len(positions), len(values),
    )  # fmt: skip
    digests = b"".join(struct.pack("<Q", d) for d in (base, result) if d is not None)
    return sealed(head + digests + positions + values)


def encode_index(fields: Mapping[str, Any], *, lz4: bool = False, reserved: int = 0) -> bytes:
    """Table "Index"."""
    return index_record(encode_stage(int(lz4), msgpack.packb(dict(fields))), int(lz4), reserved)


def index_record(payload: bytes, flags: int = 0, reserved: int = 0) -> bytes:
    return sealed(struct.pack("<BBHI", INDEX, flags, reserved, len(payload)) + payload)


def encode_trailer(length: int, offset: int, *, reserved: bytes = b"\0\0\0") -> bytes:
    """Table "Trailer"."""
    return sealed(bytes([TRAILER]) + reserved + struct.pack("<IQ", length, offset)) + END_MAGIC


def index_fields(
    rows: Iterable[tuple[int, int, int]],
    changed: int,
    digests: Sequence[bytes | None],
    base_state: bytes | None,
    result_state: bytes | None,
) -> dict[str, Any]:
    rows = list(rows)
    return {
        "count": len(rows),
        "changed": changed,
        "chunks": b"".join(encode_varint(number) for row in rows for number in row),
        "digests": list(digests),
        "base_state": base_state,
        "result_state": result_state,
    }


def encode_chunk(
    entry: Tensor, number: int, tile: int, old: bytes, new: bytes, coding: Coding
) -> tuple[bytes, int] | None:
    """The record and the number of changes of one tile; None where nothing changed."""
    row0, row1, col0, col1 = entry.box(tile)
    width = entry.width

    def cut(data: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
        grid = np.frombuffer(data, np.uint8).reshape(entry.rows, entry.cols * width)
        return np.ascontiguousarray(grid[row0:row1, col0 * width : col1 * width])

    before, after = cut(old), cut(new)
    a, b = before.reshape(-1, width), after.reshape(-1, width)
    positions = [int(x) for x in np.flatnonzero((a != b).any(axis=1))]
    if coding.positions == ALL:
        positions = list(range(len(a)))
    if not positions:
        return None
    codec = coding.positions
    if codec is None:
        codec = ALL if len(positions) == len(a) else GAPS
    places = [positions]
    if codec == RANKS:
        ranks = Ranks([positions])
        if coding.classes > 1 and entry.dtype in EXPONENTS:
            patterns = patterns_of(before, width)
            top = coding.top
            if top is None:
                top = int(exponents(patterns, entry.dtype).max())
            ranks, places = ranks_of(positions, patterns, entry.dtype, coding.classes, top)
        where = encode_ranks(ranks, coding.q)
    else:
        where = encode_positions(codec, positions, len(a), coding.k)

    def numbers(cells: np.ndarray[Any, np.dtype[np.uint8]], order: list[int]) -> list[int]:
        return [int.from_bytes(cells[x].tobytes(), "little") for x in order]

    def steps(order: list[int]) -> list[int]:
        pairs = zip(numbers(a, order), numbers(b, order), strict=True)
        found = [step(x, y, width, entry.dtype) for x, y in pairs]
        if 0 in found:
            raise ValueError("a step is never 0: positions 'all' wants every element changed")
        return found

    values = coding.values
    if values == GROUPED and not fits_grouped(steps(positions)):
        values = STEP
    if values == STEP:
        stream = encode_steps(steps(positions), width, coding.k_gaps, coding.k_sizes)
    elif values == GROUPED:
        groups = [steps(order) for order in places]
        stream = encode_grouped(groups, coding.q_gaps, coding.q_sizes)
    elif values == PLANES:
        stream = encode_planes(numbers(b, positions), width, coding.plane_stages)
    else:
        stream = encode_raw(numbers(b, positions), width)
    relative = values in (STEP, GROUPED) or len(places) > 1
    key = digest.key(entry.name, entry.dtype, entry.shape)
    sums = [
        digest.box_sum(key, box, entry.words_per_row, row0, col0 * width // 8)[0]
        for box in (before, after)
    ]
    record = chunk_record(
        tensor=number,
        tile=tile,
        changes=len(positions),
        positions=encode_stage(coding.position_stage, where),
        values=encode_stage(coding.value_stage, stream),
        position_byte=codec | coding.position_stage << 4,
        value_byte=values | coding.value_stage << 4,
        base=sums[0] if coding.base_digest or relative else None,
        result=sums[1] if coding.result_digest else None,
    )
    return record, len(positions)


def encode(base: State, new: State, options: Options | None = None) -> bytes:
    """A delta from ``base`` to ``new``, which have the same names, dtypes and shapes."""
    head, chunks, index = encode_parts(base, new, options or Options())
    return join(head, chunks, index)


def join(head: bytes, chunks: Sequence[bytes], index: bytes) -> bytes:
    body = head + b"".join(chunks)
    return body + index + encode_trailer(len(index), len(body))


def encode_parts(base: State, new: State, options: Options) -> tuple[bytes, list[bytes], bytes]:
    """Header, chunk records and index record."""
    table = table_of(base, options.tiles)
    numbers = {entry.name: number for number, entry in enumerate(table)}
    records, rows, changed = [], [], 0
    for name in options.order or list(base):
        entry = table[numbers[name]]
        for tile in range(entry.tiles):
            coding = options.coding
            if not isinstance(coding, Coding):
                coding = coding(entry, tile)
            made = encode_chunk(entry, numbers[name], tile, base[name].data, new[name].data, coding)
            if made is not None:
                records.append(made[0])
                rows.append((numbers[name], tile, len(made[0])))
                changed += made[1]
    names = list(base)
    base_state = digest.stored(state_of(base, names))
    fields = index_fields(
        rows,
        changed,
        [digest.stored(state_of(new, [name])) if options.states else None for name in names],
        base_state if options.states else None,
        digest.stored(state_of(new, names)) if options.states else None,
    )
    payload = msgpack.packb(header_fields(options, table, base_state if options.states else None))
    head = encode_header(
        encode_stage(int(options.lz4_header), payload),
        minor=options.minor,
        required=LZ4_HEADER if options.lz4_header else 0,
        optional=options.optional,
    )
    index = encode_index({**fields, **options.extra_index}, lz4=options.lz4_index)
    return head, records, index
