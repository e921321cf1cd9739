"""Every golden file against both implementations."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import deltawire as dw
from strategies import READERS, State, by_feed, contents, digest, reference, views

VECTORS = Path(__file__).resolve().parents[1] / "spec" / "vectors"
DOCUMENT: dict[str, Any] = json.loads((VECTORS / "vectors.json").read_text("utf-8"))
NATIVE: dict[str, Any] = json.loads((VECTORS / "native" / "vectors.json").read_text("utf-8"))
GOOD, BAD = DOCUMENT["good"], DOCUMENT["bad"]


def state(name: str) -> State:
    return {
        t["name"]: reference.Value(t["dtype"], tuple(t["shape"]), bytes.fromhex(t["hex"]))
        for t in DOCUMENT["states"][name]["tensors"]
    }


def data_of(case: dict[str, Any]) -> bytes:
    return (VECTORS / case["file"]).read_bytes()


def named(cases: list[dict[str, Any]]) -> Any:
    return pytest.mark.parametrize("case", cases, ids=[Path(case["file"]).stem for case in cases])


def test_the_generator_makes_the_committed_files() -> None:
    made = subprocess.run(
        [sys.executable, str(VECTORS / "make.py"), "--check"], capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr


def test_every_file_is_listed() -> None:
    for folder, listed in {
        "good": GOOD,
        "bad": BAD,
        "native": NATIVE["files"],
    }.items():
        assert {f"{folder}/{path.name}" for path in (VECTORS / folder).glob("*.dw")} == {
            case["file"] for case in listed
        }


@named(GOOD)
def test_good_files_with_the_reference(case: dict[str, Any]) -> None:
    data = data_of(case)
    assert reference.apply(data, state(case["base"])) == state(case["new"])
    if case["result_digests"]:
        assert reference.apply(data, state(case["new"])) == state(case["new"])


@named(BAD)
def test_bad_files_with_the_reference(case: dict[str, Any]) -> None:
    with pytest.raises(reference.ReferenceFault) as caught:
        reference.apply(data_of(case), state(case["base"]))
    assert caught.value.kind == case["kind"]
    assert caught.value.rule == case["rule"]
    if case["offsets"] is not None and caught.value.offset is not None:
        first, last = case["offsets"]
        assert first <= caught.value.offset <= last


@named(GOOD)
@pytest.mark.parametrize("reader", READERS)
def test_good_files(case: dict[str, Any], reader: str) -> None:
    target = views(state(case["base"]))
    READERS[reader](data_of(case), target)
    assert contents(target) == state(case["new"])


@named(GOOD)
def test_good_files_byte_by_byte(case: dict[str, Any]) -> None:
    data = data_of(case)
    target = views(state(case["base"]))
    by_feed(data, target, range(1, len(data)))
    assert contents(target) == state(case["new"])


@named([case for case in GOOD if case["result_digests"]])
def test_tiles_that_hold_the_result_are_skipped(case: dict[str, Any]) -> None:
    target = views(state(case["new"]))
    stats = dw.apply(data_of(case), target)
    assert stats.skipped == case["chunks"]
    assert contents(target) == state(case["new"])


def low_half(delta: Any, number: int) -> bytes | None:
    """Of a tensor's lane 0 after the delta: from the index, or from chunks of all its tiles."""
    tensor, low = delta.header.tensors[number], delta.index.digests[number]
    results = [chunk.result_digest for chunk in delta.chunks if chunk.tensor == number]
    told = len(results) == tensor.tiles and None not in results
    if low is None and told and delta.index.result_state is not None:
        start = digest.key(tensor.name, tensor.dtype, tensor.shape)[2]
        low = (start + sum(results)) % digest.P & 0xFFFFFFFF
    return None if low is None else low.to_bytes(4, "little")


@named(GOOD)
def test_good_files_are_described(case: dict[str, Any]) -> None:
    data = data_of(case)
    info = dw.inspect(data)
    delta = reference.decode(data)
    assert delta.index is not None
    assert (info.run, info.version, info.base_version, info.profile, info.meta) == (
        delta.header.run,
        delta.header.version,
        delta.header.base_version,
        delta.header.profile,
        delta.header.meta,
    )
    assert (info.chunks, info.changed, info.bytes) == (case["chunks"], case["changed"], len(data))
    assert info.base_state == (delta.index.base_state or delta.header.base_state)
    assert info.result_state == delta.index.result_state
    assert [(t.name, t.dtype, t.shape, t.tile, t.digest) for t in info.tensors] == [
        (t.name, t.dtype, t.shape, t.tile, low_half(delta, number))
        for number, t in enumerate(delta.header.tensors)
    ]
    assert sum(info.codecs.values()) == case["chunks"]


def check_refusal(case: dict[str, Any], error: dw.DeltawireError) -> None:
    assert error.kind == case["kind"], error
    if case["offsets"] is not None:
        first, last = case["offsets"]
        assert error.offset is not None, error
        assert first <= error.offset <= last, error


@named(BAD)
@pytest.mark.parametrize("reader", ["apply", "stage"])
def test_bad_files(case: dict[str, Any], reader: str) -> None:
    target = views(state(case["base"]))
    with pytest.raises(dw.DeltawireError) as caught:
        READERS[reader](data_of(case), target)
    check_refusal(case, caught.value)
    assert contents(target) == state(case["base"])


@named([case for case in BAD if case["kind"] not in ("wrong-base", "layout")])
@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_bad_files_in_pieces(case: dict[str, Any], size: int) -> None:
    """What needs the target's bits to be seen (a result digest) shows when a chunk is applied."""
    data = data_of(case)
    target = views(state(case["base"]))
    with pytest.raises(dw.DeltawireError) as caught:
        by_feed(data, target, range(size, len(data), size))
    check_refusal(case, caught.value)
    assert contents(target) == state(case["base"])


@named(NATIVE["files"])
def test_the_writer_still_makes_its_goldens(case: dict[str, Any]) -> None:
    sys.path.insert(0, str(VECTORS))
    try:
        from recipes.native import build
    finally:
        sys.path.remove(str(VECTORS))
    assert build(case, state) == data_of(case)


@named(NATIVE["files"])
def test_the_reference_reads_the_writers_goldens(case: dict[str, Any]) -> None:
    assert reference.apply(data_of(case), state(case["base"])) == state(case["new"])
