"""What the test modules share: places, recorded policy steps and Hypothesis profiles."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from cli_runs import Cli
    from deltawire import Board, TensorView
    from store_servers import S3

ROOT = Path(__file__).resolve().parents[1]
RECORDINGS = ROOT.parent / "shared" / "data"

# Test servers are on this machine, whatever proxy leads out of it.
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1,localhost"

# Machines that run tests are slow and shared: no example is judged by its time.
settings.register_profile(
    "deltawire", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("fuzz", settings.get_profile("deltawire"), max_examples=5000)
settings.load_profile("deltawire")


@dataclass(frozen=True)
class Recording:
    """Consecutive versions of a policy that was fine-tuned with AdamW; see ``versions``."""

    directory: Path

    @property
    def base(self) -> Path:
        """Version 0, a safetensors file with BF16 tensors."""
        return self.directory / "base.safetensors"

    def versions(self) -> Iterator[dict[str, TensorView]]:
        """Version 0, 1, ... in memory, each in arrays of its own."""
        from deltawire.checkpoint import Checkpoint

        with Checkpoint.open(self.base) as checkpoint:
            current = {
                name: (view.shape, view.data.reshape(-1).view(np.uint16).copy())
                for name, view in checkpoint.items()
            }
        yield _views(current)
        for step in range(1, len(list(self.directory.glob("changes_*.npz"))) + 1):
            with np.load(self.directory / f"changes_{step}.npz") as changes:
                for name, (_, values) in current.items():
                    if f"{name}|i" in changes:
                        values[changes[f"{name}|i"]] = changes[f"{name}|v"]
            yield _views(current)


def _views(
    tensors: dict[str, tuple[tuple[int, ...], npt.NDArray[np.uint16]]],
) -> dict[str, TensorView]:
    from deltawire.tensors import TensorView

    return {
        name: TensorView.from_bytes("BF16", shape, values.copy())
        for name, (shape, values) in tensors.items()
    }


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give ``recording`` every recorded run; without the data set such a test is skipped."""
    if "recording" in metafunc.fixturenames:
        runs = sorted(path.parent for path in RECORDINGS.glob("*/base.safetensors"))
        metafunc.parametrize(
            "recording",
            [Recording(run) for run in runs]
            or [pytest.param(None, marks=pytest.mark.skip("no recordings beside the repository"))],
            ids=[run.name for run in runs] or None,
        )


@pytest.fixture
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture
def rng() -> np.random.Generator:
    """Numbers that are the same in every run."""
    return np.random.default_rng(0x5EED)


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    """An S3 server in a process of its own."""
    pytest.importorskip("moto")
    from store_servers import s3_server

    with s3_server() as server:
        yield server


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """The command line, in this process."""
    from cli_runs import Cli

    return Cli(capsys)


@pytest.fixture(params=["path", "memory", "s3"])
def board(request: pytest.FixtureRequest, tmp_path: Path) -> Board:
    """An empty board on each kind of store."""
    from board_runs import fresh_memory
    from deltawire import Board

    if request.param == "s3":
        server: S3 = request.getfixturevalue("s3")
        return server.board()
    url = fresh_memory() if request.param == "memory" else str(tmp_path / "board")
    return Board(url, create=True)


@pytest.fixture(params=["path", "s3"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Board, str]:
    """An empty board that other processes can open, and its store's endpoint, if it has one."""
    from deltawire import Board

    if request.param == "s3":
        server: S3 = request.getfixturevalue("s3")
        return server.board(), server.endpoint
    return Board(tmp_path / "board", create=True), ""
