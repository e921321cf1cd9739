"""Peak anonymous memory does not follow the model's size.

Each measurement is a process of its own that samples its anonymous resident memory (the kernel's
RssAnon) while the call runs; file-backed pages of memory maps are not in it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from conftest import ROOT
from deltawire.checkpoint import write_safetensors
from deltawire.tensors import TensorView

LIMIT = 256 << 20
ROWS, COLS = 16 << 10, 16 << 10  # 2^28 elements, 512 MiB as BF16

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="RssAnon is a Linux field")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One 512 MiB tensor; again with one element in a hundred changed, and with all changed."""
    folder = tmp_path_factory.mktemp("checkpoints")
    rng = np.random.default_rng(1)
    # A repeated block: the codecs do not look across tiles, and it is quick to make.
    block = rng.standard_normal((1 << 10, COLS), np.float32).view(np.uint32) >> 16
    bits = np.tile(block.astype(np.uint16), (ROWS >> 10, 1))
    paths = {name: folder / f"{name}.safetensors" for name in ("base", "few", "all")}
    view = TensorView.from_bytes("BF16", (ROWS, COLS), bits)
    write_safetensors(paths["base"], {"w": view})
    flat = bits.reshape(-1)
    places = np.cumsum(rng.integers(1, 190, flat.size // 100))
    flat[places] += 1
    write_safetensors(paths["few"], {"w": view})
    flat[places] -= 1
    flat += 257
    write_safetensors(paths["all"], {"w": view})
    return paths


@pytest.mark.parametrize("profile", ["compact", "fast", "overwrite"])
@pytest.mark.parametrize("new", ["few", "all"])
def test_bounded(checkpoints: dict[str, Path], tmp_path: Path, new: str, profile: str) -> None:
    """Encoding and applying stay within the limit with two threads, also if all elements change."""
    base, new_path = checkpoints["base"], checkpoints[new]
    command = [
        sys.executable,
        ROOT / "benches" / "memory.py",
        base,
        new_path,
        tmp_path,
        profile,
        "2",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    peaks = json.loads(done.stdout)
    assert peaks["encode"] <= LIMIT
    assert peaks["apply"] <= LIMIT


def test_sampler_sees_a_short_allocation() -> None:
    """The measurement itself: memory that is held for a few milliseconds counts."""
    code = """
import time
import numpy as np
from measure import PeakAnonymous
with PeakAnonymous() as peak:
    block = np.ones(96 << 20, np.uint8)
    time.sleep(0.05)
    del block
print(peak.extra)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT / "benches"
    )
    assert done.returncode == 0, done.stderr
    assert 96 << 20 <= int(done.stdout) + (1 << 20) < 128 << 20


def test_detection_keeps_no_copy() -> None:
    """Finding and proving what a step changed takes 64 MiB beside the changes, at most."""
    command = [sys.executable, ROOT / "benches" / "detect.py", "--memory", "adamw"]
    # Masters, moments and served weights have 448 MiB.
    done = subprocess.run([*command, "--elements", str(1 << 25)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    peaks = json.loads(done.stdout)
    assert peaks["changed"] > 100_000
    # Positions, flags and two values; twice while they are merged.
    limit = (64 << 20) + 26 * peaks["changed"]
    for name in ("made", "step", "collect"):
        assert peaks[name] <= limit, peaks
