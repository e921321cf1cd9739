"""Bad ranks, grouped steps and geometric streams."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from deltawire_reference import Coding, Options, decode
from deltawire_reference.geometric import Table, encode_geometric, table
from deltawire_reference.positions import GAPS, RANKS
from deltawire_reference.primitives import encode_varint
from deltawire_reference.values import GROUPED, RAW, STEP

from .maker import Bad, Maker
from .parts import Parts, lz4_stage

Numbers = list[tuple[int, int]]


def flat(numbers: Numbers, count: int | None = None, q: int | None = None) -> bytes:
    """The head of ranks in one class, with what it says of changes and parameter."""
    said = numbers[0][1] if q is None else q
    return b"\x01" + encode_varint(len(numbers) if count is None else count) + bytes([said])


def impossible(least: int, most: int, shift: int) -> tuple[int, int, bytes]:
    """A number, its parameter and a coder whose first state is outside of the range.

    A reader that takes the state as it is decodes the number and ends with 2^23. ``shift``: bits
    that the coder left in its bytes before the symbol, too many or too few for its slots.
    """
    for q in range(8, 24):
        this: Table = table(q)
        for symbol in range(this.escape):
            slots, x = this.slots(symbol), (1 << 23) >> shift
            state = (x // slots << 12) + this.start[symbol] + x % slots
            if least <= state < most:
                return symbol, q, struct.pack("<I", state) + bytes(shift // 8)
    raise ValueError("no parameter has such a symbol")


def geometric(m: Maker) -> Iterator[Bad]:
    def bad(name: str, threat: str, stream: bytes, changes: int, rule: str = "F24") -> Bad:
        return Bad(name, rule, threat, m.positions(RANKS, stream, changes))

    numbers = [(0, 16), (50, 16), (3, 16)]
    head, sound = flat(numbers), encode_geometric(numbers)
    yield bad("f24-final-state", "a coder that ends in another state",
              head + encode_geometric(numbers, state=(1 << 23) + 1), 3)  # fmt: skip
    yield bad("f24-final-state-high", "a coder that ends far from where it began",
              head + encode_geometric(numbers, state=(1 << 31) - 1), 3)  # fmt: skip
    for name, least, most, shift in (
        ("low", 1 << 15, 1 << 23, 8), ("high", 1 << 31, 1 << 32, 0),
    ):  # fmt: skip
        number, q, coder = impossible(least, most, shift)
        yield bad(f"f24-first-state-{name}", f"a first state that is too {name}",
                  flat([(number, q)]) + coder, 1)  # fmt: skip
    yield bad("f24-first-state-zero", "a first state of 0", head + bytes(4) + sound[4:], 3)
    yield bad("f24-trailing", "a byte behind the coder", head + sound + b"\0", 3)
    yield bad("f24-cut", "a coder without its last byte", head + sound[:-1], 3)
    yield bad(
        "f24-state-only", "a state that claims more numbers than it holds", head + sound[:4], 3
    )
    yield bad("f24-state-cut", "three bytes of a state", head + sound[:3], 3)
    yield bad("f24-empty", "no geometric stream", head, 3)
    # 3 numbers of 2 low bits: two spare bits.
    wide = [(9, 40), (20, 40), (5, 40)]
    lows = encode_geometric(wide)
    yield bad("f24-lows-cut", "low bits that end early", flat(wide), 3)
    for bit in (6, 7):
        yield bad(f"f02-geometric-spare-bit-{bit}", "low bits of numbers that do not exist",
                  flat(wide) + bytes([lows[0] | 1 << bit]) + lows[1:], 3, "F2")  # fmt: skip
    more = [*numbers, (2, 16)]
    yield bad("f24-more-numbers", "a coder that holds more numbers than it needs to",
              head + encode_geometric(more), 3)  # fmt: skip


def classes_parts(
    m: Maker, name: str = "classes-bf16", classes: int = 4, **fields: object
) -> Parts:
    options = Options(Coding(RANKS, values=RAW, classes=classes, base_digest=True), states=False)
    return m.chunk(name, options, **fields)


def classed(top: int, groups: Sequence[Numbers], counts: Sequence[int] | None = None) -> bytes:
    """Ranks of several classes; ``counts``: what they say of the changes of each."""
    out = bytes([len(groups)]) + struct.pack("<H", top)
    for group, count in zip(groups, counts or [len(group) for group in groups], strict=True):
        out += encode_varint(count) + (bytes([group[0][1] if group else 16]) if count else b"")
    return out + encode_geometric([number for group in groups for number in group])


def ranks(m: Maker) -> Iterator[Bad]:
    def one(name: str, threat: str, stream: bytes, changes: int) -> Bad:
        return Bad(f"f25-{name}", "F25", threat, m.positions(RANKS, stream, changes))

    some = [(0, 16), (50, 16), (3, 16)]
    coder = encode_geometric(some)
    yield one("no-classes", "ranks in no class", b"\0" + encode_geometric([]), 3)
    yield one("17-classes", "ranks in 17 classes",
              b"\x11\x7c\0" + encode_varint(3) + b"\x10" + bytes(16) + coder, 3)  # fmt: skip
    yield one("empty", "an empty stream", b"", 3)
    yield one("no-counts", "a number of classes alone", b"\1", 3)
    yield one("no-parameter", "a class without its parameter", b"\1\3", 3)
    for said in (2, 4):
        yield one(f"count-{said}", f"{said} changes in the class of 3", flat(some, said) + coder, 3)
    yield one("count-zero", "no changes in the only class", b"\1\0" + encode_geometric([]), 3)
    yield one("count-2-64", "2^64 - 1 changes in a class", flat(some, (1 << 64) - 1) + coder, 3)
    for q in (192, 255):
        yield one(f"parameter-{q}", f"a parameter of {q}", flat(some, q=q) + coder, 3)
    for name, last in (("outside", 117), ("far-outside", 1 << 20)):
        beyond = [(0, 56), (1, 56), (last, 56)]
        yield one(name, "a rank behind the tile", flat(beyond) + encode_geometric(beyond), 3)
    wraps = [(5, 191), ((1 << 32) + 3, 191)]
    yield one("wraps", "a rank of 2^32 + 9", flat(wraps) + encode_geometric(wraps), 2)

    def several(name: str, threat: str, rule: str = "F25", pair: str = "classes-bf16",
                **fields: object) -> Bad:  # fmt: skip
        return Bad(name, rule, threat, classes_parts(m, pair, **fields), base=f"{pair}.base")

    sound = classes_parts(m).chunks[0]
    stream = sound["positions"]
    yield several("f25-top-cut", "half of the top", positions=stream[:2])
    yield several("f25-classes-cut", "classes that end early", positions=stream[:6])
    good = classed(192, [[(0, 16)], [(0, 16)], [(1, 16)], [(2, 16)]])
    four = {"changes": 4, "values": b"\x11\x3c" * 4}
    yield several("f25-sum", "classes that add up to fewer changes", positions=good, changes=5,
                  values=b"\x11\x3c" * 5)  # fmt: skip
    wrapping = classed(
        192, [[(0, 16)] * 2, [(0, 16)], [(1, 16)], [(2, 16)]], [(1 << 64) - 1, 3, 1, 1]
    )
    yield several("f25-sum-wraps", "classes whose sum wraps to the changes", positions=wrapping,
                  **four)  # fmt: skip
    yield several("f25-outside-class", "a rank behind its class, in the tile",
                  positions=classed(192, [[(0, 16)], [(200, 16)], [(1, 16)], [(2, 16)]]),
                  **four)  # fmt: skip
    yield several("f25-outside-empty-class", "a rank in a class without elements",
                  positions=classed(65535, [[(0, 16)], [], [], [(0, 16)] * 3]), **four)  # fmt: skip
    yield several("f12-ranks-without-base", "ranks in several classes of an unknown base", "F12",
                  base=None)  # fmt: skip
    parts = classes_parts(m)
    parts.chunks[0]["base"] ^= 1 << 17
    yield Bad("f12-ranks-wrong-base", "F12", "ranks in the classes of another base", parts, None,
              "wrong-base", "classes-bf16.base")  # fmt: skip
    for dtype in ("I16", "U8", "C64", "F8_E8M0", "BOOL"):
        name = f"dtype-{dtype.lower()}"
        options = Options(Coding(GAPS, base_digest=True), states=False)
        parts = m.parts(name, options)
        changes = parts.chunks[0]["changes"]
        parts.chunks[0] |= {
            "position_byte": RANKS, "positions": classed(100, [[(0, 16)] * changes, []]),
        }  # fmt: skip
        yield Bad(f"f25-classes-of-{dtype.lower()}", "F25", f"{dtype} has no exponent field", parts,
                  base=f"{name}.base")  # fmt: skip
    yield Bad("f18-ranks-claim-4g", "F18", "an LZ4 stage of ranks that claims 4 GiB",
              m.chunk(position_byte=RANKS | 16,
                      positions=lz4_stage(flat(some) + coder, (1 << 32) - 1)))  # fmt: skip


def grouped(m: Maker) -> Iterator[Bad]:
    """Positions 0, 55 and 119 of BF16: one class of three steps."""

    def steps(name: str, threat: str, stream: bytes, rule: str = "F26") -> Bad:
        parts = m.parts("sparse", Options(Coding(GAPS, values=GROUPED), states=False))
        parts.chunks[0] |= {"values": stream}
        return Bad(name, rule, threat, parts, base="sparse.base")

    def made(numbers: Numbers, count: int | None = None, signs: int = 7) -> bytes:
        said = len(numbers) // 2 if count is None else count
        places, sizes = numbers[0][1], numbers[-1][1]
        head = bytes([signs]) + encode_varint(said) + bytes([places, sizes])
        return head + encode_geometric(numbers)

    none = encode_geometric([])
    yield steps("f26-no-signs", "an empty stream", b"")
    yield steps("f26-no-count", "signs only", b"\7")
    yield steps("f26-no-parameters", "exceptions without parameters", b"\7\1")
    yield steps("f26-one-parameter", "exceptions with one parameter", b"\7\1\10")
    yield steps("f24-grouped-no-stream", "no geometric stream", b"\7\0", "F24")
    yield steps("f24-grouped-no-exceptions-state", "another state of no numbers",
                b"\7\0" + struct.pack("<I", (1 << 23) + 1), "F24")  # fmt: skip
    yield steps("f24-grouped-no-exceptions-trailing", "a byte behind the state of no numbers",
                b"\7\0" + none + b"\0", "F24")  # fmt: skip
    yield steps("f02-grouped-spare-signs", "signs of changes that do not exist", b"\x0f\0" + none,
                "F2")  # fmt: skip
    yield steps("f26-exceptions", "more exceptions than changes", made([(0, 8)] * 4 + [(1, 8)] * 4))
    yield steps("f26-exceptions-2-64", "2^64 - 1 exceptions", made([(0, 8)] * 2, (1 << 64) - 1))
    yield steps("f26-index-outside", "an exception behind the changes", made([(3, 8), (0, 8)]))
    yield steps("f26-index-second", "a second exception behind the changes",
                made([(1, 8), (1, 8), (0, 8), (0, 8)]))  # fmt: skip
    yield steps("f26-index-wraps", "an exception of number 2^32",
                made([(1 << 32, 191), (0, 191)]))  # fmt: skip
    for q in (192, 255):
        sound = made([(0, 8), (0, 8)])
        yield steps(f"f26-places-parameter-{q}", f"places with parameter {q}",
                    sound[:2] + bytes([q]) + sound[3:])  # fmt: skip
        yield steps(f"f26-sizes-parameter-{q}", f"sizes with parameter {q}",
                    sound[:3] + bytes([q]) + sound[4:])  # fmt: skip
    half = 1 << 15
    yield steps("f26-step-too-large", "a step of +2^15 in 16 bits",
                made([(0, 8), (half - 2, 120)]))  # fmt: skip
    yield steps("f26-step-too-small", "a step of -2^15 - 1 in 16 bits",
                made([(0, 8), (half - 1, 120)], signs=6))  # fmt: skip
    sound = made([(0, 8), (700, 40)])
    yield steps("f24-grouped-trailing", "a byte behind the last size", sound + b"\0", "F24")
    yield steps("f24-grouped-cut", "sizes that end early", sound[:-1], "F24")
    yield steps("f24-grouped-final-state", "a coder that ends in another state",
                b"\7\1\x08\x28" + encode_geometric([(0, 8), (700, 40)], state=(1 << 24)),
                "F24")  # fmt: skip
    # A step that F32 would allow, and one more than the format does.
    parts = m.parts("long", Options(Coding(GAPS, values=STEP), states=False))
    changes = parts.chunks[0]["changes"]
    signs = ((1 << changes) - 1).to_bytes(-(-changes // 8), "little")
    for name, size in (("large", 1 << 22), ("wraps", 1 << 32)):
        numbers = [(0, 8), (size, 191)]
        parts = m.parts("long", Options(Coding(GAPS, values=GROUPED), states=False))
        parts.chunks[0] |= {"values": signs + b"\1\x08\xbf" + encode_geometric(numbers)}
        yield Bad(f"f26-size-{name}", "F26", f"a step of {size} + 2", parts, base="long.base")
    parts = m.parts("sparse", Options(Coding(GAPS, values=GROUPED), states=False))
    parts.chunks[0]["base"] = None
    yield Bad("f12-grouped-without-base", "F12", "grouped steps on an unknown base", parts,
              base="sparse.base")  # fmt: skip
    options = Options(Coding(RANKS, values=GROUPED, classes=9, result_digest=True))
    parts = m.parts("classes-bf16", options)
    delta = decode(parts.build()[0])
    ranks_ = delta.chunks[0].ranks
    assert ranks_ is not None
    first = len(ranks_.groups[0])
    signs_length = -(-parts.chunks[0]["changes"] // 8)
    values = parts.chunks[0]["values"]
    parts.chunks[0]["values"] = (
        values[:signs_length] + encode_varint(first + 1) + values[signs_length + 1 :]
    )
    yield Bad("f26-exceptions-of-class", "F26", "more exceptions than changes of their class",
              parts, base="classes-bf16.base")  # fmt: skip
    yield Bad("f12-grouped-wrong-base", "F12", "grouped steps on a wrong base",
              m.parts("sparse", Options(Coding(RANKS, values=GROUPED, result_digest=True))), None,
              "wrong-base", "mixed.other")  # fmt: skip
