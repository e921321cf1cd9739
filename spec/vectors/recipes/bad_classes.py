"""Bad changes by class, and bad geometric streams."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence

from deltawire_reference import Coding, Options, Partition
from deltawire_reference.bits import BitWriter
from deltawire_reference.classes import Group, encode_classes, width
from deltawire_reference.geometric import Encoder, table
from deltawire_reference.law import rank_law, size_law
from deltawire_reference.primitives import zigzag

from .maker import Bad, Maker
from .parts import Parts

Bits = list[tuple[int, ...]]
Run = Callable[[Encoder], None]

# From this distance on the law's parameter of ranks is the distance, and all steps are one.
FAR = 24
BY_CLASS = Options(Coding(by_class=True), states=False)


def made(bits: Bits, *runs: Run, final: Sequence[int] | None = None) -> bytes:
    """A stream from its parameters, (value, bits) or (number, k, 0), and from what is coded."""
    writer = BitWriter()
    for value, count, *number in bits:
        if number:
            writer.number(value, count)
        else:
            writer.put(value, count)
    encoder = Encoder(1, final)
    for run in runs:
        run(encoder)
    return writer.padded() + encoder.stream()


def head(distance: int = FAR, ranks: int | None = None, sizes: int | None = None) -> Bits:
    """Distance and lists of one class. ``ranks``, ``sizes``: differences from the law's."""
    bits: Bits = [(distance, 8)]
    for difference in (ranks, sizes):
        bits += [(0, 1)] if difference is None else [(1, 1), (zigzag(difference), 0, 0)]
    return bits


def one_class(distance: int = FAR, ranks: int | None = None, sizes: int | None = None) -> Bits:
    return [(0, 4), (0, 1), *head(distance, ranks, sizes)]


def run(*numbers: int, q: int = FAR) -> Run:
    return lambda encoder: encoder.run(q, numbers)


def raw(value: int, count: int) -> Run:
    return lambda encoder: encoder.raw.put(value, count)


def ranked(distance: int, *gaps: int) -> list[Run]:
    """The changes of a class, steps of -1, as the law wants them."""
    assert size_law(distance) == 0
    return [run(*gaps, q=rank_law(distance)), raw(0, len(gaps))]


def chunk(m: Maker, stream: bytes, changes: int, pair: str = "mixed") -> Parts:
    """Changes by class without states. Where the stream is sound, the result is never reached."""
    return m.chunk(pair, BY_CLASS, values=stream, changes=changes)


def geometric(m: Maker) -> Iterator[Bad]:
    """Three changes of BF16 in one class: 2 bytes of parameters, 1 of signs, the state."""

    def bad(name: str, threat: str, stream: bytes, rule: str = "F24", changes: int = 3) -> Bad:
        return Bad(name, rule, threat, chunk(m, stream, changes))

    def three(*gaps: int, final: int = 1 << 16) -> bytes:
        return made(one_class(), run(*gaps), raw(7, 3), final=[final])

    sound = three(0, 50, 3)
    yield bad("f24-final-state", "a coder that ends in another state",
              three(0, 50, 3, final=(1 << 16) + 1))  # fmt: skip
    yield bad("f24-final-state-high", "a coder that ends far from where it began",
              three(0, 50, 3, final=1 << 31))  # fmt: skip
    for claim in (0, 1, (1 << 16) - 1):
        yield bad(f"f24-first-state-{claim}", f"a first state of {claim}",
                  sound[:3] + struct.pack("<I", claim) + sound[7:])  # fmt: skip
    # 1 is in symbol 0, leaves 1, and with the word 0 that is 2^16.
    yield bad("f24-first-state-low", "a first state that is too low, and ends as it should",
              made(one_class(), raw(1, 1))[:3] + struct.pack("<IH", 1, 0), changes=1)  # fmt: skip
    yield bad("f24-trailing-word", "a word behind the last number", sound + bytes(2))
    yield bad("f24-trailing-byte", "a byte behind the last number", sound + bytes(1))
    long = three(0, 110, 3)
    assert len(long) == len(sound) == 9
    yield bad("f24-word-cut", "half of a word", long[:-1])
    yield bad("f24-no-words", "words that end early", long[:7])
    yield bad("f24-state-cut", "three bytes of a state", sound[:6])
    yield bad("f24-no-state", "raw bits alone", sound[:3])
    yield bad("f24-no-raw-bits", "parameters alone", sound[:2])
    yield bad("f24-more-numbers", "a coder that holds more numbers than it needs to",
              made(one_class(), run(0, 50, 3, 2), raw(7, 3)))  # fmt: skip
    for bit in range(3, 8):
        yield bad(f"f02-raw-spare-bit-{bit}", "raw bits that belong to nothing",
                  made(one_class(), run(0, 50, 3), raw(7 | 1 << bit, 8)), "F2")  # fmt: skip
    yield bad("f02-parameters-spare-bit", "a bit behind the parameters",
              made([*one_class(), (1, 1)], run(0, 50, 3), raw(7, 3)), "F2")  # fmt: skip
    yield from _escapes(bad)
    yield from _lanes(m)


