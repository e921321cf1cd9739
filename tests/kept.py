"""What a board's store holds, past the board: to damage it, and to see that nothing changed."""

from __future__ import annotations

import re
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Protocol

import deltawire as dw
from board_runs import contents, publish
from store_servers import S3, SIGNED


class Kept(Protocol):
    """The objects of one board."""

    def names(self) -> list[str]:
        """All names, sorted."""

    def read(self, name: str) -> bytes:
        """The bytes of one."""

    def write(self, name: str, data: bytes) -> None:
        """Replace or add one."""

    def remove(self, name: str) -> None:
        """Remove one that is there."""


class LocalKept:
    """In a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(contents(self.root))

    def read(self, name: str) -> bytes:
        """The bytes of one."""
        return (self.root / name).read_bytes()

    def write(self, name: str, data: bytes) -> None:
        """Replace or add one."""
        (self.root / name).write_bytes(data)

    def remove(self, name: str) -> None:
        """Remove one that is there."""
        (self.root / name).unlink()


class S3Kept:
    """In a bucket, asked without this project's code."""

    def __init__(self, s3: S3, board: dw.Board) -> None:
        self._bucket, self._prefix = board.url.removeprefix("s3://").split("/", 1)
        self._s3 = s3

    def names(self) -> list[str]:
        """All names, sorted."""
        url = f"{self._s3.endpoint}/{self._bucket}?list-type=2&max-keys=1000"
        request = urllib.request.Request(url, headers=SIGNED)
        with urllib.request.urlopen(request, timeout=30) as answer:
            keys = re.findall(r"<Key>([^<]*)</Key>", answer.read().decode())
        return sorted(key.removeprefix(f"{self._prefix}/") for key in keys)

    def _ask(self, method: str, name: str, data: bytes | None = None) -> bytes:
        path = urllib.parse.quote(f"/{self._bucket}/{self._prefix}/{name}")
        request = urllib.request.Request(self._s3.endpoint + path, data, SIGNED, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return bytes(answer.read())

    def read(self, name: str) -> bytes:
        """The bytes of one."""
        return self._ask("GET", name)

    def write(self, name: str, data: bytes) -> None:
        """Replace or add one."""
        self._ask("PUT", name, data)

    def remove(self, name: str) -> None:
        """Remove one that is there."""
        self._ask("DELETE", name)


def manifest_name(version: int) -> str:
    """Name of a manifest."""
    return f"manifests/{version:020d}.json"


def delta_name(kept: Kept, version: int) -> str:
    """Name of the delta of a version."""
    (name,) = [name for name in kept.names() if name.startswith(f"objects/{version}/")]
    return name


def flipped(data: bytes, place: int) -> bytes:
    """With one bit altered."""
    altered = bytearray(data)
    altered[place] ^= 1
    return bytes(altered)


def reopened(board: dw.Board) -> dw.Board:
    """The same board, with nothing remembered."""
    return dw.Board(board.url, options=board.options)


def published(kind: str, tmp_path: Path, s3: S3, last: int) -> tuple[dw.Board, Kept]:
    """A board of this kind with versions 0, an anchor, to ``last``, and what holds it."""
    if kind == "s3":
        board = s3.board()
        kept: Kept = S3Kept(s3, board)
    else:
        board = dw.Board(tmp_path / "board", create=True)
        kept = LocalKept(tmp_path / "board")
    publish(board, last)
    return board, kept
