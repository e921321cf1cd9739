"""Sharded trainers: ranks that publish together what each of them holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deltawire as dw
from conftest import ROOT
from deltawire.detect import AdamWBoundaryDetector
from detect_runs import backward, made, served

VERSIONS = 3


def start(config: dict[str, Any], rank: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            sys.executable,
            str(ROOT / "tests" / "rank_runs.py"),
            json.dumps({**config, "rank": rank}),
        ],
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(tmp_path: Path, world: int, layout: str, **more: Any) -> tuple[dw.Board, list[Any]]:
    """Train on ``world`` processes; the board, and what each of them told."""
    board = dw.Board(str(tmp_path / "board"), create=True)
    model = made(**more.get("sizes", {}))
    with board.publisher(run="ranks") as publisher:
        publisher.publish_anchor(0, {n: held(v) for n, v in served(model).items()})
    config = {
        "world": world,
        "layout": layout,
        "detector": "adamw",
        "versions": VERSIONS,
        "work": str(tmp_path),
        "board": str(tmp_path / "board"),
        **more,
    }
    ranks = [start(config, rank) for rank in range(world)]
    outputs = [process.communicate(timeout=240) for process in ranks]
    if "dies" not in config:
        failed = [
            err[-2000:] for (_, err), one in zip(outputs, ranks, strict=True) if one.returncode
        ]
        assert not failed, "\n".join(failed)
    told = [
        json.loads(out.splitlines()[-1]) if one.returncode == 0 else err
        for (out, err), one in zip(outputs, ranks, strict=True)
    ]
    return board, told


def held(values: np.ndarray) -> dw.TensorView:
    return dw.TensorView.from_bytes("BF16", tuple(values.shape), values)


def reference(**sizes: int) -> tuple[dw.Board, Any]:
    """The same training in one process: its board, and the weights at the end."""
    from board_runs import fresh_memory

    model = made(**sizes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.1)
    board = dw.Board(fresh_memory(), create=True)
    with AdamWBoundaryDetector(model, optimizer) as detector, board.publisher() as publisher:
        publisher.publish_anchor(0, dict(detector.served()))
        for number in range(1, VERSIONS + 1):
            backward(model, number)
            optimizer.step()
            publisher.publish(detector=detector)
    return board, served(model)


def followed(board: dw.Board, like: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    target = {name: np.zeros_like(values) for name, values in like.items()}
    follower = board.follower({n: held(t) for n, t in target.items()})
    follower.advance()
    return target


@pytest.mark.parametrize(
    ("layout", "world"),
    [("fsdp", 2), ("fsdp", 4), ("hsdp", 4), ("fsdp+tp", 4), ("ddp", 2), ("zero", 2)],
)
def test_manifests_are_those_of_one_process(layout: str, world: int, tmp_path: Path) -> None:
    board, told = run(tmp_path, world, layout)
    alone, weights = reference()
    total = sum(values.size for values in weights.values())
    # Each element is published once.
    assert sum(one["elements"] for one in told) == total
    assert max(one["elements"] for one in told) < total
    for one in told:
        assert [t["wrong"] + t["open"] for t in one["told"]] == [0] * VERSIONS
    for version in range(1, VERSIONS + 1):
        ours, theirs = board.manifest(version), alone.manifest(version)
        for field in (
            "version",
            "elements",
            "changed",
            "dense_bytes",
            "result_state",
            "base_state",
        ):
            assert getattr(ours, field) == getattr(theirs, field), (version, field)
        assert len(ours.objects) == world
    for name, values in followed(board, weights).items():
        assert np.array_equal(values, weights[name]), name


@pytest.mark.parametrize("detector", ["adamw", "stepwise"])
def test_slices_of_a_flat_buffer(detector: str, tmp_path: Path) -> None:
    """Cut anywhere, also within rows and tiles: the same versions as with one slice."""
    # Tiles of some rows, so that slices end within them.
    how = {"detector": detector, "tiling": {"max_elements": 4096, "min_elements": 512}}
    boards = {}
    for world in (1, 3):
        directory = tmp_path / str(world)
        directory.mkdir()
        boards[world], told = run(directory, world, "flat", **how)
        assert sum(one["elements"] for one in told) == 131_521
        for one in told:
            assert [t["wrong"] + t["open"] for t in one["told"]] == [0] * VERSIONS
    for version in range(1, VERSIONS + 1):
        one, three = (boards[world].manifest(version) for world in (1, 3))
        assert one.changed == three.changed > 1000
        assert one.result_state == three.result_state
        assert len(three.objects) == 3


def test_uneven_shards(tmp_path: Path) -> None:
    """Rows that do not divide by the number of ranks; ranks without any."""
    sizes = {"vocabulary": 401, "width": 48, "layers": 1}
    board, told = run(tmp_path, 4, "fsdp", sizes=sizes)
    alone, weights = reference(**sizes)
    assert board.manifest(VERSIONS).result_state == alone.manifest(VERSIONS).result_state
    assert sum(one["elements"] for one in told) == sum(v.size for v in weights.values())


def test_a_rank_that_fails_fails_the_version_on_all(tmp_path: Path) -> None:
    board, told = run(tmp_path, 2, "fsdp", detector="stepwise", fails=[1, 2])
    for one in told:
        error = one["told"][1]
        assert error["error"] == "StoreError"
        assert "on rank 1" in error["message"]
        # Asked again, it is published with nothing lost.
        assert [t["version"] for t in one["told"] if "version" in t] == [1, 2, 3]
    alone, _ = reference()
    assert board.manifest(3).result_state == alone.manifest(3).result_state


def test_a_rank_that_dies_publishes_nothing(tmp_path: Path) -> None:
    board, told = run(tmp_path, 2, "fsdp", dies=[1, 2], timeout=20)
    assert board.head() == 1
    assert "RuntimeError" in told[0] or "DistBackendError" in told[0]
    # What the other one uploaded is removed again.
    assert not [
        path for path, _ in board.store.list_all("objects") if path.startswith("objects/2/")
    ]


def test_ranks_need_a_group() -> None:
    from board_runs import fresh_memory
    from deltawire.detect import publish_together

    model = made()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    board = dw.Board(fresh_memory(), create=True)
    with (
        AdamWBoundaryDetector(model, optimizer) as detector,
        pytest.raises(ValueError, match="ranks="),
    ):
        publish_together(detector, board, None)


def test_the_example(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
            ROOT / "examples" / "fsdp2_publish.py",
            tmp_path / "board",
        ],
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert "holds the trainer's bits" in done.stdout, done.stderr[-3000:]
    assert dw.Board(str(tmp_path / "board")).head() == 3
