"""Bad streams: header, index, trailer, what is cut off or added, limits."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import msgpack

from deltawire_reference import Coding, Options, encoder
from deltawire_reference.primitives import DICTIONARY, encode_varint

from .maker import Bad, Maker, Patch, cut, flip
from .parts import Parts, Spans, lz4_payload


def header(m: Maker) -> Iterator[Bad]:
    def bad(name: str, rule: str, threat: str, parts: Parts, kind: str = "corrupt") -> Bad:
        return Bad(name, rule, threat, parts, "header", kind)

    for name, fixed in {
        "f07-major-0": {"major": 0}, "f07-major-2": {"major": 2},
        "f07-required-1": {"required": 2}, "f07-required-31": {"required": 1 << 31},
    }.items():  # fmt: skip
        parts = m.parts()
        parts.header_fixed = dict(fixed)
        yield bad(name, "F7", f"a delta of the future: {fixed}", parts, "unsupported")

    for key, value in {
        "run": 1, "version": -1, "base_version": "0", "base_state": b"\0" * 15, "profile": None,
        "meta": ["a", "b"], "names": {}, "numbers": None, "dtypes": "BF16", "dtype": 0, "rank": 2,
        "shapes": None, "tiles": 0,
    }.items():  # fmt: skip
        yield bad(f"f08-{key.replace('_', '-')}-type", "F8", f"{key} of a wrong type or size",
                  m.header(**{key: value}))  # fmt: skip
        parts = m.parts()
        del parts.header[key]
        yield bad(f"f08-{key.replace('_', '-')}-missing", "F8", f"no {key}", parts)
    for key in ("numbers", "dtype", "rank", "shapes", "tiles"):
        sound: bytes = m.parts().header[key]
        yield bad(
            f"f08-{key}-is-str", "F8", f"{key} of type str", m.header(**{key: sound.decode()})
        )
        yield bad(f"f08-{key}-is-array", "F8", f"{key} as an array", m.header(**{key: list(sound)}))
    yield bad("f08-base-state-is-array", "F8", "a base state as an array",
              m.header(base_state=list(m.parts().states["base_state"])))  # fmt: skip
    yield bad("f08-base-state-is-str", "F8", "a base state of type str",
              m.header(base_state="sixteen letters!"))  # fmt: skip
    yield bad("f08-version-float", "F8", "a version that is no integer", m.header(version=1.0))
    yield bad("f08-version-bool", "F8", "a version that is true", m.header(version=True))
    yield bad("f08-meta-value", "F8", "a meta value that is no string", m.header(meta={"a": 1}))
    yield bad("f08-meta-key", "F8", "a meta key that is no string", m.header(meta={1: "a"}))
    yield bad("f08-key-repeated", "F8", "a repeated key",
              m.payload(lambda p: bytes([p[0] + 1]) + p[1:] + b"\xa3run\xa0"))  # fmt: skip
    yield bad("f08-unknown-key-repeated", "F8", "an unknown key that is repeated",
              m.payload(lambda p: bytes([p[0] + 2]) + p[1:] + b"\xa1z\xc0" * 2))  # fmt: skip
    yield bad("f08-meta-key-repeated", "F8", "a repeated meta key",
              m.swapped(b"\xa4meta\x80", b"\xa4meta\x82\xa1a\xa0\xa1a\xa0"))  # fmt: skip
    yield bad("f08-trailing", "F8", "a byte behind the map", m.payload(lambda p: p + b"\xc0"))
    yield bad("f08-cut", "F8", "a map that ends early", m.payload(lambda p: p[:-1]))
    yield bad("f08-empty", "F8", "an empty payload", m.payload(lambda p: b""))
    yield bad("f08-not-a-map", "F8", "an array instead of a map",
              m.payload(lambda p: b"\x91" + p))  # fmt: skip
    yield bad("f08-map-claims-4g", "F8", "a map that claims 2^32 - 1 pairs",
              m.payload(lambda p: b"\xdf\xff\xff\xff\xff" + p[1:]))  # fmt: skip
    yield bad("f08-names-claim-4g", "F8", "a table that claims 2^32 - 1 tensors",
              m.swapped(b"\xa5names\x91", b"\xa5names\xdd\xff\xff\xff\xff"))  # fmt: skip
    yield bad("f08-name-claims-4g", "F8", "a name that claims 2^32 - 1 bytes",
              m.swapped(b"\x91\xa1w", b"\x91\xdb\xff\xff\xff\xffw"))  # fmt: skip
    deep = b"\x91" * 100_000 + b"\xc0"
    yield bad(
        "f08-nested-cut",
        "F8",
        "100,000 nested arrays without an end in an unknown value",
        m.payload(lambda p: bytes([0xDE, 0, p[0] + 1 & 15]) + p[1:] + b"\xa1z" + deep[:-1]),
    )
    yield bad(
        "f08-reserved-byte",
        "F8",
        "a value of MessagePack's unused type",
        m.payload(lambda p: bytes([0xDE, 0, p[0] + 1 & 15]) + p[1:] + b"\xa1z\xc1"),
    )


def table(m: Maker) -> Iterator[Bad]:
    """The columns of the tensor table, and what they say of tensors."""

    def bad(name: str, rule: str, threat: str, parts: Parts, kind: str = "corrupt") -> Bad:
        return Bad(name, rule, threat, parts, "header", kind)

    parts = m.parts("empty")
    parts.header["tiles"] = b"\1\1" + parts.header["tiles"][2:]
    yield Bad(
        "f04-tile-of-empty", "F4", "a tile in an empty tensor", parts, "header", base="empty.base"
    )
    yield bad("f05-tile-too-large", "F5", "a tile of 2^22 + 1024 elements",
              m.table(shape=(8192, 1024), tile=(4097, 1024)))  # fmt: skip
    yield bad("f05-whole-too-large", "F5", "one tile for all of 2^23 elements",
              m.table(shape=(8192, 1024), tile=(8192, 1024)))  # fmt: skip
    yield bad("f05-too-many-tiles", "F5", "a tensor of 2^32 tiles",
              m.table(shape=(1 << 32,), tile=(1, 1)))  # fmt: skip
    yield bad("f05-tile-product-wraps", "F5", "tile sides whose product wraps to a small number",
              m.table(shape=(1 << 33, 1 << 24), tile=(1 << 33, 1 << 31)))  # fmt: skip
    yield bad("f05-tile-64-bits", "F5", "tile sides of 2^64 - 1",
              m.table(shape=(1 << 33, 1 << 24), tile=((1 << 64) - 1,) * 2))  # fmt: skip
    yield bad(
        "f06-tile-cuts-word", "F6", "a tile border inside a digest word", m.table(tile=(6, 6))
    )

    def columns(name: str, threat: str, **fields: Any) -> Bad:
        return bad(f"f08-{name}", "F8", threat, m.header(**fields))

    twice = m.parts()
    twice.header |= {
        "names": ["w", "w"], "dtype": b"\0\0", "rank": b"\2\2", "shapes": b"\6\x14" * 2,
        "tiles": bytes(4),
    }  # fmt: skip
    twice.states["digests"] = [None, None]
    twice.states["result_state"] = None
    yield bad("f08-name-twice", "F8", "two tensors of one name", twice)
    joined = m.parts()
    joined.header |= {**twice.header, "names": ["w\x01", "w7"], "numbers": b"\x0e"}
    joined.states = dict(twice.states)
    yield bad("f08-name-twice-joined", "F8", "two patterns of one name", joined)
    yield columns("name-empty", "an empty name", names=[""])
    yield columns("name-long", "a name of 4097 bytes", names=["w" * 4097])
    yield columns("name-long-joined", "a name of 4097 bytes with its numbers",
                  names=["w" * 4078 + "\x01" * 2],
                  numbers=encode_varint(2 * (10**18 - 1)) + b"\2")  # fmt: skip
    yield bad("f08-name-not-utf8", "F8", "a name that is not UTF-8",
              m.swapped(b"\x91\xa1w", b"\x91\xa1\xff"))  # fmt: skip
    yield columns("name-is-bin", "a name of type bin", names=[b"w"])
    yield columns("name-is-nil", "a name of type nil", names=[None])
    yield columns("dtypes-is-bin", "a dtype of type bin", dtypes=[b"BF16"])
    yield columns("escape-last", "an escape at the end of a name", names=["w\x02"])
    yield columns("escape-stray", "an escape before a letter", names=["\x02w"])
    for name, numbers in {
        "negative": b"\x01", "10-18": encode_varint(2 * 10**18), "few": b"", "many": b"\2\2",
        "cut": b"\x80",
        "minus-2-63": encode_varint((1 << 64) - 1), "2-63": encode_varint((1 << 64) - 2),
    }.items():  # fmt: skip
        yield columns(
            f"numbers-{name}", f"numbers of names: {name}", names=["w\x01"], numbers=numbers
        )
    yield columns("numbers-unused", "numbers that no name has", numbers=b"\0")
    for key in ("dtype", "rank"):
        sound: bytes = m.parts().header[key]
        for name, column in (("none", b""), ("long", sound * 2)):
            yield columns(f"{key}-{name}", f"{len(column)} of {key} for one name", **{key: column})
    yield columns("names-none", "columns without names", names=[])
    yield columns("names-more", "more names than dtypes", names=["w", "v"])
    yield columns("dtype-outside", "a dtype behind the list", dtype=b"\1")
    yield columns("dtypes-none", "no dtypes", dtypes=[])
    for key in ("shapes", "tiles"):
        sound = m.parts().header[key]
        for name, column in (
            ("none", b""), ("few", sound[:-1]), ("many", sound + b"\1"),
            ("cut", sound[:-1] + b"\x81"),
        ):  # fmt: skip
            yield columns(f"{key}-{name}", f"{key}: {name}", **{key: column})
    yield columns("33-dimensions", "33 dimensions", rank=b"\x21", shapes=b"\1" * 31 + b"\6\x14")
    yield columns("255-dimensions", "255 dimensions", rank=b"\xff", shapes=b"\1" * 253 + b"\6\x14")
    yield bad("f08-shape-63-bits", "F8", "a tensor of 2^63 bytes",
              m.table(shape=(1 << 31, 1 << 31), tile=(1, 1 << 20)))  # fmt: skip
    yield bad("f08-shape-wraps", "F8", "dimensions whose product wraps to 120",
              m.table(shape=((1 << 62) + 6, 20, 1 << 2, 1 << 60), tile=(1, 1024)))  # fmt: skip
    yield bad("f08-rows-wrap-to-zero", "F8", "rows of 2^80 before a dimension of 0",
              m.table(shape=(1 << 40, 1 << 40, 0, 1), tile=(0, 0)))  # fmt: skip
    yield bad(
        "f09-unknown-dtype", "F9", "a dtype of the future", m.table(dtype="BF12"), "unsupported"
    )
    yield bad("f09-lower-case", "F9", "a dtype in lower case", m.table(dtype="bf16"), "unsupported")
    yield bad("f09-empty-dtype", "F9", "no dtype", m.table(dtype=""), "unsupported")


def payload_stages(m: Maker) -> Iterator[Bad]:
    def lz4_header(name: str, threat: str, payload: bytes, rule: str = "F18") -> Bad:
        parts = m.parts()
        parts.header_payload, parts.header_fixed = payload, {"required": 1}
        return Bad(f"f18-header-{name}", rule, f"an LZ4 header: {threat}", parts, "header")

    payload = msgpack.packb(m.parts().header)
    yield lz4_header("long", "a byte too many", lz4_payload(payload, len(payload) + 1))
    yield lz4_header("short", "a byte too few", lz4_payload(payload, len(payload) - 1))
    yield lz4_header("empty", "no bytes", b"")
    yield lz4_header("bomb", "200 MiB from 14 bytes", lz4_payload(bytes(1000), 200 << 20))
    yield lz4_header("claims-2-64", "2^64 - 1 bytes", lz4_payload(payload, (1 << 64) - 1))
    behind = b"\x1f" + payload[:1] + struct.pack("<H", len(DICTIONARY) + 2) + b"\x00"
    rest = payload[20:]
    behind += bytes([0xF0, len(rest) - 15]) + rest
    yield lz4_header("behind-dictionary", "a match before the dictionary's first byte",
                     encode_varint(len(payload)) + behind)  # fmt: skip
    packed = lz4_payload(payload)
    fields = len(encode_varint(len(payload)))
    plain = m.parts()
    plain.header_payload = packed
    yield Bad(
        "f08-header-lz4-unsaid", "F8", "an LZ4 header without its feature bit", plain, "header"
    )
    assert fields == 2
    parts = m.parts()
    index = msgpack.packb(parts.index_fields())
    for name, stored in {
        "bomb": lz4_payload(bytes(1000), 200 << 20), "long": lz4_payload(index, len(index) + 1),
        "short": lz4_payload(index, len(index) - 1), "empty": b"",
    }.items():  # fmt: skip
        parts = m.parts()
        parts.index_payload, parts.index_fixed = stored, {"flags": 1}
        yield Bad(f"f18-index-{name}", "F18", f"an LZ4 index: {name}", parts, "index")


def index(m: Maker) -> Iterator[Bad]:
    def bad(name: str, threat: str, rule: str = "F19", **fields: Any) -> Bad:
        return Bad(name, rule, threat, m.index(**fields), "index", base="ragged.base")

    parts = m.index()
    _, spans = parts.build()
    rows = [
        (0, chunk["tile"], spans[f"chunk {i}"][1] - spans[f"chunk {i}"][0])
        for i, chunk in enumerate(parts.chunks)
    ]

    def packed(rows: list[tuple[int, int, int]]) -> dict[str, Any]:
        fields = encoder.index_fields(rows, 0, [], None, None)
        return {key: fields[key] for key in ("tensors", "tiles", "lengths")}

    (t, tile, length), (_, tile1, length1) = rows[:2]
    changed = sum(chunk["changes"] for chunk in parts.chunks)
    sound = packed(rows)
    yield bad("f19-changed", "a change too many", changed=changed + 1)
    yield bad("f19-changed-zero", "no change claimed", changed=0)
    yield bad("f19-row-missing", "a chunk without a place", **packed(rows[:-1]))
    last = (0, rows[-1][1] + 1, rows[-1][2])
    yield bad("f19-row-extra", "a place without a chunk", **packed([*rows, last]))
    yield bad("f19-row-tensor", "another tensor", **packed([(1, tile, length), *rows[1:]]))
    yield bad("f19-row-tensor-negative", "a tensor of -1", tensors=b"\1" + sound["tensors"][1:])
    yield bad("f19-row-tensor-4g", "a tensor of 2^32",
              tensors=encode_varint(1 << 33) + sound["tensors"][1:])  # fmt: skip
    yield bad("f19-row-tensor-2-63", "a tensor of -2^63",
              tensors=encode_varint((1 << 64) - 1) + sound["tensors"][1:])  # fmt: skip
    yield bad("f19-row-tile", "another tile", tiles=sound["tiles"][:-1] + b"\1")
    yield bad("f19-row-tile-outside", "a tile behind the tensor",
              tiles=sound["tiles"][:-1] + encode_varint(1 << 20))  # fmt: skip
    yield bad("f19-row-tile-4g", "a tile of 2^32",
              tiles=sound["tiles"][:-1] + encode_varint((1 << 32) - len(rows) + 1))  # fmt: skip
    yield bad("f19-row-tile-2-64", "a tile that wraps to another",
              tiles=sound["tiles"][:-1] + encode_varint((1 << 64) - 1))  # fmt: skip
    moved = packed([(t, tile, length + 1), (t, tile1, length1 - 1), *rows[2:]])
    yield Bad("f19-row-length", "F19", "lengths moved from chunk to chunk", m.index(**moved),
              "from chunk 0", base="ragged.base")  # fmt: skip
    yield bad("f19-row-length-2-63", "a record of 2^63 bytes",
              **packed([(t, tile, 1 << 63), *rows[1:]]))  # fmt: skip
    yield bad("f19-row-length-4g", "a record of 2^32 + its bytes",
              **packed([(t, tile, (1 << 32) + length), *rows[1:]]))  # fmt: skip
    yield bad("f19-row-length-zero", "a record of no bytes",
              **packed([(t, tile, 0), *rows[1:]]))  # fmt: skip
    for key in ("tensors", "tiles", "lengths"):
        yield bad(f"f19-{key}-few", f"{key} that end early", **{key: sound[key][:-1]})
        yield bad(f"f19-{key}-many", f"a byte behind {key}", **{key: sound[key] + b"\0"})
        yield bad(f"f19-{key}-cut", f"{key} that end in a varint",
                  **{key: sound[key][:-1] + b"\x80"})  # fmt: skip
    yield bad("f19-no-rows", "no places", tensors=b"", tiles=b"", lengths=b"", changed=0)
    yield bad("f19-digests-few", "fewer digests than tensors", digests=[])
    yield bad("f19-digests-many", "more digests than tensors", digests=[None, None])
    yield bad("f08-index-digest-32-bits", "a digest of 2^32", "F8", digests=[1 << 32])
    yield bad("f08-index-digest-negative", "a digest of -1", "F8", digests=[-1])
    yield bad("f08-index-digest-bin", "a digest of 16 bytes", "F8", digests=[bytes(16)])
    yield bad("f08-index-digests-type", "digests of type bin", "F8", digests=b"\0")
    yield bad("f08-index-changed-type", "changes that are no integer", "F8", changed="1")
    yield bad("f08-index-state-size", "a result state of 15 bytes", "F8", result_state=bytes(15))
    for key in ("tensors", "tiles", "lengths"):
        yield bad(f"f08-index-{key}-is-array", f"{key} as an array", "F8",
                  **{key: list(sound[key])})  # fmt: skip
    for key in ("tensors", "tiles"):
        yield bad(f"f08-index-{key}-is-str", f"{key} of type str", "F8",
                  **{key: sound[key].decode()})  # fmt: skip
    for key in ("changed", "tensors", "tiles", "lengths", "digests", "base_state", "result_state"):
        parts = m.index()
        parts.index_without = (key,)
        yield Bad(f"f08-index-{key.replace('_', '-')}-missing", "F8", f"no {key}", parts, "index",
                  base="ragged.base")  # fmt: skip
    yield bad(
        "f20-base-state", "another base state than in the header", "F20", base_state=bytes(16)
    )
    low = m.index().states["digests"][0]
    lying: dict[str, dict[str, Any]] = {
        "result-state": {"result_state": bytes(16)},
        "digest": {"digests": [low ^ 1]},
        "digest-high-bit": {"digests": [low ^ 1 << 31]},
        "both": {"result_state": bytes(16), "digests": [0]},
    }
    for name, lies in lying.items():
        yield Bad(f"f20-{name}", "F20", f"the index lies: {', '.join(lies)}", m.index(**lies), None,
                  "wrong-base", "ragged.base")  # fmt: skip
    yield Bad("f20-untouched", "F20", "a target that differs where nothing changes",
              m.parts("sparse", Options(Coding(result_digest=True), tiles={"w": (1, 20)})), None,
              "wrong-base", "sparse.other")  # fmt: skip


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
        "f21-second-delta", "another trailer behind the trailer", put("trailer", b"\3" * 12), "end"
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
    length = spans["index"][1] - spans["index"][0]
    for name, wrong in {
        "long": length + 1, "short": length - 1, "zero": 0, "4g": (1 << 32) - 1,
        "whole": spans["index"][1],
    }.items():  # fmt: skip
        yield bad(f"f21-length-{name}", f"an index length of {wrong}", claim(length=wrong), "any")
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
    parts.chunks[0]["body_length"] = 1 << 32
    yield Bad("limit-chunk", "Limits", "a chunk of 2^32 bytes", parts, "chunk 0", "limit")
    parts = m.parts()
    parts.chunks[0]["body_length"] = (1 << 64) - 1
    yield Bad("limit-chunk-2-64", "Limits", "a chunk of 2^64 bytes", parts, "chunk 0", "limit")
    parts = m.parts()

    def long_index(data: bytearray, spans: Spans) -> None:
        at = spans["index"][0] + 4
        data[at : at + 4] = b"\xff" * 4

    parts.patch = long_index
    yield Bad("limit-index", "Limits", "an index of 2^32 - 1 bytes", parts, "index", "limit")
