"""Bad chunks: primitives, chunk fields, positions, values."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from deltawire_reference import Coding, Options, encoder
from deltawire_reference.positions import ALL, BITMAP, GAPS, RICE, RUNS
from deltawire_reference.primitives import encode_varint
from deltawire_reference.rice import encode_rice
from deltawire_reference.values import PLANES, RAW, STEP

from .maker import Bad, Maker, flip
from .parts import lz4_stage

STEPS = Options(Coding(RICE, values=STEP, result_digest=True))


def primitives(m: Maker) -> Iterator[Bad]:
    yield Bad("f01-varint-long", "F1", "a varint with a superfluous byte",
              m.positions(GAPS, b"\x85\x00\x01", 2))  # fmt: skip
    yield Bad("f01-varint-eleven-bytes", "F1", "a varint that never ends",
              m.positions(GAPS, b"\x80" * 11, 1))  # fmt: skip
    yield Bad("f01-varint-65-bits", "F1", "a varint above 64 bits",
              m.positions(GAPS, b"\xff" * 9 + b"\x02", 1))  # fmt: skip
    fields = m.index().index_fields()
    for key in ("tensors", "tiles", "lengths"):
        first = bytes([fields[key][0] | 0x80, 0])
        yield Bad(f"f01-varint-long-in-{key}", "F1", f"a superfluous byte in the index' {key}",
                  m.index(**{key: first + fields[key][1:]}), "index",
                  base="ragged.base")  # fmt: skip
    yield Bad("f01-varint-long-in-shapes", "F1", "a superfluous byte in the header's shapes",
              m.header(shapes=b"\x86\x00\x14"), "header")  # fmt: skip
    yield Bad("f01-varint-cut-in-tiles", "F8", "a varint that ends early in the header's tiles",
              m.header(tiles=b"\x00\x80"), "header")  # fmt: skip
    body = record_body(m.parts().chunks[0])
    for name, at in (("tensor", 2), ("tile", 3), ("changes", 4), ("positions", 13)):
        long = body[:at] + bytes([body[at] | 0x80, 0]) + body[at + 1 :]
        yield Bad(f"f01-varint-long-{name}", "F1", f"a superfluous byte in a chunk's {name}",
                  m.chunk(body=long))  # fmt: skip
    parts = m.parts()
    parts.chunks[0] |= {"long_length": True}
    yield Bad("f01-varint-long-length", "F1", "a superfluous byte in a chunk's length", parts)
    raw = m.parts().chunks[0]["values"]
    long = bytes([len(raw) | 0x80, 0]) + lz4_stage(raw)[1:]
    yield Bad("f01-varint-long-stage", "F1", "a superfluous byte in an LZ4 stage's length",
              m.chunk(value_byte=16, values=long))  # fmt: skip

    spare = m.chunk("odd-columns", Options(Coding(BITMAP), states=False), positions=b"\x01\x80",
                    changes=1, values=b"\x11\x3c")  # fmt: skip
    yield Bad("f02-bitmap-spare-bits", "F2", "a change behind the tile's last element", spare,
              base="odd-columns.base")  # fmt: skip
    yield Bad("f02-sign-spare-bits", "F2", "signs of changes that do not exist",
              m.steps(b"\x0f\x00"))  # fmt: skip
    yield Bad("f02-rice-low-spare-bits", "F2", "low bits of numbers that do not exist",
              m.positions(RICE, b"\x03\x40\x03", 2))  # fmt: skip
    yield Bad("f02-rice-unary-spare-bits", "F2", "one bits behind the last number",
              m.positions(RICE, b"\x00\x07", 2))  # fmt: skip
    yield Bad("f02-escape-low-bits", "F2", "low bits beside an escape",
              m.steps(_sizes(1, [0], b"\x01\x01\x00\x00\x00\x01", b"\x40\x00")))  # fmt: skip
    for codec in (0, 6, 7, 15):
        yield Bad(f"f02-position-codec-{codec}", "F2", "a reserved position codec",
                  m.chunk(position_byte=codec))  # fmt: skip
    for codec in (3, 4, 15):
        yield Bad(f"f02-value-codec-{codec}", "F2", "a reserved value codec",
                  m.chunk(value_byte=codec))  # fmt: skip
    for stage in (2, 3):
        yield Bad(f"f02-position-stage-{stage}", "F2", "a reserved position stage",
                  m.chunk(position_byte=GAPS | stage << 4))  # fmt: skip
    for stage in (2, 15):
        yield Bad(f"f02-value-stage-{stage}", "F2", "a reserved value stage",
                  m.chunk(value_byte=RAW | stage << 4))  # fmt: skip
    full = Options(Coding(BITMAP, values=PLANES, result_digest=True))
    yield Bad("f02-planes-with-stage", "F2", "byte planes with a value stage",
              m.chunk("full", full, value_byte=PLANES | 16), base="full.base")  # fmt: skip
    for kind in (0, 3, 5, 255):
        yield Bad(f"f02-record-type-{kind}", "F2", "an unknown record type", m.chunk(kind=kind))
    parts = m.parts()
    parts.index_fixed = {"flags": 2}
    yield Bad("f02-index-flags", "F2", "an unknown index flag", parts, "index")
    parts = m.parts()
    parts.index_fixed = {"reserved": 1}
    yield Bad("f02-index-reserved", "F2", "a reserved field of the index", parts, "index")

    places = {"header": 40, "chunk 0": 30, "index": 12, "trailer": 0}
    for place, at in places.items():
        for name, where in (("byte", at), ("checksum", -5 if place == "trailer" else -1)):
            parts = m.parts()
            parts.patch = flip(place, where, 16)
            yield Bad(
                f"f03-{place.replace(' ', '-')}-{name}", "F3", f"an altered {name}", parts, place
            )


def record_body(chunk: dict[str, Any]) -> bytes:
    """The body of a record of less than 16 KiB."""
    record = encoder.chunk_record(**chunk)
    return record[2 if record[1] < 0x80 else 3 : -4]


def _matched(raw: bytes, offset: int, extra: int) -> bytes:
    """An LZ4 stage of so many bytes, with a match behind the first five."""
    match = bytes([0x50 | extra]) + raw[:5] + struct.pack("<H", offset)
    rest = raw[5 + 4 + extra :]
    block = match + bytes([0xF0, len(rest) - 15]) + rest
    return encode_varint(len(raw)) + block


def _sizes(exceptions: int, gaps: list[int], sizes: bytes, tail: bytes = b"") -> bytes:
    """A step stream of three changes with a hand-made stream of sizes."""
    stream = encode_rice(gaps, 0)
    return b"\x07" + encode_varint(exceptions) + encode_varint(len(stream)) + stream + sizes + tail


def chunks(m: Maker) -> Iterator[Bad]:
    yield Bad("f10-no-changes", "F10", "a chunk of nothing",
              m.chunk(changes=0, positions=b"", values=b""))  # fmt: skip
    yield Bad("f10-too-many-changes", "F10", "more changes than elements",
              m.positions(GAPS, b"\0" * 121, 121))  # fmt: skip
    yield Bad("f10-4g-changes", "F10", "2^32 - 1 changes claimed", m.chunk(changes=(1 << 32) - 1))
    for bits, claim in ((32, 1 << 32), (64, (1 << 64) - 1)):
        for field in ("tensor", "tile", "changes"):
            # The index cannot say it, so a reader by range stops there.
            parts = m.parts()
            parts.chunks[0][field] = claim
            yield Bad(f"f10-{field}-{bits}-bits", "F10", f"a {field} of {claim}", parts,
                      "from chunk 0")  # fmt: skip
    yield Bad("f10-tensor", "F10", "a tensor behind the table", m.chunk(tensor=1),
              "from chunk 0")  # fmt: skip
    yield Bad("f10-tensor-4g", "F10", "tensor 2^32 - 1", m.chunk(tensor=(1 << 32) - 1),
              "from chunk 0")  # fmt: skip
    yield Bad("f10-tile", "F10", "a tile behind the tensor", m.chunk(tile=1), "from chunk 0")
    yield Bad("f10-tile-4g", "F10", "tile 2^32 - 1", m.chunk(tile=(1 << 32) - 1),
              "from chunk 0")  # fmt: skip
    parts = m.parts("many")
    parts.chunks[0]["tensor"] = 2
    yield Bad("f10-tile-of-empty", "F10", "a chunk of an empty tensor", parts, "from chunk 0",
              base="many.base")  # fmt: skip

    parts = m.many()
    parts.chunks[1], parts.chunks[2] = parts.chunks[2], parts.chunks[1]
    yield Bad("f11-tiles-descend", "F11", "tiles in the wrong order", parts, "from chunk 2",
              base="ragged.base")  # fmt: skip
    parts = m.many()
    parts.chunks.insert(1, dict(parts.chunks[0]))
    yield Bad("f11-tile-twice", "F11", "a tile that comes twice", parts, "from chunk 1",
              base="ragged.base")  # fmt: skip
    parts = m.parts("many", Options(Coding(), tiles={"model.embed.weight": (2, 4)}))
    parts.chunks.append(parts.chunks.pop(1))
    last = f"from chunk {len(parts.chunks) - 1}"
    yield Bad("f11-tensor-twice", "F11", "a tensor in two places", parts, last, base="many.base")

    body = record_body(m.parts().chunks[0])
    for name, cut in {
        "empty": b"", "no-flags": body[:1], "no-changes": body[:4], "no-digest": body[:5],
        "digest-cut": body[:12], "no-positions": body[:13], "positions-cut": body[:15],
    }.items():  # fmt: skip
        yield Bad(f"f27-{name}", "F27", f"a body that ends early: {name}", m.chunk(body=cut))
    for claim in (1 << 20, (1 << 64) - 1):
        yield Bad(f"f27-positions-{claim.bit_length()}-bits", "F27", f"{claim} bytes of positions",
                  m.chunk(positions_length=claim))  # fmt: skip

    parts = m.chunk(options=STEPS, result=None)
    yield Bad("f12-steps-without-digest", "F12", "steps on an unknown base", parts)
    yield Bad("f13-steps-wrong-base", "F13", "steps on a target that holds other bits",
              m.parts(options=STEPS), None, "wrong-base", "mixed.other")  # fmt: skip
    both = Options(Coding(RICE, values=STEP, base_digest=True, result_digest=True), states=False)
    based = Options(Coding(RICE, values=STEP, base_digest=True), states=False)
    yield Bad("f12-wrong-base", "F12", "a target that holds other bits", m.parts(options=both),
              None, "wrong-base", "mixed.other")  # fmt: skip
    yield Bad("f12-wrong-base-alone", "F12", "a wrong base, and no result digest",
              m.parts(options=based), None, "wrong-base", "mixed.other")  # fmt: skip
    overwrite = Options(Coding(base_digest=True), states=False)
    yield Bad("f12-wrong-base-raw", "F12", "new values on a wrong base", m.parts(options=overwrite),
              None, "wrong-base", "mixed.other")  # fmt: skip
    parts = m.parts(options=both)
    parts.chunks[0]["base"] ^= 1 << 63
    parts.chunks[0]["result"] ^= 1
    yield Bad("f12-lying-base-digest", "F12", "a base digest that fits nothing", parts,
              None, "wrong-base")  # fmt: skip
    parts = m.parts(options=both)
    parts.chunks[0]["result"] ^= 1 << 40
    yield Bad("f13-lying-result-digest", "F13", "a step chunk that ends elsewhere", parts)
    parts = m.parts(options=Options(Coding(RICE, values=STEP), states=False))
    parts.chunks[0]["result"] ^= 1 << 40
    yield Bad("f13-lying-result-digest-alone", "F13", "steps that end elsewhere, without a base",
              parts, kind="wrong-base")  # fmt: skip
    parts = m.parts(options=Options(Coding(result_digest=True), states=False))
    parts.chunks[0]["result"] ^= 1
    yield Bad("f13-lying-result-digest-raw", "F13", "an overwrite chunk that ends elsewhere", parts,
              kind="wrong-base")  # fmt: skip


def positions(m: Maker) -> Iterator[Bad]:
    def bad(
        name: str, threat: str, codec: int, stream: bytes, changes: int, rule: str = "F14"
    ) -> Bad:
        return Bad(name, rule, threat, m.positions(codec, stream, changes))

    yield bad("f14-all-but-fewer", "all elements, yet fewer changes", ALL, b"", 119)
    yield bad("f14-all-with-bytes", "a stream of bytes for all", ALL, b"\0", 120)
    yield bad("f14-runs-outside", "a run behind the tile", RUNS, b"\x78\x00", 1)
    yield bad("f14-runs-over-edge", "a run over the tile's end", RUNS, b"\x76\x02", 3)
    yield bad("f14-runs-touch", "two runs that touch", RUNS, b"\x00\x00\x00\x00", 2)
    yield bad("f14-runs-too-many", "a run longer than the changes", RUNS, b"\x00\x05", 3)
    yield bad("f14-runs-too-few", "runs that end early", RUNS, b"\x00\x01", 3)
    yield bad("f14-runs-trailing", "bytes behind the last run", RUNS, b"\x00\x02\x05\x00", 3)
    yield bad("f14-runs-huge", "a run of 2^64 elements", RUNS, b"\x01" + b"\xff" * 9 + b"\x01", 3)
    yield bad(
        "f14-bitmap-count", "a bitmap with more bits than changes", BITMAP, b"\x07" + bytes(14), 2
    )
    yield bad("f14-bitmap-short", "a bitmap without its last byte", BITMAP, b"\x07" + bytes(13), 3)
    yield bad("f14-bitmap-long", "a byte behind a bitmap", BITMAP, b"\x07" + bytes(15), 3)
    yield bad("f14-gaps-outside", "a gap behind the tile", GAPS, b"\x00\x77", 2)
    yield bad("f14-gaps-huge", "a gap that wraps to an earlier element", GAPS,
              b"\x05" + encode_varint((1 << 64) - 3), 2)  # fmt: skip
    yield bad("f14-gaps-too-few", "gaps that end early", GAPS, b"\x00", 2)
    yield bad("f14-gaps-trailing", "a byte behind the last gap", GAPS, b"\x00\x01\x02", 2)
    yield bad("f14-rice-outside", "a Rice gap behind the tile", RICE, encode_rice([0, 119], 4), 2)
    yield bad(
        "f14-rice-trailing", "a byte behind the last gap", RICE, encode_rice([0, 1], 2) + b"\0", 2
    )
    yield bad("f14-rice-empty", "an empty Rice stream", RICE, b"", 2)
    yield bad("f16-positions-k25", "positions with k = 25", RICE, encode_rice([3], 25), 1, "F16")
    yield bad("f16-positions-k255", "positions with k = 255", RICE, b"\xff" + bytes(40), 1, "F16")
    yield bad("f14-rice-low-cut", "low bits that end early", RICE, b"\x10\x01", 2)
    yield bad("f14-rice-unary-cut", "zero bits to the end of the stream", RICE,
              b"\x00\x01" + bytes(9), 2)  # fmt: skip


def values(m: Maker) -> Iterator[Bad]:
    raw = m.parts().chunks[0]["values"]
    yield Bad("f15-raw-short", "F15", "raw values that end early", m.chunk(values=raw[:-1]))
    yield Bad("f15-raw-long", "F15", "a byte behind the raw values", m.chunk(values=raw + b"\0"))
    full = Options(Coding(ALL, values=PLANES, result_digest=True))
    planes = m.parts("full", full).chunks[0]["values"]
    for name, stream in {
        "plane-cut": planes[:-1], "plane-missing": planes[:124], "planes-trailing": planes + b"\0",
        "plane-short": struct.pack("<I", 119) + planes[4:123] + planes[124:],
        "plane-claims-2g": b"\xff\xff\xff\x7f" + planes[4:],
    }.items():  # fmt: skip
        yield Bad(f"f15-{name}", "F15", f"byte planes: {name}",
                  m.chunk("full", full, values=stream), base="full.base")  # fmt: skip
    gap = encode_rice([0], 0)
    head = b"\x07\x01" + encode_varint(len(gap)) + gap
    escape = bytes([1]) + b"\x00" + b"\x00\x00\x00\x01"
    positive = escape + struct.pack("<H", (1 << 15) - 2)
    negative = b"\x06" + head[1:] + escape + struct.pack("<H", (1 << 15) - 1)
    steps = {
        "step-too-large": ("a step of +2^15 in 16 bits", head + positive),
        "step-too-small": ("a step of -2^15 - 1 in 16 bits", negative),
        "step-exceptions": ("more exceptions than changes", b"\x07\x04\x02\x00\x0f\x00\x0f"),
        "step-exceptions-2-64": ("2^64 - 1 exceptions", b"\x07" + encode_varint((1 << 64) - 1)),
        "step-gap-outside": ("an exception behind the changes",
                             _sizes(1, [3], encode_rice([0], 0, escape_width=2))),
        "step-gaps-long": ("a byte behind the gaps of the exceptions",
                           b"\x07\x01\x03" + gap + b"\0" + encode_rice([0], 0, escape_width=2)),
        "step-gaps-claim": ("gaps that claim 2^63 bytes",
                            b"\x07\x01" + encode_varint(1 << 63) + gap),
        "step-trailing": ("a byte behind the sizes",
                          _sizes(1, [0], encode_rice([0], 0, escape_width=2), b"\0")),
        "step-trailing-no-exceptions": ("a byte behind zero exceptions", b"\x07\x00\x00"),
        "step-no-signs": ("an empty step stream", b""),
        "step-no-count": ("signs only", b"\x07"),
        "step-no-sizes": ("no sizes", head),
    }  # fmt: skip
    for name, (threat, stream) in steps.items():
        yield Bad(f"f15-{name}", "F15", threat, m.steps(stream), base="sparse.base")
    yield Bad("f16-exceptions-k25", "F16", "exception gaps with k = 25",
              m.steps(b"\x07\x01\x06" + encode_rice([0], 25) + encode_rice([0], 0, escape_width=2)),
              base="sparse.base")  # fmt: skip
    yield Bad("f16-sizes-k64", "F16", "sizes with k = 64",
              m.steps(head + b"\x40" + bytes(8) + b"\x01"), base="sparse.base")  # fmt: skip
    yield Bad("f17-escape-small", "F17", "an escape that was not needed",
              m.steps(head + escape + struct.pack("<H", 47)), base="sparse.base")  # fmt: skip
    yield Bad("f17-escape-25-zeros", "F17", "25 zero bits in a stream with escapes",
              m.steps(head + b"\x00\x00\x00\x00\x02" + struct.pack("<H", 100)),
              base="sparse.base")  # fmt: skip
    yield Bad("f15-escape-cut", "F15", "an escape that ends early",
              m.steps(head + escape + b"\xff"), base="sparse.base")  # fmt: skip
    claim = encode_varint(len(raw))
    lz4 = {
        "long": lz4_stage(raw, len(raw) + 1), "short": lz4_stage(raw, len(raw) - 1),
        "zero": lz4_stage(raw, 0), "claims-4g": lz4_stage(raw, (1 << 32) - 1),
        "claims-2-64": lz4_stage(raw, (1 << 64) - 1),
        "empty": b"", "length-cut": b"\x80", "no-block": claim,
        # Five literals, a match of 9 + 19 bytes, and the rest.
        "offset-behind": _matched(raw, 6, 3), "offset-zero": _matched(raw, 0, 3),
        "match-too-long": claim + b"\x5f" + raw[:5] + b"\x01\x00\xff\xff\x00" + raw[-5:],
        "literals-cut": claim + b"\xf0\xff\xff" + raw,
        "no-offset": claim + b"\x50" + raw[:5] + b"\1",
        "dictionary": _matched(raw, 1000, 3),
    }  # fmt: skip
    for name, stored in lz4.items():
        yield Bad(f"f18-values-{name}", "F18", f"an LZ4 stage of values: {name}",
                  m.chunk(value_byte=16, values=stored))  # fmt: skip
    parts = m.parts()
    parts.chunks[0] |= {
        "position_byte": GAPS | 16,
        "positions": lz4_stage(parts.chunks[0]["positions"], 1 << 30),
    }
    yield Bad(
        "f18-positions-claim-1g", "F18", "an LZ4 stage of positions that claims 2^30 bytes", parts
    )
    words = struct.pack("<I", 15 | 1 << 31) + encode_varint(1 << 31) + bytes(10)
    yield Bad("f18-plane-claims-2g", "F18", "an LZ4 plane that claims 2^31 bytes",
              m.chunk("full", full, values=words + planes[124:]), base="full.base")  # fmt: skip
