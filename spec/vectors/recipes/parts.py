"""A delta in parts: change any field, and lengths, index, trailer and checksums follow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgpack

from deltawire_reference import Coding, Options, encoder
from deltawire_reference.primitives import DICTIONARY, encode_stage, encode_varint

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
        for number, chunk in enumerate(self.chunks):
            record = encoder.chunk_record(**chunk)
            spans[f"chunk {number}"] = (len(out), len(out) + len(record))
            out += record
        payload = self.index_payload
        if payload is None:
            payload = msgpack.packb(self.index_fields())
        index = encoder.index_record(payload, **self.index_fixed)
        spans["index"] = (len(out), len(out) + len(index))
        claim = {"length": len(index), **self.trailer}
        out += index + self.between.get("index", b"")
        spans["trailer"] = (len(out), len(out) + 12)
        out += encoder.encode_trailer(**claim) + self.between.get("trailer", b"")
        data = bytearray(out)
        if self.patch:
            self.patch(data, spans)
        return bytes(data), spans

    def index_fields(self) -> dict[str, Any]:
        """The map of the index."""
        rows = [(c["tensor"], c["tile"], len(encoder.chunk_record(**c))) for c in self.chunks]
        changed = sum(chunk["changes"] for chunk in self.chunks) & (1 << 64) - 1
        fields = {**encoder.index_fields(rows, changed, **self.states), **self.index}
        return {key: value for key, value in fields.items() if key not in self.index_without}


def parts_of(base: State, new: State, options: Options | None = None) -> Parts:
    """A correct delta, ready to be spoiled."""
    options = options or Options(Coding(result_digest=True))
    states = encoder.states_of(base, new, options)
    table = encoder.table_of(base, options.tiles)
    return Parts(
        header=encoder.header_fields(options, table, states["base_state"]),
        chunks=encoder.all_chunks(base, new, options),
        states=states,
    )


def lz4_stage(stream: bytes, length: int | None = None, dictionary: bytes = b"") -> bytes:
    """An LZ4 stage that may lie about its length."""
    stored = encode_stage(1, stream, dictionary)
    if length is None:
        return stored
    return encode_varint(length) + stored[len(encode_varint(len(stream))) :]


def lz4_payload(payload: bytes, length: int | None = None) -> bytes:
    """The same for a payload of header or index."""
    return lz4_stage(payload, length, DICTIONARY)
