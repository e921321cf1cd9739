"""The header of a safetensors file, parsed within bounds.

The safetensors package cannot show BF16 or FP8 as numpy arrays and hands out copies; a
delta needs the raw bytes where they lie in the file, so that a checkpoint of any size can be
memory-mapped. The layout is ``u64 length, JSON header, data``; every rule of the safetensors
specification is checked before a byte of data is looked at.
"""

from __future__ import annotations

import json
import math
import os
import re
from dataclasses import dataclass
from typing import Any

from ..errors import CorruptCheckpoint
from ..tensors import ITEMSIZE

#: Longest JSON header that a reader accepts, as in the safetensors package.
MAX_HEADER_BYTES = 100_000_000
#: Most dimensions that the delta format carries.
MAX_DIMENSIONS = 32
#: Length of the field that holds the header's length.
PREFIX_BYTES = 8
_MAX_BYTES = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a file.

    Attributes:
        start: offset of the first byte from the start of the file.
        nbytes: length in bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says about itself: its tensors in the order of their bytes, and metadata."""

    entries: tuple[Entry, ...]
    metadata: dict[str, str]


class _DuplicateKey(ValueError):
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def load_json_object(raw: bytes, *, path: str, offset: int = 0) -> dict[str, Any]:
    """Parse one JSON object without repeated keys, NaN or infinities.

    Args:
        raw: UTF-8 text of the object.
        path: file that the text is from, for errors.
        offset: where the text begins in that file.

    Raises:
        CorruptCheckpoint: not JSON, not an object, nested too deeply, or a key stands twice.
    """

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, value in items:
            if key in result:
                raise _DuplicateKey(key)
            result[key] = value
        return result

    def constant(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorruptCheckpoint(
            "the JSON text is not UTF-8", path=path, offset=offset + error.start
        ) from None
    try:
        value = json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except json.JSONDecodeError as error:
        place = offset + len(text[: error.pos].encode())
        raise CorruptCheckpoint(
            f"the JSON text is malformed: {error.msg}", path=path, offset=place
        ) from None
    except _DuplicateKey as error:
        first = key_offset(raw, error.key)
        second = None if first is None else key_offset(raw, error.key, first + 1)
        raise CorruptCheckpoint(
            f"the key {error.key!r} stands twice in one JSON object",
            path=path,
            tensor=error.key,
            offset=None if second is None else offset + second,
        ) from None
    except RecursionError:
        raise CorruptCheckpoint(
            "the JSON text is nested too deeply", path=path, offset=offset
        ) from None
    except ValueError as error:
        raise CorruptCheckpoint(
            f"the JSON text is malformed: {error}", path=path, offset=offset
        ) from None
    if not isinstance(value, dict):
        raise CorruptCheckpoint("the JSON text is not an object", path=path, offset=offset)
    return value


def key_offset(raw: bytes, key: str, begin: int = 0) -> int | None:
    """Byte offset of an object key in JSON text, to point at it in an error."""
    for ascii_only in (False, True):
        try:
            literal = json.dumps(key, ensure_ascii=ascii_only).encode()
        except UnicodeEncodeError:
            continue
        found = re.compile(re.escape(literal) + rb"\s*:").search(raw, begin)
        if found:
            return found.start()
    return None


def require_text(value: str, what: str, path: str, offset: int) -> None:
    """Refuse names with lone surrogates, which no UTF-8 file or delta can carry."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise CorruptCheckpoint(
            f"{what} {value!r} is not valid Unicode", path=path, offset=offset
        ) from None


def read_header(fd: int, size: int, path: str) -> Header:
    """Read and check the header of an open safetensors file.

    Args:
        fd: the file, readable.
        size: its length in bytes.
        path: its name, for errors.

    Raises:
        CorruptCheckpoint: names the file, the tensor where one is at fault, and the offset.
    """
    if size < PREFIX_BYTES:
        raise CorruptCheckpoint(
            f"the file is {size} bytes long, too short for a safetensors file; it was not "
            "written completely, get another copy",
            path=path,
            offset=size,
        )
    length = int.from_bytes(_pread(fd, PREFIX_BYTES, 0, path), "little")
    if length > MAX_HEADER_BYTES:
        raise CorruptCheckpoint(
            f"a header of {length} bytes is claimed, the limit is {MAX_HEADER_BYTES}; this is "
            "not a safetensors file",
            path=path,
            offset=0,
        )
    if length > size - PREFIX_BYTES:
        raise CorruptCheckpoint(
            f"a header of {length} bytes is claimed, the file ends after "
            f"{size - PREFIX_BYTES} of them; get another copy",
            path=path,
            offset=size,
        )
    return parse_header(_pread(fd, length, PREFIX_BYTES, path), size, path)