def _escapes(bad: Callable[..., Bad]) -> Iterator[Bad]:
    """Numbers beyond three escapes: their length, and their bits."""

    def escaped(length: int, rest: int, bits: int, q: int = FAR) -> bytes:
        this = table(q)

        def first(encoder: Encoder) -> None:
            encoder.raw.put(0, this.low)
            for _ in range(3):
                encoder.symbol(this.start[this.escape], this.slots(this.escape), 0)
            encoder.uniform(length, 7, 0)
            encoder.uniform(rest, bits, 0)

        return made(one_class(q), first, run(0, 0, q=q), raw(7, 3))

    beyond = 3 * table(FAR).escape
    yield bad("f24-escape-leading-zero", "an escaped number of more bits than it needs",
              escaped(3, 1, 3))  # fmt: skip
    yield bad("f24-escape-zero-as-bit", "an escaped 0 of one bit", escaped(1, 0, 1))
    for length in (65, 100, 127):
        yield bad(f"f24-escape-{length}-bits", f"an escaped number of {length} bits",
                  escaped(length, 1 << (length - 1), length))  # fmt: skip
    yield bad("f24-escape-low-bits", "an escaped number of 60 bits and five low ones",
              escaped(60, 1 << 59, 60, q=64))  # fmt: skip
    yield bad("f24-escape-wraps", "a number above 2^64 that wraps to 0",
              escaped(64, (1 << 64) - beyond, 64))  # fmt: skip
    yield bad("f25-escape-63-bits", "a gap of 63 bits", escaped(63, 1 << 62, 63), "F25")
    yield bad("f25-escape-rank-wraps", "a gap of 2^64 - 1, behind which the next rank is 0",
              escaped(64, (1 << 64) - 1 - beyond, 64), "F25")  # fmt: skip


def _lanes(m: Maker) -> Iterator[Bad]:
    """A chunk of 4,096 changes, of which one coder ends wrongly."""
    most, lanes = 4096, 4
    options = Options(Coding(by_class=True), states=False, tiles={"w": (most, 1)})
    everything = Partition(0, [], [Group([list(range(most))], [[1] * most])])
    for lane in range(lanes):
        final = [(1 << 16) + (number == lane) for number in range(lanes)]
        stream = encode_classes(everything, final=final)
        parts = m.chunk("lanes", options, values=stream, changes=most)
        del parts.chunks[1:]
        yield Bad(f"f24-lane-{lane}-of-{lanes}", "F24", f"coder {lane} of {lanes} ends wrongly",
                  parts, base="lanes.base")  # fmt: skip


