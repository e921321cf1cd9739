"""Claims that the input has not earned: refused with bounded memory and without long loops.

Every hostile stream has valid checksums. Each runs in a process of its own with a bound on address
space (so that an untouched reservation fails too) and on processor time.
"""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest

import deltawire as dw
from strategies import (
    WIDTHS,
    Value,
    columns,
    contents,
    encoder,
    primitives,
    reference,
    tensors,
    views,
)

MIB = 1 << 20

READ = """
import json, resource, sys
import deltawire as dw

def kib(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field))

def pull(data):
    for chunk in dw.StreamReader(data):
        chunk.positions()

def feed(data):
    reader = dw.StreamReader(None)
    for start in range(0, len(data), 4096):
        for chunk in reader.feed(data[start : start + 4096]):
            chunk.positions()
    reader.finish()

def apply(data):
    dw.apply(data, {"w": dw.TensorView.from_bytes("BF16", (4,), bytearray(8))})

with open(sys.argv[1], "rb") as file:
    data = file.read()
try:
    dw.inspect(b"warm up")
except dw.DeltawireError:
    pass
resource.setrlimit(resource.RLIMIT_AS, (kib("VmSize:") * 1024 + (1 << 30),) * 2)
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
out = {}
for name, read in {"inspect": dw.inspect, "pull": pull, "feed": feed, "apply": apply}.items():
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = kib("VmRSS:")
    try:
        read(data)
        outcome = "ok"
    except dw.DeltawireError as error:
        outcome = error.kind
    out[name] = [outcome, kib("VmHWM:") - before]
print(json.dumps(out))
"""


