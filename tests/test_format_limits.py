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

import lz4.block
import msgpack
import pytest

import deltawire as dw
from strategies import WIDTHS, Value, contents, encoder, primitives, reference, views

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


def header(tensors: list[list[Any]]) -> bytes:
    payload = msgpack.packb(
        {
            "run": "",
            "version": 1,
            "base_version": 0,
            "base_state": None,
            "profile": "compact",
            "meta": {},
            "tensors": tensors,
        }
    )
    return encoder.encode_header(payload)


def many_tensors(count: int) -> bytes:
    """A header alone, with a table of scalars."""
    payload = msgpack.packb(
        {"run": "", "version": 1, "base_version": 0, "base_state": None, "profile": "compact",
         "meta": {}, "tensors": []}
    )[:-1]  # fmt: skip
    payload += b"\xdd" + count.to_bytes(4, "big")
    payload += b"".join(b"\x95\xa7%07d\xa2U8\x01\x90\x92\x01\x01" % i for i in range(count))
    return encoder.encode_header(primitives.encode_stage(1, payload), required=1)


def chunk(tile: int, changes: int, positions: bytes, values: bytes, p: int, v: int) -> bytes:
    return encoder.chunk_record(
        tensor=0, tile=tile, changes=changes, positions=positions, values=values,
        position_byte=p, value_byte=v,
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


SMALL = ["w", "BF16", 2, [4], [4, 1]]
TILE = 1 << 22
HUGE = ["w", "U8", 1, [TILE, 1 << 20], [4, 1 << 20]]


def zeros(length: int) -> bytes:
    """An LZ4 stage of zeros, about 255 times smaller."""
    return length.to_bytes(4, "little") + lz4.block.compress(bytes(length), store_size=False)


def one(changes: int, positions: bytes, values: bytes, p: int, v: int) -> bytes:
    record = chunk(0, changes, positions, values, p, v)
    return joined(header([HUGE]), [(0, record, changes)])


def cut_claim(offset: int, claim: int) -> bytes:
    """A small file whose 32-bit length at ``offset`` claims more."""
    data = bytearray(joined(header([SMALL]), [(0, chunk(0, 1, b"\0", b"\1\2", 4, 0), 1)]))
    data[offset : offset + 4] = claim.to_bytes(4, "little")
    return bytes(data)


CHUNK_AT = len(header([SMALL]))
INDEX_AT = CHUNK_AT + len(chunk(0, 1, b"\0", b"\1\2", 4, 0))

STEPS_OF_NOTHING = encoder.chunk_record(
    tensor=0, tile=0, changes=TILE, positions=b"", values=b"", position_byte=1, value_byte=2, base=0
)

GROUPS_OF_NOTHING = encoder.chunk_record(
    tensor=0, tile=0, changes=TILE, positions=b"", values=b"", position_byte=1, value_byte=3, base=0
)

# One class, all elements of the tile, parameter 0 (almost no bits a number), and the state alone.
ALL_RANKS = b"\1" + primitives.encode_varint(TILE) + b"\0" + struct.pack("<I", 1 << 23)

HOSTILE: dict[str, Callable[[], bytes]] = {
    "a header of 256 MiB": lambda: cut_claim(12, 256 * MIB),
    "a header of 4 GiB": lambda: cut_claim(12, (1 << 32) - 1),
    "positions of 70 MiB": lambda: cut_claim(CHUNK_AT + 16, 70 * MIB),
    "values of 70 MiB": lambda: cut_claim(CHUNK_AT + 20, 70 * MIB),
    "values of 4 GiB": lambda: cut_claim(CHUNK_AT + 20, (1 << 32) - 1),
    "an index of 256 MiB": lambda: cut_claim(INDEX_AT + 4, 256 * MIB),
    "2^22 changes in no bytes": lambda: one(TILE, b"", b"", 1, 0),
    "2^22 changes in a few gaps": lambda: one(TILE, b"\0\0", bytes(2), 4, 0),
    "2^22 changes in an empty Rice stream": lambda: one(TILE, b"\0", bytes(4), 5, 0),
    "2^22 changes in one run, no values": lambda: one(
        TILE, b"\0" + primitives.encode_varint(TILE - 1), b"", 2, 0
    ),
    "2^22 steps in no bytes": lambda: joined(header([HUGE]), [(0, STEPS_OF_NOTHING, TILE)]),
    "2^22 ranks in a state": lambda: one(TILE, ALL_RANKS, b"", 6, 0),
    "2^22 ranks in a state and zeros": lambda: one(TILE, ALL_RANKS + bytes(60), b"", 6, 0),
    "2^22 ranks with 20 low bits each in no bytes": lambda: one(
        TILE, ALL_RANKS[:-5] + b"\xbf" + ALL_RANKS[-4:], b"", 6, 0
    ),
    "2^22 ranks in LZ4 stage of zeros": lambda: one(TILE, zeros(20 * MIB), b"", 6 | 16, 0),
    "2^22 grouped steps in no bytes": lambda: joined(
        header([HUGE]), [(0, GROUPS_OF_NOTHING, TILE)]
    ),
    "values that claim 2^22 from eight bytes of LZ4": lambda: one(
        TILE, b"", TILE.to_bytes(4, "little") + b"\x10a\0\0\0\0\0\0", 1, 16
    ),
    "a gap of 2^64 - 1": lambda: one(1, b"\xff" * 9 + b"\1", b"\0", 4, 0),
    "tile 2^32 - 1": lambda: joined(
        header([SMALL]), [((1 << 32) - 1, chunk((1 << 32) - 1, 1, b"\0", b"\1\2", 4, 0), 1)]
    ),
    "a header of 200 MiB from 4 KiB of LZ4": lambda: encoder.encode_header(
        (200 * MIB).to_bytes(4, "little") + bytes(4096), required=1
    ),
    "a table of 2^32 - 1 entries": lambda: encoder.encode_header(
        msgpack.packb({"tensors": []})[:-1] + b"\xdd\xff\xff\xff\xff"
    ),
    "meta of 2^32 - 1 pairs": lambda: encoder.encode_header(
        msgpack.packb({"meta": {}})[:-1] + b"\xdf\xff\xff\xff\xff"
    ),
    "an unknown binary of 4 GiB": lambda: encoder.encode_header(
        b"\x81\xa1z\xc6\xff\xff\xff\xff" + bytes(64)
    ),
    "a name of 4 GiB": lambda: encoder.encode_header(
        b"\x81\xa7tensors\x91\x95\xdb\xff\xff\xff\xff" + bytes(64)
    ),
    "2^20 + 1 tensors": lambda: many_tensors((1 << 20) + 1),
    "ten million nested arrays": lambda: encoder.encode_header(
        b"\x81\xa1z" + b"\x91" * 10_000_000 + b"\xc0"
    ),
    "an index of 2^32 - 1 digests": lambda: (
        header([SMALL])
        + encoder.index_record(
            msgpack.packb({"count": 0, "changed": 0, "chunks": b"", "digests": []})[:-1]
            + b"\xdd\xff\xff\xff\xff"
        )
    ),
}


# Lies inside of a chunk's streams: its checksum is right, so only decoding shows them.
IN_STREAMS = {threat for threat in HOSTILE if "2^22" in threat or "gap" in threat}


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
    deep = msgpack.packb({"z": 0})[1:-1] + b"\x91" * 100_000 + b"\xc0"
    payload = msgpack.packb(
        {"run": "", "version": 1, "base_version": 0, "base_state": None, "profile": "compact",
         "meta": {}, "tensors": [SMALL]}
    )  # fmt: skip
    head = encoder.encode_header(bytes([payload[0] + 1]) + payload[1:] + deep)
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
    data = joined(header([SMALL]), [(0, chunk(0, 1, b"\0", b"\1\2", 4, 0), 1)])
    list(dw.StreamReader(data))
    for limits in (
        dw.Limits(max_header_bytes=20),
        dw.Limits(max_tensors=0),
        dw.Limits(max_chunk_bytes=20),
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
        reference.Coding(6, values=3, result_digest=True),
        reference.Coding(6, values=3, classes=9, result_digest=True),
    ],
    ids=["rice", "ranks", "classes"],
)
def test_a_full_tile_of_the_format(coding: reference.Coding, rng: Any) -> None:
    """A single tile of 2^22 elements as another writer may cut it."""
    shape = (1 << 11, 1 << 11)
    old = rng.integers(0, 256, shape, "u1")
    new = old.copy()
    new[::97, ::89] ^= 1
    base = {"w": Value("F8_E4M3", shape, old.tobytes())}
    after = {"w": Value("F8_E4M3", shape, new.tobytes())}
    options = reference.Options(coding=coding, tiles={"w": shape})
    target = views(base)
    dw.apply(reference.encode(base, after, options), target)
    assert contents(target) == after
    assert set(WIDTHS) == set(dw.tensors.ITEMSIZE)
