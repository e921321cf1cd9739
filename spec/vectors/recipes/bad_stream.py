"""Bad streams: header, index, trailer, what is cut off or added, limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgpack

from deltawire_reference.primitives import encode_varint

from .maker import Bad, Maker, Patch, cut, flip
from .parts import Parts, Spans, lz4_stage


def header(m: Maker) -> Iterator[Bad]:
    def bad(name: str, rule: str, threat: str, parts: Parts, kind: str = "corrupt") -> Bad:
        return Bad(name, rule, threat, parts, "header", kind)

    yield bad("f04-tile-zero-rows", "F4", "tiles without rows", m.table(tile=[0, 20]))
    yield bad("f04-tile-zero-columns", "F4", "tiles without columns", m.table(tile=[6, 0]))
    yield bad("f04-tile-zero", "F4", "tiles without elements", m.table(tile=[0, 0]))
    parts = m.parts("empty")
    parts.header["tensors"][0][4] = [1, 1]
    yield Bad(
        "f04-tile-of-empty", "F4", "a tile in an empty tensor", parts, "header", base="empty.base"
    )
    yield bad("f05-tile-too-large", "F5", "a tile of 2^22 + 1024 elements",
              m.table(shape=[8192, 1024], tile=[4097, 1024]))  # fmt: skip
    yield bad("f05-too-many-tiles", "F5", "a tensor of 2^32 tiles",
              m.table(shape=[1 << 32], tile=[1, 1]))  # fmt: skip
    yield bad("f05-tile-product-wraps", "F5", "tile sides whose product wraps to a small number",
              m.table(shape=[1 << 33, 1 << 24], tile=[1 << 33, 1 << 31]))  # fmt: skip
    yield bad(
        "f06-tile-cuts-word", "F6", "a tile border inside a digest word", m.table(tile=[6, 6])
    )

    for name, fixed in {
        "f07-major-0": {"major": 0}, "f07-major-2": {"major": 2},
        "f07-required-1": {"required": 2}, "f07-required-63": {"required": 1 << 63},
    }.items():  # fmt: skip
        parts = m.parts()
        parts.header_fixed = dict(fixed)
        yield bad(name, "F7", f"a delta of the future: {fixed}", parts, "unsupported")

    twice = m.parts()
    twice.header["tensors"] *= 2
    twice.states["digests"] = [None, None]
    twice.states["result_state"] = None
    yield bad("f08-name-twice", "F8", "two tensors of one name", twice)
    yield bad("f08-name-empty", "F8", "an empty name", m.table(name=""))
    yield bad("f08-name-long", "F8", "a name of 4097 bytes", m.table(name="w" * 4097))
    yield bad("f08-name-not-utf8", "F8", "a name that is not UTF-8",
              m.swapped(b"\x95\xa1w", b"\x95\xa1\xff"))  # fmt: skip
    yield bad("f08-name-is-bin", "F8", "a name of type bin", m.table(name=b"w"))
    yield bad("f08-33-dimensions", "F8", "33 dimensions", m.table(shape=[1] * 31 + [6, 20]))
    yield bad("f08-shape-63-bits", "F8", "a tensor of 2^63 bytes",
              m.table(shape=[1 << 31, 1 << 31], tile=[1, 1 << 20]))  # fmt: skip
    yield bad("f08-shape-wraps", "F8", "dimensions whose product wraps to 120",
              m.table(shape=[(1 << 62) + 6, 20, 1 << 2, 1 << 60], tile=[1, 1024]))  # fmt: skip
    yield bad("f08-shape-negative", "F8", "a negative dimension", m.table(shape=[-6, 20]))
    yield bad("f08-shape-float", "F8", "a dimension that is no integer", m.table(shape=[6.0, 20]))
    yield bad("f08-tile-of-three", "F8", "a tile of three numbers", m.table(tile=[6, 20, 1]))
    for key, value in {
        "run": 1, "version": -1, "base_version": "0", "base_state": b"\0" * 15, "profile": None,
        "meta": ["a", "b"], "tensors": {},
    }.items():  # fmt: skip
        yield bad(f"f08-{key.replace('_', '-')}-type", "F8", f"{key} of a wrong type or size",
                  m.header(**{key: value}))  # fmt: skip
        parts = m.parts()
        del parts.header[key]
        yield bad(f"f08-{key.replace('_', '-')}-missing", "F8", f"no {key}", parts)
    yield bad("f08-meta-value", "F8", "a meta value that is no string", m.header(meta={"a": 1}))
    yield bad("f08-meta-key", "F8", "a meta key that is no string", m.header(meta={1: "a"}))
    yield bad("f08-entry-of-four", "F8", "a table entry without a tile",
              m.header(tensors=[["w", "BF16", 2, [6, 20]]]))  # fmt: skip
    yield bad("f08-key-repeated", "F8", "a repeated key",
              m.payload(lambda p: bytes([p[0] + 1]) + p[1:] + b"\xa3run\xa0"))  # fmt: skip
    yield bad("f08-meta-key-repeated", "F8", "a repeated meta key",
              m.swapped(b"\xa4meta\x80", b"\xa4meta\x82\xa1a\xa0\xa1a\xa0"))  # fmt: skip
    yield bad("f08-trailing", "F8", "a byte behind the map", m.payload(lambda p: p + b"\xc0"))
    yield bad("f08-cut", "F8", "a map that ends early", m.payload(lambda p: p[:-1]))
    yield bad("f08-empty", "F8", "an empty payload", m.payload(lambda p: b""))
    yield bad("f08-not-a-map", "F8", "an array instead of a map",
              m.payload(lambda p: b"\x91" + p))  # fmt: skip
    yield bad("f08-map-claims-4g", "F8", "a map that claims 2^32 - 1 pairs",
              m.payload(lambda p: b"\xdf\xff\xff\xff\xff" + p[1:]))  # fmt: skip
    yield bad("f08-table-claims-4g", "F8", "a table that claims 2^32 - 1 tensors",
              m.swapped(b"\xa7tensors\x91", b"\xa7tensors\xdd\xff\xff\xff\xff"))  # fmt: skip
    yield bad("f08-name-claims-4g", "F8", "a name that claims 2^32 - 1 bytes",
              m.swapped(b"\x95\xa1w", b"\x95\xdb\xff\xff\xff\xffw"))  # fmt: skip
    deep = b"\x91" * 100_000 + b"\xc0"
    yield bad("f08-nested-cut", "F8", "100,000 nested arrays without an end in an unknown value",
              m.payload(lambda p: bytes([p[0] + 1]) + p[1:] + b"\xa1z" + deep[:-1]))  # fmt: skip
    yield bad("f08-reserved-byte", "F8", "a value of MessagePack's unused type",
              m.payload(lambda p: bytes([p[0] + 1]) + p[1:] + b"\xa1z\xc1"))  # fmt: skip
    yield bad("f09-width", "F9", "BF16 of four bytes", m.table(width=4))
    yield bad("f09-width-zero", "F9", "BF16 of no bytes", m.table(width=0))
    yield bad("f09-width-256", "F9", "a width that wraps to that of BF16", m.table(width=258))
    yield bad(
        "f09-unknown-dtype", "F9", "a dtype of the future", m.table(dtype="BF12"), "unsupported"
    )
    yield bad("f09-lower-case", "F9", "a dtype in lower case", m.table(dtype="bf16"), "unsupported")
    yield bad("f09-empty-dtype", "F9", "no dtype", m.table(dtype=""), "unsupported")


def payload_stages(m: Maker) -> Iterator[Bad]:
    for name, length in {"long": 1, "short": -1}.items():
        parts = m.parts()
        payload = msgpack.packb(parts.header)
        parts.header_payload = lz4_stage(payload, len(payload) + length)
        parts.header_fixed = {"required": 1}
        yield Bad(f"f18-header-{name}", "F18", f"an LZ4 header: {name}", parts, "header")
    parts = m.parts()
    parts.header_payload = lz4_stage(bytes(1000), 200 << 20)
    parts.header_fixed = {"required": 1}
    yield Bad("f18-header-bomb", "F18", "an LZ4 header of 200 MiB from 14 bytes", parts, "header")
    parts = m.parts()
    parts.index_payload = lz4_stage(bytes(1000), 200 << 20)
    parts.index_fixed = {"flags": 1}
    yield Bad("f18-index-bomb", "F18", "an LZ4 index of 200 MiB from 14 bytes", parts, "index")
    parts = m.parts()
    parts.header_payload = b"\0\0\0"
    parts.header_fixed = {"required": 1}
    yield Bad("f18-header-three-bytes", "F18", "an LZ4 header of three bytes", parts, "header")


def index(m: Maker) -> Iterator[Bad]:
    def bad(name: str, threat: str, rule: str = "F19", **fields: object) -> Bad:
        return Bad(name, rule, threat, m.index(**fields), "index", base="ragged.base")

    parts = m.index()
    _, spans = parts.build()
    rows = [
        (0, chunk["tile"], spans[f"chunk {i}"][1] - spans[f"chunk {i}"][0])
        for i, chunk in enumerate(parts.chunks)
    ]

    def packed(rows: list[tuple[int, int, int]]) -> bytes:
        return b"".join(encode_varint(x) for row in rows for x in row)

    (t, tile, length), (_, tile1, length1) = rows[:2]
    yield bad("f19-count", "a chunk too many", count=len(rows) + 1)
    yield bad("f19-count-2-63", "2^63 chunks claimed", count=1 << 63)
    yield bad(
        "f19-changed", "a change too many", changed=sum(c["changes"] for c in parts.chunks) + 1
    )
    yield bad("f19-changed-zero", "no change claimed", changed=0)
    yield bad(
        "f19-row-missing", "a chunk without a row", chunks=packed(rows[:-1]), count=len(rows) - 1
    )
    yield bad("f19-row-missing-count", "fewer rows than chunks counted", chunks=packed(rows[:-1]))
    yield bad("f19-row-extra", "a row without a chunk", chunks=packed([*rows, rows[-1]]),
              count=len(rows) + 1)  # fmt: skip
    yield bad(
        "f19-row-order", "rows in another order", chunks=packed([rows[1], rows[0], *rows[2:]])
    )
    yield bad("f19-row-tensor", "another tensor", chunks=packed([(1, tile, length), *rows[1:]]))
    yield bad("f19-row-tile", "another tile", chunks=packed([(t, tile1, length), *rows[1:]]))
    moved = packed([(t, tile, length + 1), (t, tile1, length1 - 1), *rows[2:]])
    yield Bad("f19-row-length", "F19", "lengths moved from chunk to chunk", m.index(chunks=moved),
              "from chunk 0", base="ragged.base")  # fmt: skip
    yield bad("f19-row-length-2-63", "a record of 2^63 bytes",
              chunks=packed([(t, tile, 1 << 63), *rows[1:]]))  # fmt: skip
    yield bad(
        "f19-row-length-zero", "a record of no bytes", chunks=packed([(t, tile, 0), *rows[1:]])
    )
    yield bad("f19-rows-cut", "rows that end early", chunks=packed(rows)[:-1])
    yield bad("f19-no-rows", "no rows", chunks=b"", count=0, changed=0)
    yield bad("f19-digests-few", "fewer digests than tensors", digests=[])
    yield bad("f19-digests-many", "more digests than tensors", digests=[None, None])
    yield bad("f08-index-digest-size", "a digest of 15 bytes", "F8", digests=[bytes(15)])
    yield bad("f08-index-count-type", "a count that is no integer", "F8", count="1")
    yield bad("f08-index-chunks-type", "rows of type str", "F8", chunks="")
    for key in ("count", "changed", "chunks", "digests", "base_state", "result_state"):
        parts = m.index()
        parts.index_without = (key,)
        yield Bad(f"f08-index-{key.replace('_', '-')}-missing", "F8", f"no {key}", parts, "index",
                  base="ragged.base")  # fmt: skip
    yield bad(
        "f20-base-state", "another base state than in the header", "F20", base_state=bytes(16)
    )
    yield bad("f20-result-state", "digests that do not add up", "F20", result_state=bytes(16))
    yield bad("f20-digest", "a digest that does not add up", "F20", digests=[bytes(16)])
    parts = m.index(result_state=bytes(16), digests=[bytes(16)])
    yield Bad("digest-result-state-lies", "digest", "a result state that the delta does not reach",
              parts, None, "wrong-base", "ragged.base")  # fmt: skip


def ends(m: Maker) -> Iterator[Bad]:
    def bad(
        name: str, threat: str, change: Callable[[Parts], None], place: str, rule: str = "F21"
    ) -> Bad:
        parts = m.parts()
        change(parts)
        return Bad(name, rule, threat, parts, place)

    def put(key: str, data: bytes) -> Callable[[Parts], None]:
        return lambda parts: parts.between.update({key: data})

    def claim(**fields: int) -> Callable[[Parts], None]:
        return lambda parts: parts.trailer.update(fields)

    def patch(
        function: Patch,
    ) -> Callable[[Parts], None]:
        return lambda parts: setattr(parts, "patch", function)

    _, spans = m.parts().build()
    yield bad("f21-trailing-byte", "a byte behind the trailer", put("trailer", b"\0"), "end")
    yield bad(
        "f21-second-delta", "another trailer behind the trailer", put("trailer", b"\3" * 24), "end"
    )
    yield bad(
        "f21-gap-after-header",
        "zeros between header and chunk",
        put("header", bytes(8)),
        "gap",
        "F2",
    )
    yield bad(
        "f21-gap-after-index", "zeros between index and trailer", put("index", bytes(8)), "gap"
    )
    yield bad(
        "f21-offset", "an index offset one too low", claim(offset=spans["index"][0] - 1), "trailer"
    )
    yield bad("f21-offset-2-63", "an index at 2^63", claim(offset=1 << 63), "trailer")
    yield bad("f21-offset-zero", "an index at 0", claim(offset=0), "trailer")
    yield bad("f21-length", "an index length one too high",
              claim(length=spans["index"][1] - spans["index"][0] + 1), "trailer")  # fmt: skip
    yield bad("f21-length-4g", "an index of 2^32 - 1 bytes", claim(length=(1 << 32) - 1), "trailer")
    yield bad("f21-end-magic", "a wrong end magic", patch(flip("trailer", -1)), "trailer")
    yield bad("f21-magic", "a wrong magic", patch(flip("header", 0)), "header")
    yield bad(
        "f21-magic-line-end", "a magic mangled by text mode", patch(flip("header", 7, 7)), "header"
    )
    yield bad("f21-empty", "no bytes", patch(cut(0)), "cut")
    yield bad("f21-cut-magic", "cut in the magic", patch(cut(5)), "cut")
    for place, (start, end) in spans.items():
        word = place.replace(" ", "-")
        yield bad(f"f21-cut-before-{word}", f"cut before {place}", patch(cut(start)), "cut")
        yield bad(f"f21-cut-in-{word}", f"cut in {place}", patch(cut((start + end) // 2)), "cut")
    parts = m.many()
    parts.chunks[-1]["changes"] = 1 << 31
    yield Bad("f22-bad-last-chunk", "F10", "good chunks before a bad one", parts,
              f"chunk {len(parts.chunks) - 1}", base="ragged.base")  # fmt: skip
    for name in ("renamed", "retyped", "reshaped", "flat"):
        yield Bad(f"f23-{name}", "F23", f"a target that is {name}", m.parts(), None, "layout",
                  f"mixed.{name}")  # fmt: skip
    parts = m.parts()
    parts.patch = lambda data, _spans: data.__setitem__(slice(12, 16), b"\xff" * 4)
    yield Bad("limit-header", "Limits", "a header of 2^32 - 1 bytes", parts, "header", "limit")
    parts = m.parts()

    def long_positions(data: bytearray, spans: Spans) -> None:
        at = spans["chunk 0"][0] + 16
        data[at : at + 4] = b"\xff" * 4

    parts.patch = long_positions
    yield Bad("limit-chunk", "Limits", "a chunk of 2^32 bytes", parts, "chunk 0", "limit")
    parts = m.parts()

    def long_index(data: bytearray, spans: Spans) -> None:
        at = spans["index"][0] + 4
        data[at : at + 4] = b"\xff" * 4

    parts.patch = long_index
    yield Bad("limit-index", "Limits", "an index of 2^32 - 1 bytes", parts, "index", "limit")
