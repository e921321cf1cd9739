"""Errors, integers, checksums, stages and MessagePack: what every structure is made of."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import lz4.block
import msgpack

# What LZ4 blocks of header and index payloads may refer to.
DICTIONARY = (Path(__file__).resolve().parents[2] / "dictionary-v1.bin").read_bytes()
PAYLOAD_LIMIT = 256 << 20
TENSOR_LIMIT = 1 << 20
RECORD_LIMIT = 72 << 20


class ReferenceFault(Exception):
    """A broken requirement: ``rule`` is its number in format-v1.md, ``kind`` the error kind."""

    def __init__(self, kind: str, rule: str, message: str, offset: int | None = None) -> None:
        place = "" if offset is None else f" (byte {offset})"
        super().__init__(f"[{rule}] {message}{place}")
        self.kind = kind
        self.rule = rule
        self.offset = offset


def corrupt(rule: str, message: str, offset: int | None = None) -> ReferenceFault:
    return ReferenceFault("corrupt", rule, message, offset)


class Cursor:
    """Takes bytes from the front of a stream and knows their offset in the file.

    ``rule`` is the requirement that is broken where the bytes run out.
    """

    def __init__(self, data: bytes, offset: int = 0, rule: str = "F21") -> None:
        self.data = data
        self.at = 0
        self.base = offset
        self.rule = rule

    @property
    def offset(self) -> int:
        return self.base + self.at

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    def take(self, count: int) -> bytes:
        if count > self.left:
            raise corrupt(self.rule, f"{count} bytes wanted, {self.left} left", self.offset)
        self.at += count
        return self.data[self.at - count : self.at]

    def varint(self) -> int:
        value = 0
        for index in range(10):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                if index > 0 and byte == 0:
                    raise corrupt("F1", "a varint with a superfluous byte", self.offset - 1)
                if value >> 64:
                    raise corrupt("F1", "a varint above 64 bits", self.offset - 1)
                return value
        raise corrupt("F1", "a varint of more than ten bytes", self.offset)

    def finish(self, what: str) -> None:
        if self.left:
            raise corrupt(self.rule, f"{self.left} bytes follow the {what}", self.offset)


def encode_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def zigzag(number: int) -> int:
    return 2 * number if number >= 0 else -2 * number - 1


def unzigzag(value: int) -> int:
    return value // 2 if value % 2 == 0 else -(value + 1) // 2


def crc32(data: bytes) -> int:
    """[F3]"""
    return zlib.crc32(data)


def sealed(data: bytes) -> bytes:
    """``data`` and its CRC-32."""
    return data + struct.pack("<I", crc32(data))


def check_seal(record: bytes, offset: int) -> None:
    if crc32(record[:-4]) != struct.unpack("<I", record[-4:])[0]:
        raise corrupt("F3", "checksum mismatch", offset)


def encode_stage(stage: int, stream: bytes, dictionary: bytes = b"") -> bytes:
    """Table "Stages"."""
    if stage == 0:
        return stream
    block: bytes = lz4.block.compress(stream, store_size=False, dict=dictionary)
    return encode_varint(len(stream)) + block


def decode_stage(
    stage: int,
    stored: bytes,
    most: int,
    offset: int,
    dictionary: bytes = b"",
    kind: str = "corrupt",
) -> bytes:
    """Table "Stages", [F18]. ``most`` is the longest stream that the codec can need."""
    if stage == 0:
        return stored
    if stage != 1:
        raise corrupt("F2", f"stage {stage} is reserved", offset)
    cursor = Cursor(stored, offset, "F18")
    length = cursor.varint()
    block = cursor.take(cursor.left)
    if length > 255 * len(block) + 64:
        raise corrupt("F18", f"{length} bytes claimed from {len(block)}", offset)
    if length > most:
        raise ReferenceFault(kind, "F18", f"{length} bytes claimed, at most {most} needed", offset)
    return lz4_block(block, length, dictionary, offset)


def lz4_block(block: bytes, length: int, dictionary: bytes, offset: int) -> bytes:
    """Sequences of literals and a match each, but the last one, which has literals only."""
    cursor = Cursor(block, offset, "F18")
    out = bytearray(dictionary)
    most = len(dictionary) + length

    def counted(count: int) -> int:
        byte = 255 if count == 15 else 0
        while byte == 255:
            byte = cursor.take(1)[0]
            count += byte
        return count

    while True:
        token = cursor.take(1)[0]
        out += cursor.take(counted(token >> 4))
        if cursor.left == 0:
            break
        back = int.from_bytes(cursor.take(2), "little")
        count = counted(token & 15) + 4
        if not 1 <= back <= len(out) or len(out) + count > most:
            raise corrupt("F18", f"a match of {count} bytes, {back} back", offset)
        repeated = bytes(out[-back:] if back >= count else out[-back:] * (count // back + 1))
        out += repeated[:count]
    if len(out) != most:
        raise corrupt("F18", f"{len(out) - len(dictionary)} bytes instead of {length}", offset)
    return bytes(out[len(dictionary) :])


class _Pairs(list[tuple[Any, Any]]):
    """A MessagePack map as written, so that repeated keys can be seen."""


def decode_map(payload: bytes, wanted: tuple[str, ...], offset: int) -> dict[str, Any]:
    """The one map of a payload; nested maps stay pairs until ``text_map`` reads them. [F8]"""
    try:
        pairs = msgpack.unpackb(
            payload, raw=False, strict_map_key=False, object_pairs_hook=_Pairs, max_ext_len=1 << 20
        )
    except Exception as fault:  # noqa: BLE001 -- msgpack raises many types, all mean the same here
        raise corrupt("F8", f"bad MessagePack: {fault!r}", offset) from None
    if not isinstance(pairs, _Pairs):
        raise corrupt("F8", "the payload is not a map", offset)
    fields = _unique(pairs, offset)
    for key in wanted:
        if key not in fields:
            raise corrupt("F8", f"key {key!r} is missing", offset)
    return fields


def _unique(pairs: Any, offset: int) -> dict[str, Any]:
    if not isinstance(pairs, _Pairs) or not all(type(key) is str for key, _ in pairs):
        raise corrupt("F8", "a map with string keys is wanted", offset)
    if len({key for key, _ in pairs}) != len(pairs):
        raise corrupt("F8", "a key is repeated", offset)
    return dict(pairs)


def text_map(value: Any, offset: int) -> dict[str, str]:
    fields = _unique(value, offset)
    if not all(type(item) is str for item in fields.values()):
        raise corrupt("F8", "a map of str to str is wanted", offset)
    return fields


def typed(value: Any, kind: type, what: str, offset: int) -> Any:
    if type(value) is not kind or (type(value) is int and value < 0):
        raise corrupt("F8", f"{what} has the wrong type", offset)
    return value


def digest_or_nil(value: Any, what: str, offset: int) -> bytes | None:
    if value is not None and (type(value) is not bytes or len(value) != 16):
        raise corrupt("F8", f"{what} is not 16 bytes or nil", offset)
    return value
