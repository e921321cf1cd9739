"""Malformed checkpoints: a typed error with the place, never anything else."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint_files import (
    file_bytes,
    header_of,
    random_tensors,
    safetensors_bytes,
    write_sharded,
)
from deltawire.checkpoint import Checkpoint
from deltawire.errors import CorruptCheckpoint

TENSORS = {"a": ("F32", [2, 2], bytes(range(16))), "b": ("U8", [3], b"xyz")}
DATA = b"".join(data for _, _, data in TENSORS.values())


def changed(**changes: Any) -> dict[str, Any]:
    """The header of TENSORS with fields of tensor ``b`` replaced."""
    header = header_of(TENSORS)
    header["b"] |= changes
    return header


BAD_FILES = {
    "empty": (b"", "too short", 0),
    "short prefix": (b"\x02\0\0", "too short", 3),
    "header longer than the file": (b"\x40" + bytes(7) + b"{}", "64 bytes is claimed", 10),
    "absurd header length": (b"\xff" * 8 + b"{}", "the limit is 100000000", 0),
    "not an object": (file_bytes(b"[1]", b""), "does not begin", 8),
    "pickle": (b"\x02" + bytes(7) + b"\x80\x04", "does not begin", 8),
    "cut JSON": (file_bytes(b'{"a"', b""), "malformed", 12),
    "not UTF-8": (file_bytes(b'{"\xff":1}', b""), "not UTF-8", 10),
    "NaN": (file_bytes(b'{"a":NaN}', b""), "NaN is not JSON", 8),
    "nested": (file_bytes(b'{"a":' + b"[" * 200_000, b""), "nested too deeply", 8),
    "endless number": (file_bytes(b'{"a":' + b"9" * 10_000 + b"}", b""), "malformed", 8),
    "duplicate": (file_bytes(b'{"a":1, "a" :2}', b""), "stands twice", 16),
    "entry is no object": (file_bytes({"a": 3}, b""), "not an object", 9),
    "metadata of numbers": (file_bytes({"__metadata__": {"x": 1}}, b""), "__metadata__", 8),
    "lone surrogate": (file_bytes(b'{"\\ud800":{}}', b""), "not valid Unicode", 8),
    "no dtype": (file_bytes(changed(dtype=None), DATA), "no dtype", None),
    "unknown dtype": (file_bytes(changed(dtype="F12"), DATA), "'F12' is unknown", None),
    "sub-byte dtype": (file_bytes(changed(dtype="F4"), DATA), "narrower than a byte", None),
    "negative shape": (file_bytes(changed(shape=[-3]), DATA), "not a list of sizes", None),
    "boolean shape": (file_bytes(changed(shape=[True]), DATA), "not a list of sizes", None),
    "fractional shape": (file_bytes(changed(shape=[3.0]), DATA), "not a list of sizes", None),
    "no shape": (file_bytes(changed(shape=None), DATA), "not a list of sizes", None),
    "33 dimensions": (file_bytes(changed(shape=[1] * 32 + [3]), DATA), "33 dimensions", None),
    "overflow": (file_bytes(changed(shape=[2**32, 2**32]), DATA), "larger than any file", None),
    "overflow times zero": (
        file_bytes(changed(shape=[2**62, 2**62, 0]), DATA),
        "larger than any file",
        None,
    ),
    "shape disagrees": (file_bytes(changed(shape=[4]), DATA), "4 bytes, data_offsets", None),
    "one offset": (file_bytes(changed(data_offsets=[16]), DATA), "pair of ascending", None),
    "descending": (file_bytes(changed(data_offsets=[19, 16]), DATA), "pair of ascending", None),
    "beyond the file": (file_bytes(changed(data_offsets=[17, 20]), DATA), "cut short", None),
    "overlap": (file_bytes(changed(data_offsets=[15, 18]), DATA), "overlaps", None),
    "hole": (file_bytes(changed(data_offsets=[17, 20]), DATA + b"!"), "leaves a hole", None),
    "bytes after the last": (safetensors_bytes(TENSORS) + b"!", "the file is", None),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_malformed_file(case: str, tmp_path: Path) -> None:
    content, message, offset = BAD_FILES[case]
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    with pytest.raises(CorruptCheckpoint, match=message) as caught:
        Checkpoint.open(path)
    assert caught.value.path == str(path)
    assert caught.value.offset is not None
    if offset is not None:
        assert caught.value.offset == offset
    else:
        assert 8 <= caught.value.offset <= len(content)


def test_the_error_points_at_the_tensor_in_the_header(tmp_path: Path) -> None:
    path = tmp_path / "bad.safetensors"
    content = file_bytes(changed(dtype="F12"), DATA)
    path.write_bytes(content)
    with pytest.raises(CorruptCheckpoint) as caught:
        Checkpoint.open(path)
    assert caught.value.tensor == "b"
    assert caught.value.offset == content.index(b'"b"')


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    whole = safetensors_bytes(random_tensors())
    path = tmp_path / "cut.safetensors"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CorruptCheckpoint):
            Checkpoint.open(path)


def test_special_files_are_refused_without_waiting(tmp_path: Path) -> None:
    fifo = tmp_path / "model.safetensors"
    os.mkfifo(fifo)
    for path in (fifo, tmp_path, Path("/dev/zero")):
        with pytest.raises(CorruptCheckpoint, match="not an ordinary file"):
            Checkpoint.open(path)


def test_a_directory_without_weights(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(CorruptCheckpoint, match=r"no \.safetensors file"):
        Checkpoint.open(tmp_path)


# --- The index -----------------------------------------------------------------------

SHARD_1 = "model-00001-of-00002.safetensors"
SHARD_2 = "model-00002-of-00002.safetensors"


def sharded(tmp_path: Path) -> tuple[Path, Path, dict[str, Any]]:
    directory = tmp_path / "policy"
    write_sharded(directory, TENSORS)
    index = directory / "model.safetensors.index.json"
    return directory, index, json.loads(index.read_text())


def test_the_index_names_a_missing_file(tmp_path: Path) -> None:
    directory, index, _ = sharded(tmp_path)
    (directory / SHARD_2).unlink()
    with pytest.raises(CorruptCheckpoint, match=f"{SHARD_2}.*is missing") as caught:
        Checkpoint.open(directory)
    assert caught.value.path == str(index)
    assert caught.value.tensor == "b"
    assert caught.value.offset == index.read_bytes().index(b'"b"')


def test_the_index_names_a_tensor_that_the_file_lacks(tmp_path: Path) -> None:
    directory, index, value = sharded(tmp_path)
    value["weight_map"]["c"] = SHARD_1
    index.write_text(json.dumps(value))
    with pytest.raises(CorruptCheckpoint, match=f"{SHARD_1}, which does not hold it") as caught:
        Checkpoint.open(directory)
    assert (caught.value.path, caught.value.tensor) == (str(index), "c")
    assert caught.value.offset == index.read_bytes().index(b'"c"')


def test_the_index_places_a_tensor_in_the_wrong_file(tmp_path: Path) -> None:
    directory, index, value = sharded(tmp_path)
    value["weight_map"] = {"a": SHARD_2, "b": SHARD_1}
    index.write_text(json.dumps(value))
    with pytest.raises(CorruptCheckpoint, match=f"does not hold it .{SHARD_1} holds it"):
        Checkpoint.open(directory)


def test_a_tensor_in_two_shards(tmp_path: Path) -> None:
    directory, _, _ = sharded(tmp_path)
    (directory / SHARD_2).write_bytes(safetensors_bytes(TENSORS))
    with pytest.raises(CorruptCheckpoint, match=f"also in {SHARD_1}") as caught:
        Checkpoint.open(directory)
    assert (caught.value.path, caught.value.tensor) == (str(directory / SHARD_2), "a")


@pytest.mark.parametrize(
    "name", ["../outside.safetensors", "/etc/passwd", "", ".", "..", "a\0b", "x/y", "\ud800"]
)
def test_the_index_reaches_outside_its_directory(name: str, tmp_path: Path) -> None:
    directory, index, value = sharded(tmp_path)
    (tmp_path / "outside.safetensors").write_bytes(safetensors_bytes(TENSORS))
    value["weight_map"]["b"] = name
    index.write_text(json.dumps(value))
    with pytest.raises(CorruptCheckpoint, match="the index names the file") as caught:
        Checkpoint.open(directory)
    assert caught.value.tensor == "b"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}'])
def test_a_malformed_index(text: str, tmp_path: Path) -> None:
    directory, index, _ = sharded(tmp_path)
    index.write_text(text)
    with pytest.raises(CorruptCheckpoint) as caught:
        Checkpoint.open(directory)
    assert caught.value.path == str(index)


def test_an_index_beside_another_complete_file_is_ambiguous(tmp_path: Path) -> None:
    directory, _, _ = sharded(tmp_path)
    (directory / "model.safetensors").write_bytes(safetensors_bytes(TENSORS))
    with pytest.raises(CorruptCheckpoint, match="out of date"):
        Checkpoint.open(directory)


def test_a_missing_shard_behind_a_dangling_link(tmp_path: Path) -> None:
    directory, _, _ = sharded(tmp_path)
    (directory / SHARD_2).unlink()
    (directory / SHARD_2).symlink_to("absent")
    with pytest.raises(CorruptCheckpoint, match="is missing"):
        Checkpoint.open(directory)


# --- Properties ----------------------------------------------------------------------


def read_all(path: Path) -> None:
    """Open and touch every byte: a valid checkpoint or a typed error, nothing else."""
    try:
        with Checkpoint.open(path) as checkpoint:
            total = sum(len(view.data.tobytes()) for view in checkpoint.values())
            assert total == checkpoint.nbytes <= path.stat().st_size
    except CorruptCheckpoint as error:
        place = error.path
    else:
        place = str(path)
    assert place == str(path)


WHOLE = safetensors_bytes(random_tensors(), {"format": "pt"})
HEADER_END = 8 + int.from_bytes(WHOLE[:8], "little")


@given(data=st.data())
def test_random_bytes_in_the_header(data: st.DataObject, tmp_path_factory: Any) -> None:
    content = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, HEADER_END - 1))
        replacement = data.draw(
            st.binary(max_size=3)
            | st.sampled_from([b"0", b"9", b'"', b"{", b"}", b",", b"-", b"e"])
        )
        length = data.draw(st.integers(0, 3))
        content[at : at + length] = replacement
        if data.draw(st.booleans()):
            # Keep the length field right, so that the fault lies further in.
            end = HEADER_END + len(content) - len(WHOLE)
            content[:8] = max(end - 8, 0).to_bytes(8, "little")
    path = tmp_path_factory.getbasetemp() / "mutated.safetensors"
    path.write_bytes(content)
    read_all(path)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(data=st.data())
def test_random_values_in_the_header(data: st.DataObject, tmp_path_factory: Any) -> None:
    header = header_of(TENSORS, {"format": "pt"})
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from(["a", "b", "c", "__metadata__"]))
        field = data.draw(st.sampled_from(["dtype", "shape", "data_offsets", None]))
        if field is None or not isinstance(header.get(name), dict):
            header[name] = data.draw(json_values)
        elif field == "dtype":
            header[name][field] = data.draw(st.sampled_from(["U8", "F64", "F4", "BF16"]))
        else:
            numbers = st.lists(st.integers(0, 20) | st.integers(0, 2**64), max_size=3)
            header[name][field] = data.draw(numbers | json_values)
    path = tmp_path_factory.getbasetemp() / "mutated.safetensors"
    path.write_bytes(file_bytes(header, DATA))
    read_all(path)
