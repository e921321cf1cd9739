"""A delta in parts: change any field, and lengths, index, trailer and checksums follow."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgpack

from deltawire_reference import Coding, Options, digest, encoder
from deltawire_reference.apply import state_of
from deltawire_reference.primitives import encode_stage
from deltawire_reference.stream import decode

from .states import State

Spans = dict[str, tuple[int, int]]


@dataclass
class Parts:
    """``chunks`` are keyword arguments of ``encoder.chunk_record``."""

    header: dict[str, Any]
    chunks: list[dict[str, Any]]
    states: dict[str, Any]
    header_fixed: dict[str, int | bytes] = field(default_factory=dict)
    header_payload: bytes | None = None
    index: dict[str, Any] = field(default_factory=dict)
    index_without: tuple[str, ...] = ()
    index_payload: bytes | None = None
    index_fixed: dict[str, int] = field(default_factory=dict)
    trailer: dict[str, Any] = field(default_factory=dict)
    between: dict[str, bytes] = field(default_factory=dict)
    patch: Callable[[bytearray, Spans], None] | None = None

    def build(self) -> tuple[bytes, Spans]:
        payload = self.header_payload
        if payload is None:
            payload = msgpack.packb(self.header)
        out = encoder.encode_header(payload, **self.header_fixed)  # type: ignore[arg-type]
        spans: Spans = {"header": (0, len(out))}
        out += self.between.get("header", b"")
        rows, changed = [], 0
        for number, chunk in enumerate(self.chunks):
            record = encoder.chunk_record(**chunk)
            rows.append((chunk["tensor"], chunk["tile"], len(record)))
            changed += chunk["changes"]
            spans[f"chunk {number}"] = (len(out), len(out) + len(record))
            out += record
        fields = {
            **encoder.index_fields(rows, changed & (1 << 64) - 1, **self.states),
            **self.index,
        }
        for key in self.index_without:
            del fields[key]
        payload = self.index_payload
        if payload is None:
            payload = msgpack.packb(fields)
        index = encoder.index_record(payload, **self.index_fixed)
        spans["index"] = (len(out), len(out) + len(index))
        claim = {"length": len(index), "offset": len(out), **self.trailer}
        out += index + self.between.get("index", b"")
        spans["trailer"] = (len(out), len(out) + 24)
        out += encoder.encode_trailer(**claim) + self.between.get("trailer", b"")
        data = bytearray(out)
        if self.patch:
            self.patch(data, spans)
        return bytes(data), spans


def parts_of(base: State, new: State, options: Options | None = None) -> Parts:
    """A correct delta, ready to be spoiled."""
    options = options or Options(Coding(result_digest=True))
    table = encoder.table_of(base, options.tiles)
    names = list(base)
    state = digest.stored(state_of(base, names))
    delta = decode(encoder.encode(base, new, options))
    assert delta.index is not None
    data = encoder.encode(base, new, options)
    chunks = []
    for chunk in delta.chunks:
        record = data[chunk.offset : chunk.offset + chunk.length]
        p = int.from_bytes(record[16:20], "little")
        start = 24 + 8 * (record[3] & 1) + 8 * (record[3] >> 1)
        chunks.append(
            {
                "tensor": chunk.tensor,
                "tile": chunk.tile,
                "changes": chunk.changes,
                "positions": record[start : start + p],
                "values": record[start + p : -4],
                "position_byte": record[1],
                "value_byte": record[2],
                "base": chunk.base_digest,
                "result": chunk.result_digest,
            }
        )
    return Parts(
        header=copy.deepcopy(
            encoder.header_fields(options, table, state if options.states else None)
        ),
        chunks=chunks,
        states={
            "digests": delta.index.digests,
            "base_state": delta.index.base_state,
            "result_state": delta.index.result_state,
        },
    )


def lz4_stage(stream: bytes, length: int | None = None) -> bytes:
    """An LZ4 stage that may lie about its length."""
    stored = encode_stage(1, stream)
    return stored if length is None else length.to_bytes(4, "little") + stored[4:]