def parameters(m: Maker) -> Iterator[Bad]:
    """Of one class, and its steps."""
    runs = run(0, 50, 3), raw(7, 3)

    def one(name: str, threat: str, stream: bytes, rule: str = "F25") -> Bad:
        return Bad(name, rule, threat, chunk(m, stream, 3))

    yield one("f25-empty", "an empty stream", b"")
    yield one("f25-cut", "parameters that end early", made(one_class())[:1])
    for name, last in (("outside", 67), ("far-outside", 1 << 20), ("wraps", (1 << 32) + 3)):
        yield one(f"f25-{name}", f"a gap of {last} before the last rank",
                  made(one_class(), run(0, 51, last), raw(7, 3)))  # fmt: skip
    for name, ranks in (("negative", -1), ("192", 192), ("wraps", 256 + FAR), ("far", 1 << 37)):
        yield one(f"f25-ranks-{name}", f"a parameter of ranks of {ranks}",
                  made(one_class(ranks=ranks - FAR), *runs))  # fmt: skip
    for name, sizes in (("negative", -1), ("193", 193), ("wraps", 256), ("far", 1 << 37)):
        yield one(f"f25-sizes-{name}", f"a parameter of sizes of {sizes}",
                  made(one_class(sizes=sizes), *runs))  # fmt: skip
    zeros: Bits = [(0, 4), (0, 1), (FAR, 8), (1, 1), (0, 40)]
    yield one("f25-number-41-bits", "a number of 41 bits",
              made([*zeros, (1, 1), (0, 40), (0, 1)], *runs))  # fmt: skip
    yield one("f25-number-cut", "a number that ends early", made(zeros)[:3])
    yield one("f25-groups-of-one", "rows in one group, said to be several",
              made([(0, 4), (1, 1), (0, 3), *head()], *runs))  # fmt: skip
    groups: Bits = [(0, 4), (1, 1), (1, 3), (0, 11), (2048, 12), (0, 0, 0), *head()]
    yield one("f25-groups-narrow", "groups of rows of fewer than 64 elements",
              made(groups, *(_row(2048, 2048, row) for row in range(6)), *runs))  # fmt: skip
    for name, sign, size in (
        ("too-large", 1, 1 << 15), ("too-small", 0, (1 << 15) + 1), ("wraps", 1, (1 << 16) + 1),
        ("64-bits", 0, 1 << 64),
    ):  # fmt: skip
        stream = made(one_class(sizes=2), run(0, 50, 3), raw(7 * sign, 3), run(0, size - 1, 0, q=1))
        yield one(
            f"f26-{name}", f"a step of {'+' if sign else '-'}{size} in 16 bits", stream, "F26"
        )
    for bits, pair in ((8, "dtype-i8"), (32, "long"), (64, "dtype-i64")):
        for sign, size in ((1, 1 << (bits - 1)), (0, (1 << (bits - 1)) + 1)):
            stream = made(one_class(sizes=2), run(0), raw(sign, 1), run(size - 1, q=1))
            yield Bad(f"f26-{bits}-bits-{'up' if sign else 'down'}", "F26",
                      f"a step of {'+' if sign else '-'}{size} in {bits} bits",
                      chunk(m, stream, 1, pair), base=f"{pair}.base")  # fmt: skip
    yield Bad("f13-classes-wrong-base", "F13", "changes by class on another base",
              m.chunk("sparse", BY_CLASS), None, "wrong-base", "mixed.other")  # fmt: skip
    parts = m.chunk("sparse", BY_CLASS)
    parts.chunks[0]["result"] ^= 1 << 17
    yield Bad("f13-classes-lying-result", "F13", "changes by class that end elsewhere", parts,
              kind="wrong-base", base="sparse.base")  # fmt: skip
    short = made(one_class(), run(0), raw(1, 1))
    assert len(short) < 8
    yield Bad("f27-classes-no-result", "F27", "changes by class without a result digest",
              m.chunk(options=BY_CLASS, values=short, changes=1, result=None))  # fmt: skip


def _row(first: int, slots: int, row: int) -> Run:
    return lambda encoder: encoder.symbol(first, slots, row)


