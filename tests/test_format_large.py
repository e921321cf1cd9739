"""Sizes past 2^31 and 2^32 elements, and the memory that a diff holds. All of it is sparse."""

from __future__ import annotations

import io
import json
import mmap
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import deltawire as dw
from strategies import WIDTHS, digest, reference

GIB = 1 << 30


def lazy(count: int) -> np.ndarray:
    """``count`` zero bytes that take memory only where they are written."""
    return np.frombuffer(mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE), np.uint8)


def constant(dtype: str, rows: int, cols: int, row: bytes) -> dw.TensorView:
    """``rows`` equal rows in the memory of one."""
    one = np.frombuffer(row, np.uint8)
    data = np.lib.stride_tricks.as_strided(one, (rows, cols * WIDTHS[dtype]), (0, 1))
    return dw.TensorView(dtype, (rows, cols), data)


@pytest.mark.parametrize("profile", ["compact", "overwrite"])
def test_changes_past_two_to_the_31(profile: str) -> None:
    """2^31 + 12,288 elements, changed at both ends, around 2^31, and in between."""
    rows, cols = (1 << 19) + 3, 4096
    count = rows * cols
    base = constant("I8", rows, cols, bytes(cols))
    new = lazy(count)
    where = [0, 1, 4095, 4096, GIB, 2 * GIB - 1, 2 * GIB, 2 * GIB + 1, count - 2, count - 1]
    for place in where:
        new[place] = 1 + place % 100
    view = dw.TensorView("I8", (rows, cols), new.reshape(rows, cols))
    sink = io.BytesIO()
    stats = dw.diff({"w": base}, {"w": view}, sink, profile=profile)
    assert (stats.elements, stats.changed) == (count, len(where))
    positions = [
        int(position)
        for piece in dw.StreamReader(sink.getvalue())
        for position in piece.positions()
    ]
    assert sorted(positions) == where
    model = reference.decode(sink.getvalue())
    assert sum(len(piece.positions) for piece in model.chunks) == len(where)
    target = lazy(count)
    dw.apply(sink.getvalue(), {"w": dw.TensorView("I8", (rows, cols), target.reshape(rows, cols))})
    for place in where:
        assert target[place] == 1 + place % 100
    # The states differ by the changed words alone, so the reference can judge 2 GiB by ten words.
    k = digest.key("w", "I8", (rows, cols))
    words = np.array(sorted({place // 8 for place in where}), np.uint64)
    before = digest.mix(k[0], k[1], words, np.zeros(len(words), np.uint64))
    after = digest.mix(k[0], k[1], words, new.view(np.uint64)[words.astype(np.int64)])
    moved = [
        (lane + sum(b.tolist()) - sum(a.tolist())) % digest.P
        for lane, a, b in zip(digest.loaded(stats.base_state), before, after, strict=True)
    ]
    assert stats.result_state == digest.stored((moved[0], moved[1]))


@pytest.mark.parametrize("count", [(1 << 31) + 5000, (1 << 33) + 77])
def test_positions_of_long_vectors(count: int, tmp_path: Path) -> None:
    """Rank 1, past 2^31 and 2^33: the positions that a caller names are those that change."""
    where = np.array(
        [0, (1 << 31) - 1, 1 << 31, (1 << 31) + 1, *([1 << 32, (1 << 33) + 1] * (count > 1 << 33)),
         count - 1], np.int64,
    )  # fmt: skip
    values = np.arange(1, len(where) + 1, dtype=np.int8)
    sink = io.BytesIO()
    with dw.StreamWriter(sink, {"v": ("I8", (count,))}, profile="overwrite") as writer:
        writer.add_changes("v", dw.Changes(where, values))
    assert reference.decode(sink.getvalue()).header.tensors[0].elements == count
    path = tmp_path / "v.bin"
    with path.open("wb+") as file:
        file.truncate(count)
        target = np.memmap(file, np.uint8, "r+", shape=(count,))
        view = dw.TensorView("I8", (count,), target.reshape(count, 1))
        got = []
        for piece in dw.StreamReader(sink.getvalue()):
            got += piece.positions().tolist()
            piece.apply_({"v": view})
        assert got == where.tolist()
        assert target[where].tolist() == values.tolist()
        assert int(target[(1 << 31) + 2]) == 0
        assert path.stat().st_blocks * 512 < 64 << 20


def test_rows_beyond_32_bits_of_elements() -> None:
    """2^36 elements of four equal rows' memory: only the arithmetic is large."""
    shape = (1 << 20, 1 << 16)
    where = np.array([0, (1 << 32) + 5, (1 << 35) + 70_000, (1 << 36) - 1], np.int64)
    sink = io.BytesIO()
    with dw.StreamWriter(sink, {"w": ("U8", shape)}, profile="overwrite") as writer:
        writer.add_changes("w", dw.Changes(where, np.array([1, 2, 3, 4], np.uint8)))
    got = [int(x) for piece in dw.StreamReader(sink.getvalue()) for x in piece.positions()]
    assert got == where.tolist()
    info = dw.inspect(sink.getvalue())
    assert (info.elements, info.changed) == (1 << 36, 4)
    model = reference.decode(sink.getvalue())
    entry = model.header.tensors[0]
    flat = []
    for piece in model.chunks:
        row0, _, col0, col1 = entry.box(piece.tile)
        flat += [
            (row0 + x // (col1 - col0)) * entry.cols + col0 + x % (col1 - col0)
            for x in piece.positions
        ]
    assert flat == where.tolist()


def sparse_checkpoint(path: Path, layers: int, rows: int, cols: int) -> int:
    """A safetensors file of zeros that takes no disk; returns where its data begins."""
    table, at = {}, 0
    for layer in range(layers):
        size = rows * cols * 2
        table[f"layers.{layer}.weight"] = {
            "dtype": "BF16", "shape": [rows, cols], "data_offsets": [at, at + size],
        }  # fmt: skip
        at += size
    head = json.dumps(table).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        file.truncate(8 + len(head) + at)
    return 8 + len(head)


WATCHED = """
import json, sys, threading
import deltawire as dw

def anonymous():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))

peak, stop = [0], threading.Event()

def watch():
    while not stop.wait(0.002):
        peak[0] = max(peak[0], anonymous())

thread = threading.Thread(target=watch)
thread.start()
verb, *args, profile = sys.argv[1:]
calls = [0]
def progress(done):
    calls[0] += 1
    peak[0] = max(peak[0], anonymous())
try:
    if verb == "diff":
        stats = dw.diff(*args, profile=profile, threads=2, progress=progress)
    else:
        with dw.Checkpoint.open(args[1], writable=True) as target:
            stats = dw.apply(args[0], target, threads=2, progress=progress)
finally:
    stop.set()
    thread.join()
print(json.dumps({"changed": stats.changed, "peak_kib": peak[0], "calls": calls[0]}))
"""


ROWS, COLS = 8192, 4096


def changed_pair(folder: Path, layers: int) -> tuple[Path, Path, int]:
    """Two checkpoints of 64 MiB a layer, the first eight Mi elements changed and a few others."""
    base, new = folder / "base.safetensors", folder / "new.safetensors"
    start = sparse_checkpoint(base, layers, ROWS, COLS)
    sparse_checkpoint(new, layers, ROWS, COLS)
    dense = np.random.default_rng(1).integers(1, 1 << 16, 8 << 20, np.uint16)
    changed = dense.size
    with new.open("rb+") as file:
        file.seek(start)
        file.write(dense.tobytes())
        for layer in range(1, layers):
            for place in range(0, ROWS * COLS, 100_003):
                file.seek(start + (layer * ROWS * COLS + place) * 2)
                file.write(b"\x80\x3f")
                changed += 1
    return base, new, changed


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, int]:
    """Two of 1.5 GiB."""
    return changed_pair(tmp_path_factory.mktemp("large"), 24)


def watched(*args: object) -> dict[str, int]:
    """Runs a verb in a process of its own and returns what `WATCHED` prints."""
    run = subprocess.run(
        [sys.executable, "-c", WATCHED, *map(str, args)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    told: dict[str, int] = json.loads(run.stdout)
    return told


@pytest.mark.parametrize("profile", ["compact", "fast", "overwrite"])
def test_diff_holds_at_most_256_mib(
    profile: str, checkpoints: tuple[Path, Path, int], tmp_path: Path
) -> None:
    base, new, changed = checkpoints
    told = watched("diff", base, new, tmp_path / "out.dw", profile)
    assert told["changed"] == changed
    assert told["calls"] > 24
    assert told["peak_kib"] <= 256 * 1024


def test_apply_holds_at_most_256_mib(tmp_path: Path) -> None:
    base, new, changed = changed_pair(tmp_path, 8)
    dw.diff(base, new, tmp_path / "out.dw")
    told = watched("apply", tmp_path / "out.dw", base, "compact")
    assert told["changed"] == changed
    assert told["peak_kib"] <= 256 * 1024
    with dw.Checkpoint.open(base) as a, dw.Checkpoint.open(new) as b:
        for name, view in a.items():
            assert np.array_equal(view.data, b[name].data), name


@pytest.mark.parametrize("other", ["spoiled", "replaced"])
def test_a_large_delta_that_changes_between_stage_and_commit(other: str, tmp_path: Path) -> None:
    """More changes than a stage keeps (160 of 128 MiB): torn at worst, never wrong; the sound delta
    completes it."""
    count = 16 << 20
    path = tmp_path / "x.dw"
    new = np.random.default_rng(3).integers(-(1 << 63), 1 << 63, count, np.int64)
    shape = (16, 1 << 20)
    old = {"w": np.zeros(shape, np.int64)}
    dw.diff(old, {"w": new.reshape(shape)}, path, profile="fast")
    sound = path.read_bytes()
    chunks = list(dw.StreamReader(path))
    held = {"w": np.zeros(shape, np.int64)}
    staged = dw.stage(path, held)
    if other == "spoiled":
        spoiled = bytearray(sound)
        # Which chunks the stage keeps depends on threads; those that it reads again are spoiled.
        for chunk in chunks:
            spoiled[chunk.offset + chunk.nbytes // 2] ^= 0x40
        path.write_bytes(spoiled)
    else:
        sink = io.BytesIO()
        dw.diff(old, {"w": ~new.reshape(shape)}, sink, profile="fast")
        path.write_bytes(sink.getvalue())  # in place: a rename would leave the staged file open
    with pytest.raises((dw.TargetTorn, dw.CorruptDelta)):
        staged.commit()
    for chunk in chunks:
        (row, row_end), (col, col_end) = chunk.box
        box = np.s_[row:row_end, col:col_end]
        assert not held["w"][box].any() or np.array_equal(held["w"][box], new.reshape(shape)[box])
    dw.apply(sound, held)
    assert np.array_equal(held["w"].reshape(-1), new)
