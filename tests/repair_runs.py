"""Boards with anchors of many blocks and deltas of many tiles, small enough for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import deltawire as dw
from board_runs import copied, fresh_memory
from deltawire.board import anchor as anchors
from deltawire.board import attempt as attempts
from kept import Kept, LocalKept, S3Kept
from store_servers import S3

Words = dict[str, npt.NDArray[np.uint16]]

#: Bytes of a block in these tests, and of a tile's elements.
BLOCK, TILE = 16 << 10, 8 << 10
TILING = dw.Tiling(max_elements=TILE // 2, min_elements=1)
#: One whose tiles are whole rows, one whose tiles are columns, one small.
SHAPES = {
    "q_proj.weight": (1024, 512),
    "down_proj.weight": (512, 1024),
    "norm.weight": (512,),
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small blocks, and hashes of records for every delta."""
    monkeypatch.setattr(anchors, "BLOCK_BYTES", BLOCK)
    monkeypatch.setattr(attempts, "WORTH_BYTES", 1)


def words(version: int = 0) -> Words:
    """The tensors of a version."""
    rng = np.random.default_rng(0)
    tensors = {name: rng.integers(0, 2**16, shape, np.uint16) for name, shape in SHAPES.items()}
    for number in range(1, version + 1):
        tensors = step(tensors, number)
    return tensors


def step(old: Words, seed: int) -> Words:
    """Every tile changes."""
    rng = np.random.default_rng(seed)
    return {
        name: array + (rng.random(array.shape) < 0.1).astype(np.uint16)
        for name, array in old.items()
    }


def made(kind: str, tmp_path: Path, s3: S3) -> tuple[dw.Board, Kept | None]:
    """An empty board of a kind, and what holds it."""
    if kind == "s3":
        board = s3.board()
        return board, S3Kept(s3, board)
    if kind == "memory":
        return dw.Board(fresh_memory(), create=True), None
    return dw.Board(tmp_path / "board", create=True), LocalKept(tmp_path / "board")


def fill(
    board: dw.Board, last: int, *, added: Sequence[int] = (), key: Any = None, shard: int = 5 << 30
) -> None:
    """Versions 0, an anchor, to ``last``; those in ``added`` get an anchor afterwards."""
    tensors = words()
    with board.publisher(key=key) as publisher:
        publisher.publish_anchor(0, tensors, max_shard_bytes=shard)
        for version in range(1, last + 1):
            new = step(tensors, version)
            publisher.publish(version, base=tensors, new=new, tiling=TILING)
            tensors = new
            if version in added:
                publisher.publish_anchor(version, tensors, max_shard_bytes=shard)


def part(tensors: Words, rank: int, ranks: int = 4) -> dict[str, dw.Shard]:
    """Rows of the one, columns of the other, and the whole of what is small."""
    q, down, norm = tensors.values()
    rows = slice(rank * 1024 // ranks, (rank + 1) * 1024 // ranks)
    return {
        "q_proj.weight": dw.Shard(q[rows].copy(), q.shape, (rows.start, 0)),
        "down_proj.weight": dw.Shard(down[:, rows].copy(), down.shape, (0, rows.start)),
        "norm.weight": dw.Shard(norm.copy(), norm.shape, (0,)),
    }


def equal(found: Any, wanted: Any) -> bool:
    """Whether tensors, or shards, have the same bits."""
    plain = [
        {name: getattr(tensor, "tensor", tensor) for name, tensor in tensors.items()}
        for tensors in (found, wanted)
    ]
    return all(np.array_equal(plain[0][name], plain[1][name]) for name in plain[1])


class Counted:
    """A store that counts the bytes that are read from the anchor directories and objects."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.bytes: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _count(self, path: str, count: int) -> None:
        top = path.split("/")[0]
        self.bytes[top] = self.bytes.get(top, 0) + count

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Counted."""
        self._count(path, end - start)
        return bytes(self._store.read_range(path, start, end))

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Counted."""
        self._count(path, sum(end - start for start, end in ranges))
        return list(self._store.read_ranges(path, ranges))

    def fetch(self, path: str, length: int, blake3: str, sink: Any = None) -> None:
        """Counted."""
        self._count(path, length)
        self._store.fetch(path, length, blake3, sink)


def counted(board: dw.Board) -> tuple[dw.Board, Counted]:
    """The board, with its store counted."""
    store = Counted(board.store)
    board._store = store  # type: ignore[assignment]
    return board, store


DENSE = sum(array.nbytes for array in words().values())


@pytest.fixture(params=["memory", "path", "s3"])
def both(request: pytest.FixtureRequest, tmp_path: Path, s3: S3) -> tuple[dw.Board, Kept | None]:
    """A board with versions 0, an anchor, to 4, and what holds it."""
    board, kept = made(request.param, tmp_path, s3)
    fill(board, 4)
    return board, kept


@pytest.fixture
def local(tmp_path: Path) -> tuple[dw.Board, Path]:
    """As ``both``, in a directory."""
    board = dw.Board(tmp_path / "board", create=True)
    fill(board, 4)
    return board, tmp_path / "board"


def harm(target: Words) -> int:
    """Alter elements of four tiles; the number of tiles."""
    target["q_proj.weight"][3, 5] ^= 1
    target["q_proj.weight"][700:702, 100:200] = 0
    target["down_proj.weight"][40, 1000] += 7
    target["down_proj.weight"][41, 130] ^= 0x8000
    return 4


def refused(
    board: dw.Board, target: Words, error: type[dw.DeltawireError], match: str, **settings: Any
) -> dw.DeltawireError:
    """A follower at version 2 fails, and its target is as before."""
    before = copied(target)
    follower = board.follower(target, version=2, **settings)
    with pytest.raises(error, match=match) as caught:
        follower.advance()
    assert equal(target, before)
    assert follower.version == 2
    return caught.value