def several(m: Maker) -> Iterator[Bad]:
    """Several classes, several groups."""

    def bad(name: str, threat: str, stream: bytes, changes: int, kind: str = "corrupt",
            pair: str = "classes-bf16") -> Bad:  # fmt: skip
        return Bad(name, "F25", threat, chunk(m, stream, changes, pair), kind=kind,
                   base=f"{pair}.base")  # fmt: skip

    far = FAR + 8

    def two(first: int, *gaps: Sequence[int], top: int = 192) -> bytes:
        """Two classes of four changes, said to be ``first`` in class 0."""
        bits = [(1, 4), (0, 1), (top, 11), (first, width(4 // 2), 0), *head(far)]
        runs = [part for j, of in enumerate(gaps) for part in ranked(far - 8 * j, *of)]
        return made(bits, *runs)

    yield bad("f25-first-class", "more changes in the first class than there are", two(5), 4)
    yield bad("f25-outside-class", "a rank behind its class, in the tile",
              two(2, [0, 200], [0, 0]), 4, "wrong-base")  # fmt: skip
    yield bad("f25-outside-empty-class", "ranks in a class without elements",
              two(2, [0, 0], [0, 0], top=0), 4, "wrong-base")  # fmt: skip
    three: Bits = [(2, 4), (0, 1), (192, 11)]
    yield bad("f25-negative-class", "less than no changes in a class",
              made([*three, (1, 1, 0), (zigzag(-2), 1, 0), *head(far)]), 6)  # fmt: skip
    yield bad("f25-second-class", "more changes in the second class than are left",
              made([*three, (2, 1, 0), (zigzag(3), 1, 0), *head(far)]), 6)  # fmt: skip
    yield bad("f25-top-cut", "half of the top", made([(1, 4), (0, 1)]), 4)
    for name in ("i16", "u8", "c64", "f8_e8m0", "bool"):
        stream = two(2, [0, 0], [0, 0])
        parts = m.chunk(f"dtype-{name}", BY_CLASS, values=stream, changes=4)
        yield Bad(f"f25-classes-of-{name}", "F25", f"{name} has no exponent field", parts,
                  base=f"dtype-{name}.base")  # fmt: skip
    yield from _groups(m)


def _groups(m: Maker) -> Iterator[Bad]:
    """32 rows of 64 elements in groups of one class, four changes."""

    def bad(name: str, threat: str, stream: bytes, kind: str = "corrupt", rule: str = "F25") -> Bad:
        return Bad(name, rule, threat, chunk(m, stream, 4, "rows-bf16"), kind=kind,
                   base="rows-bf16.base")  # fmt: skip

    def grouped(shares: Sequence[int], gaps: Sequence[Sequence[int]] = ((0, 0), (0, 0)),
                said: int | None = None, of_row: Callable[[int], int] = lambda row: row % 2,
                last: int | None = None) -> bytes:  # fmt: skip
        """``shares`` but the last, ``said``: changes of the first group."""
        bits: Bits = [(0, 4), (1, 1), (len(shares), 3), (0, 11), *((share, 12) for share in shares)]
        starts = [sum(shares[:group]) for group in range(len(shares) + 1)]
        slots = [*shares, 4096 - sum(shares) if last is None else last]
        runs = [_row(starts[g], slots[g], row) for row, g in enumerate(map(of_row, range(32)))]
        left = 4
        for group, numbers in enumerate(gaps):
            n = said if group == 0 and said is not None else len(numbers)
            if group < len(shares):
                bits.append((n, width(left // (len(shares) + 1 - group)), 0))
            left -= len(numbers)
            if numbers:
                bits += head()
                runs += ranked(FAR, *numbers)
        return made(bits, *runs)

    none = ((0, 0), (), (0, 0))
    yield bad("f25-share-zero", "a first group without a share", grouped((0,), of_row=lambda _: 1))
    yield bad("f25-share-middle-zero", "a group in the middle without a share",
              grouped((2048, 0), none, of_row=lambda row: row % 2 * 2))  # fmt: skip
    yield bad("f25-share-last-zero", "a last group without a share",
              grouped((2048, 2048), none, last=1))  # fmt: skip
    yield bad("f25-shares-above", "shares of more than 4096 slots",
              grouped((4000, 3000), none, of_row=lambda _: 0, last=1))  # fmt: skip
    yield bad(
        "f25-group-changes", "more changes in a group than there are", grouped((2048,), said=5)
    )
    yield bad("f25-group-without-rows", "changes in a group that no row is in",
              grouped((2048,), of_row=lambda _: 0), "wrong-base")  # fmt: skip
    yield bad("f25-group-outside", "a rank behind a group's rows",
              grouped((2048,), ((0, 0), (0, 63)), of_row=lambda row: int(row == 9)),
              "wrong-base")  # fmt: skip
    yield bad("f24-rows-cut", "groups of rows that end early", grouped((2048,))[:-2], rule="F24")
