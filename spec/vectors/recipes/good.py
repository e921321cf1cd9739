"""One small file per feature, written by the reference encoder."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgpack

from deltawire_reference import LAW, WIDTHS, Coding, Options, Parameters, Tensor, encode
from deltawire_reference.positions import ALL, BITMAP, GAPS, RICE, RUNS
from deltawire_reference.positions import NAMES as POSITIONS
from deltawire_reference.tensors import EXPONENTS
from deltawire_reference.values import NAMES as VALUES
from deltawire_reference.values import PLANES, RAW, STEP

from .states import State

BOTH: dict[str, Any] = {"base_digest": True, "result_digest": True}


@dataclass(frozen=True)
class Good:
    name: str
    feature: str
    states: str
    options: Options


def _codecs() -> Iterator[Good]:
    for p, ps, v, vs in itertools.product(POSITIONS, (0, 1), VALUES, (0, 1)):
        if v == PLANES and vs:
            continue
        coding = Coding(p, ps, v, vs, **BOTH)
        words = [POSITIONS[p], *["lz4"] * ps, VALUES[v], *["lz4"] * vs]
        states = {ALL: "full", RUNS: "runs"}.get(p, "mixed")
        yield Good(
            "-".join(["codec", *words]), "codecs " + " ".join(words), states, Options(coding)
        )
    for k in (0, 1, 24):
        yield Good(
            f"rice-k{k}", f"Rice positions with k = {k}", "mixed", Options(Coding(RICE, k=k))
        )
    for k in (0, 12, 24):
        coding = Coding(values=STEP, k_gaps=k, result_digest=True)
        yield Good(f"step-gaps-k{k}", f"exception gaps with k = {k}", "mixed", Options(coding))
    for width in (1, 2, 4, 8):
        for k in (0, 3, 63):
            yield Good(
                f"step-escapes-{width}-k{k}",
                f"steps over the whole range of {8 * width} bits, k = {k}",
                f"escapes-{width}",
                Options(Coding(values=STEP, k_sizes=k, result_digest=True)),
            )
    for stages in ((1, 1), (1, 0), (0, 1)):
        name = "".join(map(str, stages))
        coding = Coding(BITMAP, values=PLANES, plane_stages=stages)
        yield Good(
            f"planes-lz4-{name}", f"planes with LZ4 stages {stages}", "full", Options(coding)
        )


def _dtypes() -> Iterator[Good]:
    for dtype in WIDTHS:
        name = f"dtype-{dtype.lower()}"
        step = Options(Coding(RICE, values=STEP, k_sizes=2, result_digest=True))
        yield Good(name, f"dtype {dtype}, steps", name, step)
        raw = Options(Coding(GAPS, values=PLANES), profile="overwrite", base_version=None)
        yield Good(f"{name}-overwrite", f"dtype {dtype}, planes, no base", name, raw)


def _tiles() -> Iterator[Good]:
    def tiles(name: str, states: str, tile: tuple[int, int], values: int = STEP) -> Good:
        coding = Coding(RICE, values=values, result_digest=True)
        return Good(name, f"tiles of {tile}", states, Options(coding, tiles={"w": tile}))

    yield tiles("tiles-rows", "ragged", (2, 22))
    yield tiles("tiles-columns", "ragged", (7, 4))
    yield tiles("tiles-both-ragged", "ragged", (3, 6))
    yield tiles("tiles-smallest", "ragged", (1, 2))
    yield tiles("tiles-larger-than-tensor", "ragged", (64, 128))
    yield tiles("tiles-odd-columns", "odd-columns", (2, 3))
    yield tiles("tiles-odd-columns-cut", "odd-columns", (5, 4))
    yield tiles("tiles-vector", "vector", (10, 1))
    yield tiles("tiles-vector-raw", "vector", (10, 1), RAW)


def _shapes() -> Iterator[Good]:
    for name in (
        "scalar", "one", "one-by-one", "rank4", "rank32", "empty", "wide-empty", "no-tensors",
        "same",
    ):  # fmt: skip
        coding = Coding(None, values=STEP, result_digest=True)
        yield Good(f"shape-{name}", f"shape: {name}", name, Options(coding))


def _streams() -> Iterator[Good]:
    step = Coding(RICE, values=STEP, result_digest=True)

    def good(name: str, feature: str, pair: str = "mixed", **options: Any) -> Good:
        return Good(name, feature, pair, Options(**{"coding": step, **options}))

    def by_tensor(entry: Tensor, _tile: int) -> Coding:
        codecs: dict[str, Coding] = {"mask": Coding(ALL), "scale": Coding(RUNS, 1, PLANES, 0)}
        return codecs.get(entry.name, step)

    yield good("many-tensors", "several tensors and dtypes", "many", coding=by_tensor)
    yield good(
        "tensor-order", "tensors in another order than the table", "many",
        order=["steps", "scale", "model.norm.weight", "mask", "model.embed.weight"],
        coding=by_tensor, tiles={"model.embed.weight": (2, 4)},
    )  # fmt: skip
    yield good("names", "names of several scripts and lengths", "names")
    yield good("names-numbers", "numbers in names, and what only looks like them", "numbers")
    yield good("names-numbers-lz4", "the same, LZ4 header", "numbers", lz4_header=True)
    yield good("table-plain", "digits left in names, tiles in full", "numbers", plain_table=True)
    yield good("table-dtypes-unused", "dtypes that no tensor has, one unknown, one twice",
               extra_header={"dtypes": ["BF16", "FUTURE", "BF16"]})  # fmt: skip
    yield good("table-dtype-last", "the last of 256 dtypes",
               extra_header={"dtypes": ["F32"] * 255 + ["BF16"], "dtype": b"\xff"})  # fmt: skip
    yield good("lz4-header", "required feature LZ4_HEADER", "many", lz4_header=True)
    yield good("lz4-index", "index payload as LZ4 stage", "many", lz4_index=True)
    yield good(
        "lz4-both", "both payloads as LZ4 stages", "numbers", lz4_header=True, lz4_index=True
    )
    yield good(
        "meta", "run and free-form meta", run="r-1", meta={"": "", "loss": "0.5", "ключ": "x"}
    )
    yield good("versions", "64-bit versions", version=(1 << 64) - 1, base_version=(1 << 64) - 2)
    yield good("base-version-nil", "no base version", base_version=None)
    yield good("no-states", "no state digests at all", states=False)
    yield good("no-states-digests", "digests of the tensors, no states", states=False, digests=True)
    yield good("no-digests-states", "states, and digests that the chunks tell", digests=False)
    yield good("no-digests-untold", "states, and no digest of tensors that the chunks do not tell",
               "many", coding=by_tensor, digests=False)  # fmt: skip
    yield good("state-in-index-only", "base state only in the index", header_state=False)
    yield good("step-base-digest", "steps with a base digest only", coding=Coding(
        RICE, values=STEP, base_digest=True))  # fmt: skip
    yield good("step-both-digests", "steps with both digests", coding=Coding(
        RICE, values=STEP, **BOTH))  # fmt: skip
    yield good("no-digests", "chunks without digests", coding=Coding(RICE), profile="overwrite")
    yield good("base-digest-only", "base digest only", coding=Coding(RICE, base_digest=True))
    yield good("result-digest-only", "result digest only", coding=Coding(RICE, result_digest=True))
    yield good("overwrite-unchanged", "raw values of unchanged elements too", coding=Coding(ALL))
    yield good("larger-minor", "a larger minor version", minor=9)
    yield good("unknown-optional-feature", "unknown optional features", optional=1 << 31 | 1)
    unknown = {
        "zz": {"nested": [1, None, -5, 0.5, {"a": b"\0"}, msgpack.ExtType(7, b"later")]},
        "yy": None,
    }
    yield good("unknown-header-key", "unknown keys in the header", extra_header=unknown)
    yield good("unknown-index-key", "unknown keys in the index", extra_index=unknown)


PARAMETERS = (0, 1, 7, 8, 24, 31, 32, 191)


def _classes() -> Iterator[Good]:
    def good(name: str, feature: str, pair: str, tile: tuple[int, int] | None = None,
             given: Parameters | None = None, **coding: Any) -> Good:  # fmt: skip
        made = Coding(by_class=True, parameters=given or Parameters(), **coding)
        return Good(
            f"classes-{name}", feature, pair, Options(made, tiles={"w": tile} if tile else {})
        )

    for dtype in WIDTHS:
        name = dtype.lower()
        yield good(f"one-{name}", f"changes of {dtype} in one class", f"dtype-{name}")
    for dtype in EXPONENTS:
        for classes in (2, 9, 16):
            name = f"{dtype.lower()}-{classes}"
            yield good(name, f"changes of {dtype} in {classes} classes", f"classes-{dtype.lower()}",
                       classes=classes)  # fmt: skip
        yield good(f"law-{dtype.lower()}", f"{dtype} as training changes it",
                   f"law-{dtype.lower()}", classes=7)  # fmt: skip
    yield good("empty", "classes without elements and without changes", "classes-empty", classes=16)
    for top in (0, 1, 191, 192, 200, 255, 2047):
        yield good(f"top-{top}", f"top {top}: outside of the tile's exponents or among them",
                   "classes-bf16", classes=6, top=top)  # fmt: skip
    for tile in ((3, 8), (2, 4), (7, 12), (1, 22)):
        yield good("tiles-{}x{}".format(*tile), f"tiles of {tile}, cut at both borders",
                   "classes-cut", tile, classes=4)  # fmt: skip
    yield good("sparse", "steps of one: no parameters of sizes", "sparse")
    yield good("all", "every element", "full")
    yield from _parameters(good)
    yield from _rows(good)
    for most in (4095, 4096, 16383, 16384):
        yield good(f"lanes-{most}", f"tiles of up to {most} changes", "lanes", (most, 1), classes=5)


def _parameters(good: Callable[..., Good]) -> Iterator[Good]:
    for q in PARAMETERS:
        yield good(f"q{q}", f"parameter {q} of ranks and sizes", "classes-bf16",
                   given=Parameters(ranks=q, sizes=q + 1), classes=3)  # fmt: skip
        yield good(f"long-q{q}", f"gaps and sizes far beyond the symbols of parameter {q}", "long",
                   given=Parameters(ranks=q, sizes=q + 1))  # fmt: skip
    for distance in (0, 7, 15, 16, 24, 56, 57, 100, 127, 191, 192, 255):
        yield good(f"law-{distance}", f"the law's parameters from distance {distance} on",
                   "classes-f32", given=Parameters(distance, LAW, LAW), classes=16)  # fmt: skip
        yield good(f"differ-{distance}", f"differences from the law at distance {distance}",
                   "classes-f32", given=Parameters(distance), classes=16)  # fmt: skip
    yield good("law-ranks", "the law's ranks, other sizes", "classes-bf16",
               given=Parameters(40, LAW, 7), classes=9)  # fmt: skip
    yield good("law-sizes", "the law's sizes, other ranks", "classes-bf16",
               given=Parameters(40, 20, LAW), classes=9)  # fmt: skip
    yield good("differ-zero", "lists of differences that are zero", "classes-bf16",
               given=Parameters(40, LAW, LAW, differ=True), classes=9)  # fmt: skip
    yield good("sizes-of-one", "sizes with a parameter, though all are one", "sparse",
               given=Parameters(sizes=1))  # fmt: skip
    for width in (1, 2, 4, 8):
        for s in (1, 9, 33, 192):
            feature = f"steps over the range of {8 * width} bits, s = {s}"
            yield good(f"escapes-{width}-s{s}", feature, f"escapes-{width}",
                       given=Parameters(sizes=s))  # fmt: skip


def _rows(good: Callable[..., Good]) -> Iterator[Good]:
    for dtype in ("BF16", "F16", "F32", "F64", "F8_E4M3"):
        name = dtype.lower()
        for groups, classes in ((2, 1), (3, 6), (8, 16)):
            yield good(f"rows-{name}-{groups}x{classes}",
                       f"rows of {dtype} in {groups} groups of {classes} classes", f"rows-{name}",
                       groups=groups, classes=classes)  # fmt: skip
    for groups in (4, 5, 6, 7):
        yield good(
            f"rows-{groups}", f"rows in {groups} groups", "rows-bf16", groups=groups, classes=3
        )
    yield good("rows-tiles", "groups where tiles are wide enough", "rows-cut", (7, 64), groups=2,
               classes=3)  # fmt: skip
    for name, shares in {
        "rare": (1, 4094, 1), "last": (1, 1, 4094), "first": (4094, 1, 1),
        "even": (1365, 1365, 1366),
    }.items():  # fmt: skip
        yield good(f"rows-shares-{name}", f"groups with the shares {shares}", "rows-bf16", groups=3,
                   classes=4, given=Parameters(shares=shares))  # fmt: skip
    yield good("rows-none", "groups without rows", "rows-bf16", groups=4, classes=2,
               rows=tuple(1 + 2 * (row % 3 == 1) for row in range(32)))  # fmt: skip
    yield good("rows-unchanged", "groups whose rows do not change", "rows-bf16", groups=3,
               classes=2, rows=tuple((2, 1, 1)[row % 3] for row in range(32)))  # fmt: skip


def all_good() -> list[Good]:
    parts: list[Callable[[], Iterator[Good]]] = [
        _codecs, _dtypes, _tiles, _shapes, _streams, _classes,
    ]  # fmt: skip
    return [good for part in parts for good in part()]


def build(good: Good, states: dict[str, State]) -> bytes:
    return encode(states[f"{good.states}.base"], states[f"{good.states}.new"], good.options)
