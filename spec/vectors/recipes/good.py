"""One small file per feature, written by the reference encoder."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgpack

from deltawire_reference import WIDTHS, Coding, Options, Tensor, encode
from deltawire_reference.positions import ALL, BITMAP, GAPS, RANKS, RICE, RUNS
from deltawire_reference.positions import NAMES as POSITIONS
from deltawire_reference.ranks import EXPONENTS
from deltawire_reference.values import GROUPED, PLANES, RAW, STEP
from deltawire_reference.values import NAMES as VALUES

from .states import State

BOTH = {"base_digest": True, "result_digest": True}


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
    for name in ("scalar", "one", "one-by-one", "rank4", "empty", "no-tensors", "same"):
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
    yield good("lz4-header", "required feature LZ4_HEADER", "many", lz4_header=True)
    yield good("lz4-index", "index payload as LZ4 stage", "many", lz4_index=True)
    yield good(
        "meta", "run and free-form meta", run="r-1", meta={"": "", "loss": "0.5", "ключ": "x"}
    )
    yield good("versions", "64-bit versions", version=(1 << 64) - 1, base_version=(1 << 64) - 2)
    yield good("base-version-nil", "no base version", base_version=None)
    yield good("no-states", "no state digests at all", states=False)
    yield good("state-in-index-only", "base state only in the index", header_state=False)
    yield good("no-digests", "chunks without digests", coding=Coding(RICE), profile="overwrite")
    yield good("base-digest-only", "base digest only", coding=Coding(RICE, base_digest=True))
    yield good("result-digest-only", "result digest only", coding=Coding(RICE, result_digest=True))
    yield good("overwrite-unchanged", "raw values of unchanged elements too", coding=Coding(ALL))
    yield good("larger-minor", "a larger minor version", minor=9)
    yield good("unknown-optional-feature", "unknown optional features", optional=1 << 63 | 1)
    unknown = {
        "zz": {"nested": [1, None, -5, 0.5, {"a": b"\0"}, msgpack.ExtType(7, b"later")]},
        "yy": None,
    }
    yield good("unknown-header-key", "unknown keys in the header", extra_header=unknown)
    yield good("unknown-index-key", "unknown keys in the index", extra_index=unknown)


PARAMETERS = (0, 1, 7, 8, 24, 31, 32, 191)


def _ranks() -> Iterator[Good]:
    def good(name: str, feature: str, pair: str, tile: tuple[int, int] | None = None,
             **coding: Any) -> Good:  # fmt: skip
        return Good(name, feature, pair, Options(
            Coding(**{"positions": RANKS, **coding}), tiles={"w": tile} if tile else {}
        ))  # fmt: skip

    yield good("ranks-one-class", "ranks in one class, no base", "mixed")
    for dtype in EXPONENTS:
        for classes in (2, 9, 16):
            name = f"{dtype.lower()}-{classes}"
            yield good(f"ranks-{name}", f"ranks of {dtype} in {classes} classes, grouped steps",
                       f"classes-{dtype.lower()}", values=GROUPED, classes=classes,
                       **BOTH)  # fmt: skip
    for values in (RAW, PLANES, STEP):
        word = VALUES[values]
        yield good(f"ranks-{word}", f"ranks in 9 classes, {word} in the order of the positions",
                   "classes-bf16", values=values, classes=9, **BOTH)  # fmt: skip
    yield good("ranks-lz4", "ranks and grouped steps as LZ4 stages", "classes-bf16",
               values=GROUPED, classes=9, position_stage=1, value_stage=1, **BOTH)  # fmt: skip
    yield good("ranks-lz4-q0", "ranks that a poor parameter makes long, as an LZ4 stage", "long",
               q=0, position_stage=1)  # fmt: skip
    yield good("grouped-lz4-q0", "steps that a poor parameter makes long, as an LZ4 stage",
               "mixed", positions=GAPS, values=GROUPED, q_gaps=0, q_sizes=0, value_stage=1,
               **BOTH)  # fmt: skip
    yield good("ranks-base-digest-only", "ranks in 4 classes, base digest only", "classes-bf16",
               values=RAW, classes=4)  # fmt: skip
    yield good("ranks-empty-classes", "classes without elements and without changes",
               "classes-empty", values=GROUPED, classes=16, **BOTH)  # fmt: skip
    for top in (0, 1, 191, 192, 200, 255, 65535):
        yield good(f"ranks-top-{top}", f"top {top}: outside of the tile's exponents or among them",
                   "classes-bf16", values=GROUPED, classes=6, top=top, **BOTH)  # fmt: skip
    for tile in ((3, 8), (2, 4), (7, 12), (1, 22)):
        name = "ranks-tiles-{}x{}".format(*tile)
        yield good(name, f"ranks in tiles of {tile}, cut at both borders", "classes-cut", tile,
                   values=GROUPED, classes=4, **BOTH)  # fmt: skip
    for q in PARAMETERS:
        yield good(f"ranks-q{q}", f"ranks with parameter {q}", "classes-bf16", q=q, values=GROUPED,
                   q_gaps=q, classes=3, **BOTH)  # fmt: skip
        yield good(f"ranks-long-q{q}", f"gaps far beyond the symbols of parameter {q}", "long", q=q)
        yield good(f"grouped-q{q}", f"grouped steps with parameter {q}", "mixed", positions=GAPS,
                   values=GROUPED, q_gaps=q, q_sizes=q, **BOTH)  # fmt: skip
    yield good("grouped-large", "grouped steps up to 2^22 + 1", "long", values=GROUPED, classes=3,
               q_sizes=96, **BOTH)  # fmt: skip
    yield good("grouped-no-exceptions", "grouped steps without exceptions", "sparse",
               positions=RICE, values=GROUPED, **BOTH)  # fmt: skip
    yield good("grouped-all", "grouped steps of every element", "full", positions=ALL,
               values=GROUPED, **BOTH)  # fmt: skip
    for width in (1, 2):
        yield good(f"grouped-escapes-{width}", f"grouped steps over the range of {8 * width} bits",
                   f"escapes-{width}", values=GROUPED, **BOTH)  # fmt: skip


def all_good() -> list[Good]:
    parts: list[Callable[[], Iterator[Good]]] = [
        _codecs, _dtypes, _tiles, _shapes, _streams, _ranks,
    ]  # fmt: skip
    return [good for part in parts for good in part()]


def build(good: Good, states: dict[str, State]) -> bytes:
    return encode(states[f"{good.states}.base"], states[f"{good.states}.new"], good.options)
