"""Files from and for the safetensors and transformers packages."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from checkpoint_files import random_tensors, safetensors_bytes
from deltawire.checkpoint import Checkpoint, write_checkpoint, write_safetensors
from deltawire.errors import CorruptCheckpoint
from deltawire.tensors import ITEMSIZE, TensorView, as_view

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")


def test_safetensors_loads_what_we_write(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    tensors = random_tensors()
    write_safetensors(
        path,
        {
            name: TensorView.from_bytes(dtype, tuple(shape), data)
            for name, (dtype, shape, data) in tensors.items()
        },
        metadata={"format": "pt"},
    )
    loaded = safetensors_torch.load_file(path)
    assert set(loaded) == set(tensors)
    for name, (dtype, shape, data) in tensors.items():
        view = as_view(loaded[name], name)
        assert (view.dtype, list(view.shape)) == (dtype, shape)
        assert view.data.tobytes() == data


def test_we_read_what_safetensors_writes(tmp_path: Path) -> None:
    dtypes = [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.float8_e4m3fn]
    dtypes += [torch.float8_e5m2, torch.int8, torch.int64, torch.bool, torch.uint8]
    generator = torch.Generator().manual_seed(0)
    tensors = {
        str(dtype): (torch.rand(3, 5, generator=generator) * 2).to(dtype) for dtype in dtypes
    }
    tensors["scalar"] = torch.tensor(-0.0)
    tensors["empty"] = torch.empty(0, 7)
    path = tmp_path / "policy.safetensors"
    safetensors_torch.save_file(tensors, path, metadata={"a": "b"})
    with Checkpoint.open(path) as checkpoint:
        assert checkpoint.metadata == {"a": "b"}
        assert set(checkpoint) == set(tensors)
        for name, tensor in tensors.items():
            ours, theirs = checkpoint[name], as_view(tensor, name)
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
            assert np.array_equal(ours.data, theirs.data)


def test_a_sharded_model_of_transformers_goes_both_ways(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    theirs = tmp_path / "theirs"
    model.save_pretrained(theirs, max_shard_size="20KB")
    with Checkpoint.open(theirs) as checkpoint:
        assert len(checkpoint.files) > 1
        state = model.state_dict()
        assert set(checkpoint) == set(state)
        for name, view in checkpoint.items():
            assert np.array_equal(view.data, as_view(state[name], name).data)
        write_checkpoint(tmp_path / "ours", checkpoint, extra_files=theirs, max_shard_bytes=30_000)
        checkpoint.copy_to(tmp_path / "copy")
    for directory in ("ours", "copy"):
        again = transformers.LlamaForCausalLM.from_pretrained(
            tmp_path / directory, dtype=torch.bfloat16
        )
        for name, tensor in again.state_dict().items():
            assert torch.equal(tensor.view(torch.int16), state[name].view(torch.int16)), name


def test_we_accept_and_refuse_the_same_files_as_safetensors(tmp_path: Path) -> None:
    """Over headers with a byte or two changed; where both accept, the tensors are equal."""
    safetensors = pytest.importorskip("safetensors")
    tensors = {
        "a": ("F32", [2, 2], bytes(range(16))),
        "b": ("U8", [3], b"xyz"),
        "e": ("F16", [0], b""),
    }
    whole = safetensors_bytes(tensors, {"format": "pt"})
    header_end = 8 + int.from_bytes(whole[:8], "little")
    pieces = [*(bytes([c]) for c in b'019"{}, []:.eFUI'), b"", b"\xc3", b"\xc3\xa9", b"\x00"]
    path = tmp_path / "mutated.safetensors"
    rng = random.Random(0)
    outcomes = {True: 0, False: 0}
    for _ in range(2000):
        content = bytearray(whole)
        for _ in range(rng.randint(1, 2)):
            # Not the first brace: the specification demands it, the package skips white space.
            at, length = rng.randrange(9, header_end), rng.randint(0, 2)
            content[at : at + length] = rng.choice(pieces)
        content[:8] = (header_end + len(content) - len(whole) - 8).to_bytes(8, "little")
        path.write_bytes(content)
        try:
            with Checkpoint.open(path) as checkpoint:
                ours = {
                    name: (view.dtype, list(view.shape), view.data.tobytes())
                    for name, view in checkpoint.items()
                }
        except CorruptCheckpoint:
            ours = None
        try:
            theirs = {
                name: (value["dtype"], value["shape"], bytes(value["data"]))
                for name, value in safetensors.deserialize(bytes(content))
            }
        except safetensors.SafetensorError:
            theirs = None
        if theirs is not None and any(dtype not in ITEMSIZE for dtype, _, _ in theirs.values()):
            theirs = None  # a dtype narrower than a byte
        assert ours == theirs, bytes(content)
        outcomes[ours is not None] += 1
    assert min(outcomes.values()) > 50
