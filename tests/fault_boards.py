"""Boards of every kind with a plan of faults, and what must hold whatever it does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import deltawire as dw
from board_runs import Arrays, fresh_memory, same, zeros
from deltawire.testing import FaultPlan

#: Opens the same board again: with a plan, or without faults.
Open = Callable[..., dw.Board]

KINDS = ["memory", "path", "s3"]


def opener(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Open:
    """Make an empty board of a kind, and say how to open it."""
    options = None
    if kind == "memory":
        url = fresh_memory()
    elif kind == "path":
        url = str(tmp_path / "board")
    else:
        s3 = request.getfixturevalue("s3")
        options = s3.options()
        url = f"s3://{s3.bucket()}/runs/a"
    dw.Board(url, create=True, options=options)

    def again(faults: FaultPlan | None = None, trust: dw.Trust | None = None) -> dw.Board:
        return dw.Board(url, options=options, faults=faults, trust=trust)

    return again


def check_board(board: dw.Board, versions: dict[int, Arrays]) -> None:
    """Exactly these versions can be read, each bit for bit, and their numbers have no gaps."""
    log = board.log()
    assert [manifest.version for manifest in reversed(log)] == sorted(versions)
    assert board.head() == max(versions, default=None)
    for version, arrays in versions.items():
        read = zeros(arrays)
        board.follower(read).advance(version)
        assert same(read, arrays), version