def outcomes(data: bytes, tmp_path: Path) -> dict[str, tuple[str, int]]:
    """Reader -> how it ended and the KiB it held at most beyond the input."""
    path = tmp_path / "hostile.dw"
    path.write_bytes(data)
    run = subprocess.run(
        [sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return {name: (kind, kib) for name, (kind, kib) in json.loads(run.stdout).items()}


Entry = tuple[str, str, list[int], list[int]]


def map_of(fields: dict[str, Any], **raw: bytes) -> bytes:
    """A MessagePack map; ``raw`` are values already packed."""
    pairs = {key: msgpack.packb(value) for key, value in fields.items()} | raw
    packed = b"".join(msgpack.packb(key) + value for key, value in pairs.items())
    return bytes([0x80 + len(pairs)]) + packed


def fields_of(entries: list[Entry]) -> dict[str, Any]:
    table = [
        tensors.Tensor(name, dtype, WIDTHS[dtype], tuple(shape), (tile[0], tile[1]))
        for name, dtype, shape, tile in entries
    ]
    return {
        "run": "",
        "version": 1,
        "base_version": 0,
        "base_state": None,
        "profile": "compact",
        "meta": {},
        **columns.encode_columns(table),
    }


def header(entries: list[Entry]) -> bytes:
    return encoder.encode_header(map_of(fields_of(entries)))


def packed_header(**raw: bytes) -> bytes:
    """A header alone, staged, with these values in place of an empty table's."""
    fields = {key: value for key, value in fields_of([]).items() if key not in raw}
    payload = primitives.encode_stage(1, map_of(fields, **raw), primitives.DICTIONARY)
    return encoder.encode_header(payload, required=1)


def packed_index(**raw: bytes) -> bytes:
    """A stream of one tensor without chunks, whose staged index has these values."""
    plain = encoder.index_fields([], 0, [None], None, None)
    fields = {key: value for key, value in plain.items() if key not in raw}
    payload = primitives.encode_stage(1, map_of(fields, **raw), primitives.DICTIONARY)
    return encoder.join(header([SCALARS]), [], encoder.index_record(payload, 1))


def binary(data: bytes) -> bytes:
    packed: bytes = msgpack.packb(data)
    return packed


def many_tensors(count: int) -> bytes:
    """A table of scalars whose names are their numbers."""
    return packed_header(
        names=b"\xdd" + count.to_bytes(4, "big") + b"\xa1\1" * count,
        numbers=binary(b"\0" + b"\2" * (count - 1)),
        dtypes=msgpack.packb(["U8"]),
        dtype=binary(bytes(count)),
        rank=binary(bytes(count)),
        tiles=binary(bytes(2 * count)),
    )


def chunk(tile: int, changes: int, positions: bytes, values: bytes, p: int, v: int) -> bytes:
    return encoder.chunk_record(
        tensor=0, tile=tile, changes=changes, positions=positions, values=values,
        position_byte=p, value_byte=v, result=0 if v & 15 == 2 else None,
    )  # fmt: skip


def joined(head: bytes, records: list[tuple[int, bytes, int]], digests: int = 1) -> bytes:
    """A whole stream from (tile, record, changes)."""
    fields = encoder.index_fields(
        [(0, tile, len(record)) for tile, record, _ in records],
        sum(changes for _, _, changes in records),
        [None] * digests,
        None,
        None,
    )
    return encoder.join(head, [record for _, record, _ in records], encoder.encode_index(fields))


SMALL: Entry = ("w", "BF16", [4], [4, 1])
TILE = 1 << 22
HUGE: Entry = ("w", "U8", [TILE, 1 << 20], [4, 1 << 20])
# Tiles whose rows are as many as may be in groups.
ROWS: Entry = ("w", "BF16", [1 << 20, 64], [1 << 16, 64])
SCALARS: Entry = ("w", "U8", [(1 << 32) - 2], [1, 1])


def zeros(length: int) -> bytes:
    """An LZ4 stage of zeros, about 255 times smaller."""
    return primitives.encode_stage(1, bytes(length))


def one(changes: int, positions: bytes, values: bytes, p: int, v: int) -> bytes:
    record = chunk(0, changes, positions, values, p, v)
    return joined(header([HUGE]), [(0, record, changes)])


def by_class(changes: int, stream: bytes, entry: Entry = HUGE) -> bytes:
    record = encoder.chunk_record(
        tensor=0, tile=0, changes=changes, values=stream, result=0, kind=4
    )
    return joined(header([entry]), [(0, record, changes)])


def cut_claim(offset: int, claim: int) -> bytes:
    """A small file whose 32-bit length at ``offset`` claims more."""
    data = bytearray(joined(header([SMALL]), [(0, chunk(0, 1, b"\0", b"\1\2", 4, 0), 1)]))
    data[offset : offset + 4] = claim.to_bytes(4, "little")
    return bytes(data)


def record_claim(kind: int = 1, **lengths: int) -> bytes:
    """A small file whose chunk says other lengths than it has."""
    record = encoder.chunk_record(
        tensor=0, tile=0, changes=1, positions=b"\0" if kind == 1 else b"", values=b"\1\2",
        position_byte=4 if kind == 1 else 0, result=None if kind == 1 else 0, kind=kind, **lengths,
    )  # fmt: skip
    return joined(header([SMALL]), [(0, record, 1)])


def head_bits(*fields: tuple[int, int]) -> bytes:
    """What a stream of changes by class begins with, from (value, number of bits)."""
    bits, at = 0, 0
    for value, count in fields:
        bits |= value << at
        at += count
    return bits.to_bytes(-(-at // 8), "little")


INDEX_AT = len(header([SMALL])) + len(chunk(0, 1, b"\0", b"\1\2", 4, 0))

STATE = struct.pack("<I", 1 << 16)
# One class with all changes, and what its parameters follow from; nothing differs from it.
ONE_CLASS, NEAR, FAR = ((0, 4), (0, 1)), ((0, 8), (0, 2)), ((255, 8), (0, 2))
# Eight groups of one class, equal shares of rows; none of 2^22 changes in the first seven groups.
GROUPS = ((0, 4), (1, 1), (7, 3), (130, 11), *[(512, 12)] * 7)
IN_LAST = [(1, 1 + (TILE // left).bit_length() - 1) for left in range(8, 1, -1)]

HOSTILE: dict[str, Callable[[], bytes]] = {
    "a header of 256 MiB": lambda: cut_claim(12, 256 * MIB),
    "a header of 4 GiB": lambda: cut_claim(12, (1 << 32) - 1),
    "a chunk of 70 MiB": lambda: record_claim(body_length=70 * MIB),
    "a chunk of 4 GiB": lambda: record_claim(body_length=(1 << 32) - 1),
    "a chunk of 2^64 - 1 bytes": lambda: record_claim(body_length=(1 << 64) - 1),
    "positions of 70 MiB": lambda: record_claim(positions_length=70 * MIB),
    "positions of 2^64 - 1 bytes": lambda: record_claim(positions_length=(1 << 64) - 1),
    "classes of 70 MiB": lambda: record_claim(4, body_length=70 * MIB),
    "classes of 2^64 - 1 bytes": lambda: record_claim(4, body_length=(1 << 64) - 1),
    "an index of 256 MiB": lambda: cut_claim(INDEX_AT + 4, 256 * MIB),
    "2^22 changes in no bytes": lambda: one(TILE, b"", b"", 1, 0),
    "2^22 changes in a few gaps": lambda: one(TILE, b"\0\0", bytes(2), 4, 0),
    "2^22 changes in an empty Rice stream": lambda: one(TILE, b"\0", bytes(4), 5, 0),
    "2^22 changes in one run, no values": lambda: one(
        TILE, b"\0" + primitives.encode_varint(TILE - 1), b"", 2, 0
    ),
    "2^22 steps in no bytes": lambda: one(TILE, b"", b"", 1, 2),
    "2^22 changes by class in no bytes": lambda: by_class(TILE, b""),
    "2^22 ranks in a state": lambda: by_class(TILE, head_bits(*ONE_CLASS, *NEAR) + STATE * 4),
    "2^22 ranks in a state and zeros": lambda: by_class(
        TILE, head_bits(*ONE_CLASS, *NEAR) + STATE * 4 + bytes(60)
    ),
    "2^22 ranks with 20 low bits each in no bytes": lambda: by_class(
        TILE, head_bits(*ONE_CLASS, *FAR) + STATE * 4 + bytes(4096)
    ),
    "2^22 ranks with their signs alone": lambda: by_class(
        TILE, head_bits(*ONE_CLASS, *NEAR) + bytes(TILE // 8) + STATE * 4
    ),
    "2^22 changes in groups of 2^16 rows": lambda: by_class(
        TILE, head_bits(*GROUPS, *IN_LAST, *NEAR) + STATE * 4, ROWS
    ),
    "2^22 changes in groups of 2^16 rows with their signs alone": lambda: by_class(
        TILE, head_bits(*GROUPS, *IN_LAST, *NEAR) + bytes(TILE // 8) + STATE * 4, ROWS
    ),
    "groups of 2^16 rows for one change": lambda: by_class(
        1, head_bits(*GROUPS, *[(1, 1)] * 7, *NEAR) + b"\0" + STATE, ROWS
    ),
    "values that claim 2^22 from eight bytes of LZ4": lambda: one(
        TILE, b"", primitives.encode_varint(TILE) + b"\x10a\0\0\0\0\0\0", 1, 16
    ),
    "a gap of 2^64 - 1": lambda: one(1, b"\xff" * 9 + b"\1", b"\0", 4, 0),
    "tile 2^32 - 1": lambda: joined(
        header([SMALL]), [((1 << 32) - 1, chunk((1 << 32) - 1, 1, b"\0", b"\1\2", 4, 0), 1)]
    ),
    "a header of 200 MiB from 4 KiB of LZ4": lambda: encoder.encode_header(
        primitives.encode_varint(200 * MIB) + bytes(4096), required=1
    ),
    "a table of 2^32 - 1 entries": lambda: packed_header(names=b"\xdd\xff\xff\xff\xff"),
    "2^32 - 1 dtypes": lambda: packed_header(dtypes=b"\xdd\xff\xff\xff\xff"),
    "a column of 4 GiB": lambda: packed_header(shapes=b"\xc6\xff\xff\xff\xff" + bytes(64)),
    "meta of 2^32 - 1 pairs": lambda: packed_header(meta=b"\xdf\xff\xff\xff\xff"),
    "an unknown binary of 4 GiB": lambda: encoder.encode_header(
        b"\x81\xa1z\xc6\xff\xff\xff\xff" + bytes(64)
    ),
    "a name of 4 GiB": lambda: encoder.encode_header(
        b"\x81\xa5names\x91\xdb\xff\xff\xff\xff" + bytes(64)
    ),
    "a name of 300,000 numbers of 18 digits": lambda: packed_header(
        names=msgpack.packb(["\1" * 300_000]),
        numbers=binary(primitives.encode_varint(2 * (10**18 - 1)) * 300_000),
        dtypes=msgpack.packb(["U8"]),
        dtype=binary(b"\0"),
        rank=binary(b"\0"),
        tiles=binary(b"\0\0"),
    ),
    "ten million nested arrays": lambda: encoder.encode_header(
        b"\x81\xa1z" + b"\x91" * 10_000_000 + b"\xc0"
    ),
    "an index of 2^32 - 1 digests": lambda: packed_index(digests=b"\xdd\xff\xff\xff\xff"),
}


# Lies inside of a chunk's streams: its checksum is right, so only decoding shows them.
IN_STREAMS = {threat for threat in HOSTILE if any(x in threat for x in ("2^22", "2^16", "gap"))}

# Small once it is packed: claims that hold, but take many times their bytes.
INFLATED: dict[str, Callable[[], bytes]] = {
    "2^20 + 1 tensors": lambda: many_tensors((1 << 20) + 1),
    "2^24 names without a letter": lambda: packed_header(
        names=b"\xdd" + (1 << 24).to_bytes(4, "big") + b"\xa0" * (1 << 24)
    ),
    "2^24 dtypes": lambda: packed_header(
        dtypes=b"\xdd" + (1 << 24).to_bytes(4, "big") + b"\xa0" * (1 << 24)
    ),
    "2^24 digests": lambda: packed_index(
        digests=b"\xdd" + (1 << 24).to_bytes(4, "big") + b"\xc0" * (1 << 24)
    ),
    "ten million chunks of no bytes": lambda: packed_index(
        tensors=binary(bytes(10_000_000)),
        tiles=binary(bytes(10_000_000)),
        lengths=binary(bytes(10_000_000)),
    ),
}


@pytest.mark.parametrize("threat", INFLATED)
def test_what_lz4_inflates_stays_small(threat: str, tmp_path: Path) -> None:
    data = INFLATED[threat]()
    for reader, (kind, kib) in outcomes(data, tmp_path).items():
        assert kind in {"corrupt", "limit"}, reader
        # The payload itself, and as much again.
        assert kib < 96 * 1024, reader


@pytest.mark.parametrize("threat", HOSTILE)
def test_a_claim_is_not_believed(threat: str, tmp_path: Path) -> None:
    data = HOSTILE[threat]()
    for reader, (kind, kib) in outcomes(data, tmp_path).items():
        allowed = {"corrupt", "limit"}
        if threat in IN_STREAMS:
            allowed |= {"inspect": {"ok"}, "apply": {"layout"}}.get(reader, set())
        assert kind in allowed, reader
        # A fixed multiple of the input, and room for what a process does anyway.
        assert kib < 48 * 1024 + 64 * len(data) // 1024, reader


def test_values_of_unknown_keys_may_nest(tmp_path: Path) -> None:
    """A well-formed value of any depth under an unknown key: read or refused, never a crash."""
    deep = b"\x91" * 100_000 + b"\xc0"
    head = encoder.encode_header(map_of(fields_of([SMALL]), z=deep))
    record = chunk(0, 1, b"\0", b"\1\2", 4, 0)
    for kind, kib in outcomes(joined(head, [(0, record, 1)]), tmp_path).values():
        assert kind in ("ok", "corrupt")
        assert kib < 64 * 1024


def test_chunks_that_inflate_are_held_one_at_a_time(tmp_path: Path) -> None:
    """24 legal chunks of 16 kB, each 2^22 changes: 96 MiB of values and 768 MiB of positions."""
    values = zeros(TILE)
    records = [
        (tile, chunk(tile, TILE, b"\0" + primitives.encode_varint(TILE - 1), values, 2, 16), TILE)
        for tile in range(24)
    ]
    data = joined(header([HUGE]), records)
    assert len(data) < MIB
    got = outcomes(data, tmp_path)
    assert got.pop("apply")[0] == "layout"
    for reader, (kind, kib) in got.items():
        assert kind == "ok", reader
        assert kib < 256 * 1024, reader


def test_narrower_limits_are_kept() -> None:
    record = chunk(0, 1, b"\0", b"\1\2", 4, 0)
    data = joined(header([SMALL]), [(0, record, 1)])
    list(dw.StreamReader(data, limits=dw.Limits(max_tensors=1, max_chunk_bytes=len(record))))
    for limits in (
        dw.Limits(max_header_bytes=20),
        dw.Limits(max_tensors=0),
        dw.Limits(max_chunk_bytes=len(record) - 1),
    ):
        with pytest.raises(dw.LimitExceeded):
            list(dw.StreamReader(data, limits=limits))


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_the_largest_tile(width: int) -> None:
    """2^22 elements, all changed, in the widest steps: the longest streams there are."""
    dtype = {1: "I8", 2: "I16", 4: "I32", 8: "I64"}[width]
    shape = (1 << 9, 1 << 13)
    base = {"w": Value(dtype, shape, bytes(width << 22))}
    half = (1 << (8 * width - 1)).to_bytes(width, "little")
    new = {"w": Value(dtype, shape, half * (1 << 22))}
    target = views(base)
    for profile in ("compact", "fast", "overwrite"):
        sink = io.BytesIO()
        stats = dw.diff(views(base), views(new), sink, profile=profile)
        assert stats.changed == 1 << 22
        dw.apply(sink.getvalue(), target)
        assert contents(target) == new
        target = views(base)


@pytest.mark.parametrize(
    "coding",
    [
        reference.Coding(5, values=2, k=12, result_digest=True),
        reference.Coding(by_class=True),
        reference.Coding(by_class=True, classes=9),
        reference.Coding(by_class=True, classes=9, groups=2),
    ],
    ids=["rice", "one class", "classes", "groups"],
)
def test_a_full_tile_of_the_format(coding: reference.Coding, rng: Any) -> None:
    """A single tile of 2^22 elements as another writer may cut it."""
    shape = (1 << 11, 1 << 11)
    old = rng.integers(0, 256, shape, "u1")
    new = old.copy()
    new[::97, ::89] ^= 1
    new[5] ^= 1
    base = {"w": Value("F8_E4M3", shape, old.tobytes())}
    after = {"w": Value("F8_E4M3", shape, new.tobytes())}
    options = reference.Options(coding=coding, tiles={"w": shape})
    target = views(base)
    dw.apply(reference.encode(base, after, options), target)
    assert contents(target) == after
    assert set(WIDTHS) == set(dw.tensors.ITEMSIZE)
