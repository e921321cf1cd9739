"""Small tensor states, all derived from SHA-256 in counter mode, so any language can make them."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Mapping, Sequence
from math import prod

from deltawire_reference import WIDTHS, Value
from deltawire_reference.tensors import EXPONENTS

State = dict[str, Value]


def stream(seed: str, count: int) -> bytes:
    """``count`` bytes: SHA-256(seed, 0) SHA-256(seed, 1) ..., the counter as u64."""
    blocks = (
        hashlib.sha256(seed.encode() + struct.pack("<Q", i)).digest()
        for i in range(count // 32 + 1)
    )
    return b"".join(blocks)[:count]


def weights(seed: str, dtype: str, shape: Sequence[int]) -> Value:
    """Values that look like weights: a narrow range of exponents for floats, any bits otherwise."""
    width = WIDTHS[dtype]
    data = bytearray(stream(seed, prod(shape) * width))
    if dtype in ("BF16", "F32", "F64") and width > 1:
        for i in range(width - 1, len(data), width):
            data[i] = data[i] & 0x81 | 0x3C
    return Value(dtype, tuple(shape), bytes(data))


def spread(seed: str, dtype: str, shape: Sequence[int], span: int = 20, stride: int = 1) -> Value:
    """Floats with exponents ``stride`` times 0 to ``span`` - 1 below a top, other bits random."""
    width, (first, count) = WIDTHS[dtype], EXPONENTS[dtype]
    top = (1 << count) * 3 // 4
    bits = stream(seed, prod(shape) * (width + 1))
    data = b""
    for at in range(0, len(bits), width + 1):
        pattern = int.from_bytes(bits[at : at + width], "little")
        exponent = max(top - stride * (bits[at + width] % span), 0)
        pattern &= ~(((1 << count) - 1) << first)
        data += (pattern | exponent << first).to_bytes(width, "little")
    return Value(dtype, tuple(shape), data)


def stepped(value: Value, positions: Mapping[int, int] | Sequence[int], width: int) -> Value:
    """Patterns moved: position -> difference modulo 2^w; a sequence moves each by +1 or -1."""
    data = bytearray(value.data)
    if not isinstance(positions, Mapping):
        positions = {x: 1 if x % 3 else -1 for x in positions}
    for x, move in positions.items():
        old = int.from_bytes(data[x * width : (x + 1) * width], "little")
        new = (old + move) % (1 << (8 * width))
        data[x * width : (x + 1) * width] = new.to_bytes(width, "little")
    return Value(value.dtype, value.shape, bytes(data))


def chosen(seed: str, count: int, per_mille: int) -> list[int]:
    """The positions below ``count`` that a seed picks."""
    draw = struct.unpack(f"<{count}H", stream(seed, 2 * count))
    return [x for x in range(count) if draw[x] * 1000 < per_mille * 65536]


def special_floats(dtype: str) -> tuple[Value, Value]:
    """Pairs that a comparison by value would miss or mangle."""
    width = WIDTHS[dtype]
    sign = 1 << (8 * width - 1)
    exponent = {
        "BF16": 0x7F80, "F16": 0x7C00, "F32": 0x7F800000, "F64": 0x7FF0000000000000,
        "F8_E5M2": 0x7C, "F8_E4M3": 0x7E,
    }.get(dtype, 0x78)  # fmt: skip
    pairs = [
        (sign, 0),  # -0 to +0
        (0, sign),
        (exponent | 1, exponent + 2),  # another NaN payload (another large value where width is 1)
        (exponent | 1 | sign, exponent | 1),  # the sign of a NaN
        (exponent, exponent | sign),  # +inf to -inf
        (0, 1),  # the smallest denormal
        (sign | 1, 1),
        (exponent - 1, exponent),  # largest finite to infinity
        (1, 2),
        (sign | 2, sign | 1),
        (sign - 1, 2 * sign - 1),  # the ends of the ordered integers
        (2 * sign - 1, sign - 1),
        (7, 7),  # unchanged
    ]
    old = b"".join(a.to_bytes(width, "little") for a, _ in pairs)
    new = b"".join((b % (2 * sign)).to_bytes(width, "little") for _, b in pairs)
    return Value(dtype, (len(pairs),), old), Value(dtype, (len(pairs),), new)


def rows_that_differ(pair: Callable[[str, State, State], None]) -> None:
    """Rows that never change, rarely, or mostly, as those of an embedding do."""
    shapes = {
        "BF16": (32, 64), "F16": (17, 64), "F32": (16, 70), "F64": (16, 64), "F8_E4M3": (40, 65),
    }  # fmt: skip
    for dtype, (rows, cols) in shapes.items():
        name = f"rows-{dtype.lower()}"
        v = spread(name, dtype, (rows, cols), 5)
        moves = {}
        for x in chosen(f"{name} positions", rows * cols, 850):
            row = x // cols
            if row % 3 == 1 or (row % 3 == 2 and x % 9 == 0):
                moves[x] = (1, -1, 1, 2, -1, 1, 1, -4)[x % 8]
        pair(name, {"w": v}, {"w": stepped(v, moves, WIDTHS[dtype])})
    v = spread("rows-cut", "BF16", (11, 136), 3)
    some = [x for x in chosen("rows-cut positions", 11 * 136, 500) if x // 136 % 2]
    pair("rows-cut", {"w": v}, {"w": stepped(v, some, 2)})


def steps_of_training(pair: Callable[[str, State, State], None]) -> None:
    """Elements that change as often and as far as their exponents let them."""

    def trained(name: str, dtype: str, shape: tuple[int, ...], span: int, first: int) -> None:
        """The largest change with p = 2^-``first``, each lower exponent twice as often."""
        width, (bit, bits) = WIDTHS[dtype], EXPONENTS[dtype]
        v = spread(name, dtype, shape, span)
        count = prod(shape)
        top = (1 << bits) * 3 // 4
        draws = struct.unpack(f"<{count}I", stream(f"{name} draws", 4 * count))
        moves = {}
        for x, draw in enumerate(draws):
            pattern = int.from_bytes(v.data[x * width : (x + 1) * width], "little")
            octaves = top - (pattern >> bit & ((1 << bits) - 1)) - first
            often = min(1 << (16 + min(octaves, 0)), 0xF000)
            if draw & 0xFFFF < often:
                far = 1 << max(octaves, 0)
                size = 1 + (draw >> 17) % far
                moves[x] = size if draw >> 16 & 1 else -size
        pair(name, {"w": v}, {"w": stepped(v, moves, width)})

    for dtype in EXPONENTS:
        trained(f"law-{dtype.lower()}", dtype, (12, 64), 7, 4)
    trained("law-lanes", "F8_E5M2", (164, 128), 4, 1)


NAMES = (
    "layers.0.a", "layers.0.b", "layers.1.a", "layers.10.experts.3.w", "layers.9.experts.127.w",
    "layers.10.a", "0", "00", "a.007.1", "x1", "999999999999999999", "1000000000000000000",
    "12345678901234567890123", "1.22.333", "\x01", "\x02", "a\x01b\x02\x02", "\x0212\x01",
    "\u0663 \xb2", "5",
)  # fmt: skip


def numbered_names(pair: Callable[[str, State, State], None]) -> None:
    """Names with numbers, with what is none, and with the characters that stand for numbers."""
    base = {
        name: weights(f"n{i}", ("F16", "U8", "F32")[i % 3], ((2, 3), (), (4,), (1, 2, 2))[i % 4])
        for i, name in enumerate(NAMES)
    }
    after = {
        name: stepped(v, [0], WIDTHS[v.dtype]) if i % 2 else v
        for i, (name, v) in enumerate(base.items())
    }
    pair("numbers", base, after)
    deep = weights("deep", "I16", (*[1] * 15, 2, *[1] * 14, 3, 2))
    pair("rank32", {"w": deep}, {"w": stepped(deep, [0, 7], 2)})
    wide: State = {"w": Value("F32", (1 << 40, 1 << 20, 0, 1 << 40), b"")}
    pair("wide-empty", wide, wide)


def all_states() -> dict[str, State]:
    """Every state that a vector names. ``x.base`` leads to ``x.new``."""
    states: dict[str, State] = {}

    def pair(name: str, base: State, new: State) -> None:
        states[f"{name}.base"], states[f"{name}.new"] = base, new

    w = weights("mixed", "BF16", (6, 20))
    some = chosen("mixed positions", 120, 250)
    moves = {x: (1, -1, 2, -3, 40, 1, -1)[i % 7] for i, x in enumerate(some)}
    pair("mixed", {"w": w}, {"w": stepped(w, moves, 2)})
    pair("sparse", {"w": w}, {"w": stepped(w, [0, 55, 119], 2)})
    pair("runs", {"w": w}, {"w": stepped(w, [*range(5), *range(40, 63), 119], 2)})
    pair("full", {"w": w}, {"w": stepped(w, range(120), 2)})
    pair("same", {"w": w}, {"w": w})
    for dtype, width in WIDTHS.items():
        name = f"dtype-{dtype.lower()}"
        if dtype == "BOOL":
            old = Value(dtype, (3, 8), bytes(b & 1 for b in stream(name, 24)))
            new = Value(dtype, (3, 8), bytes(b ^ (i % 5 == 0) for i, b in enumerate(old.data)))
            pair(name, {"w": old}, {"w": new})
        elif dtype.startswith(("F", "B")) and dtype != "F8_E8M0":
            a, b = special_floats(dtype)
            v = weights(name, dtype, (4, 9))
            pair(name, {"s": a, "w": v}, {"s": b, "w": stepped(v, chosen(name, 36, 300), width)})
        else:
            v = weights(name, dtype, (4, 9))
            ends = {x: 1 << (8 * width - 1) for x in (3, 17)}
            moved = {**{x: 1 for x in chosen(name, 36, 300)}, **ends}
            pair(name, {"w": v}, {"w": stepped(v, moved, width)})
    for width, dtype in ((1, "I8"), (2, "I16"), (4, "I32"), (8, "I64")):
        half = 1 << (8 * width - 1)
        v = Value(dtype, (10,), stream(f"escapes {width}", 10 * width))
        far = {0: half, 1: half - 1, 2: half + 1, 4: 1, 5: 60, 6: -60, 8: half // 2, 9: -1}
        pair(f"escapes-{width}", {"w": v}, {"w": stepped(v, far, width)})
    v = weights("ragged", "F32", (7, 22))
    pair("ragged", {"w": v}, {"w": stepped(v, chosen("ragged positions", 154, 300), 4)})
    v = weights("odd", "BF16", (5, 3))
    pair("odd-columns", {"w": v}, {"w": stepped(v, [0, 4, 7, 14], 2)})
    v = weights("vector", "BF16", (37,))
    pair("vector", {"w": v}, {"w": stepped(v, [0, 9, 10, 36], 2)})
    shapes = {
        "scalar": ("F32", ()), "one": ("BF16", (1,)), "one-by-one": ("F64", (1, 1)),
        "rank4": ("F16", (2, 3, 2, 5)),
    }  # fmt: skip
    for name, (dtype, shape) in shapes.items():
        v = weights(name, dtype, shape)
        pair(name, {"w": v}, {"w": stepped(v, [0], WIDTHS[dtype])})
    nothing: State = {
        "a": Value("F32", (0,), b""), "b": Value("BF16", (0, 4), b""),
        "c": Value("I8", (4, 0), b""), "d": Value("F64", (2, 0, 3), b""),
    }  # fmt: skip
    pair("empty", nothing, nothing)
    pair("no-tensors", {}, {})
    many = {
        "model.embed.weight": weights("m0", "BF16", (9, 8)),
        "model.norm.weight": weights("m1", "F32", (13,)),
        "empty": Value("BF16", (0, 8), b""),
        "steps": weights("m2", "I64", ()),
        "mask": Value("BOOL", (11,), bytes(b & 1 for b in stream("m3", 11))),
        "untouched": weights("m4", "F16", (4, 4)),
        "scale": weights("m5", "F8_E4M3", (5, 16)),
    }
    after = dict(many)
    for name in ("model.embed.weight", "model.norm.weight", "steps", "scale"):
        width = WIDTHS[many[name].dtype]
        count = len(many[name].data) // width
        after[name] = stepped(many[name], [0, *chosen(name, count, 200)], width)
    after["mask"] = Value("BOOL", (11,), bytes(b ^ 1 for b in many["mask"].data))
    pair("many", many, after)
    v = weights("text", "F16", (3, 4))
    names = {"слой.вес": v, "重み": v, "a" * 200: v}
    pair("names", names, {k: stepped(x, [i], 2) for i, (k, x) in enumerate(names.items())})
    far_ones = (1, -1, 1, 2, -1, 1, -5, 1, 1, 300)
    for dtype in EXPONENTS:
        name = f"classes-{dtype.lower()}"
        v = spread(name, dtype, (8, 30))
        some = chosen(f"{name} positions", 240, 250)
        # One byte's steps stay below half of its range.
        far = {x: far_ones[i % 10] % (100 if WIDTHS[dtype] == 1 else 1000) if far_ones[i % 10] > 0
               else far_ones[i % 10] for i, x in enumerate(some)}  # fmt: skip
        pair(name, {"w": v}, {"w": stepped(v, far, WIDTHS[dtype])})
    v = spread("gaps", "BF16", (8, 30), 5, 3)
    pair("classes-empty", {"w": v}, {"w": stepped(v, chosen("gaps positions", 240, 200), 2)})
    v = spread("long", "F32", (4, 2000), 3)
    far = {x: (1, -1, 1000, -2)[i % 4] for i, x in enumerate(range(5, 8000, 397))}
    pair("long", {"w": v}, {"w": stepped(v, {**far, 7999: 1 << 22, 6: -(1 << 22) - 1}, 4)})
    v = spread("cut", "BF16", (7, 22), 4)
    pair("classes-cut", {"w": v}, {"w": stepped(v, chosen("cut positions", 154, 300), 2)})
    rows_that_differ(pair)
    numbered_names(pair)
    steps_of_training(pair)
    # As many changes as coders are for: all of the first 16,384, and some more.
    v = spread("lanes", "F8_E5M2", (20_000,), 9)
    some = [*range(16_384), *chosen("lanes positions", 20_000, 150)[-400:]]
    small = (1, -1, 1, -1, 3, -1, 1, 1, -2, 1, -1)
    pair("lanes", {"w": v}, {"w": stepped(v, {x: small[x % 11] for x in some}, 1)})
    # A target that a delta of "mixed" does not fit.
    states["mixed.other"] = {"w": stepped(w, [11], 2)}
    states["sparse.other"] = {"w": stepped(w, [25], 2)}
    states["mixed.renamed"] = {"v": w}
    states["mixed.retyped"] = {"w": Value("F16", w.shape, w.data)}
    states["mixed.reshaped"] = {"w": Value("BF16", (20, 6), w.data)}
    states["mixed.flat"] = {"w": Value("BF16", (120,), w.data)}
    return states