def parse_header(raw: bytes, size: int, path: str) -> Header:
    """Check a JSON header against the safetensors rules.

    Args:
        raw: the header's JSON text, which stands at byte 8 of the file.
        size: length of the whole file in bytes.
        path: name of the file, for errors.

    Raises:
        CorruptCheckpoint: unknown dtype, a shape that disagrees with its bytes, bytes outside
            the file, overlaps, holes, repeated names, or text that is not such a header.
    """
    if not raw.startswith(b"{"):
        raise CorruptCheckpoint(
            "the header does not begin with '{'; this is not a safetensors file",
            path=path,
            offset=PREFIX_BYTES,
        )
    table = load_json_object(raw, path=path, offset=PREFIX_BYTES)
    metadata = _metadata(table.pop("__metadata__", None), path)
    data_start = PREFIX_BYTES + len(raw)
    entries = [_entry(name, value, raw, data_start, size, path) for name, value in table.items()]
    # Stable: tensors without bytes keep the header's order.
    entries.sort(key=lambda entry: (entry.start, entry.nbytes))
    end = data_start
    for entry in entries:
        if entry.start != end:
            fault = "overlaps the tensor before it" if entry.start < end else "leaves a hole"
            raise CorruptCheckpoint(
                f"the tensor begins at byte {entry.start}, the one before it ends at {end}: it "
                f"{fault}",
                path=path,
                tensor=entry.name,
                offset=min(entry.start, end),
            )
        end += entry.nbytes
    if end != size:
        raise CorruptCheckpoint(
            f"the tensors end at byte {end}, the file is {size} bytes long",
            path=path,
            offset=end,
        )
    return Header(tuple(entries), metadata)


def _pread(fd: int, length: int, offset: int, path: str) -> bytes:
    data = bytearray()
    while len(data) < length:
        piece = os.pread(fd, length - len(data), offset + len(data))
        if not piece:
            raise CorruptCheckpoint(
                "the file became shorter while it was read", path=path, offset=offset + len(data)
            )
        data += piece
    return bytes(data)


def _metadata(value: Any, path: str) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise CorruptCheckpoint(
            "__metadata__ is not a map of strings to strings", path=path, offset=PREFIX_BYTES
        )
    return value


def _entry(name: str, value: Any, raw: bytes, data_start: int, size: int, path: str) -> Entry:
    def corrupt(message: str, offset: int | None = None) -> CorruptCheckpoint:
        if offset is None:
            in_header = key_offset(raw, name)
            offset = PREFIX_BYTES + (in_header or 0)
        return CorruptCheckpoint(message, path=path, tensor=name, offset=offset)

    require_text(name, "the tensor name", path, PREFIX_BYTES)
    if not isinstance(value, dict):
        raise corrupt("the header's entry is not an object")
    dtype: Any = value.get("dtype")
    shape: Any = value.get("shape")
    offsets: Any = value.get("data_offsets")
    if not isinstance(dtype, str):
        raise corrupt("the header names no dtype")
    if dtype not in ITEMSIZE:
        raise corrupt(
            f"dtype {dtype!r} is unknown or narrower than a byte; store the tensor as one of "
            f"{', '.join(ITEMSIZE)} (packed values as U8)"
        )
    if not _is_counts(shape):
        raise corrupt("the shape is not a list of sizes")
    if len(shape) > MAX_DIMENSIONS:
        raise corrupt(f"{len(shape)} dimensions, at most {MAX_DIMENSIONS} are supported")
    width = ITEMSIZE[dtype]
    # Also with a dimension of zero: no product of the others may wrap in 64 bits.
    if math.prod(n for n in shape if n) * width > _MAX_BYTES:
        raise corrupt(f"the shape {shape} is larger than any file")
    if not _is_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise corrupt("data_offsets is not a pair of ascending offsets")
    begin, end = offsets
    nbytes = math.prod(shape) * width
    if end - begin != nbytes:
        raise corrupt(
            f"{dtype} of shape {shape} is {nbytes} bytes, data_offsets span {end - begin}"
        )
    if data_start + end > size:
        raise corrupt(
            f"the tensor ends at byte {data_start + end}, the file is {size} bytes long; it was "
            "cut short, get another copy",
            min(data_start + begin, size),
        )
    return Entry(name, dtype, tuple(shape), data_start + begin, nbytes)


def _is_counts(value: Any) -> bool:
    # bool is an int in Python, but not a number in JSON.
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)
