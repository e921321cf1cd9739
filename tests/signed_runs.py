"""Signed boards, and what an attacker who can write to them might do."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deltawire as dw
from board_runs import Arrays, advance, copied, holds, manifest_path, model, same, zeros

#: Fixed keys, so that runs are the same every time.
TRAINER = bytes(range(32))
MALLORY = bytes(range(32, 64))


def key(name: str, seed: bytes) -> dw.SigningKey:
    """The key of a seed."""
    from deltawire import _native

    return dw.SigningKey(_native.SigningKey.from_seed(name, bytearray(seed)))


def trainer() -> dw.SigningKey:
    """The publisher's key."""
    return key("trainer", TRAINER)


def publish_signed(
    board: dw.Board,
    signer: dw.SigningKey | None,
    first: int,
    last: int,
    *,
    run: str = "test",
    seed: int = 0,
) -> None:
    """Versions ``first`` to ``last``; version 0 as an anchor, all others as deltas.

    Args:
        seed: another history for every other number.
    """
    arrays = history(first - 1, seed) if first else {}
    with board.publisher(run=run, key=signer) as publisher:
        for version in range(first, last + 1):
            if version == 0:
                arrays = history(0, seed)
                publisher.publish_anchor(0, arrays)
                continue
            base = copied(arrays)
            advance(arrays, version + 1000 * seed)
            publisher.publish(version, base=base, new=arrays)


def history(version: int, seed: int) -> Arrays:
    """The arrays of a version in the history of a seed."""
    arrays = model(0)
    for step in range(1, version + 1):
        advance(arrays, step + 1000 * seed)
    return arrays


def anchor_path(root: Path, version: int) -> Path:
    """Where a local board keeps an anchor record."""
    return root / "manifests" / f"{version:020d}.anchor.json"


def make_board(root: Path, signer: dw.SigningKey | None, *, run: str = "test") -> Path:
    """Versions 0, an anchor, to 4; version 3 has an anchor record that version 4 names."""
    board = dw.Board(root, create=True)
    publish_signed(board, signer, 0, 3, run=run)
    with board.publisher(run=run, key=signer) as publisher:
        publisher.publish_anchor(3, model(3))
    publish_signed(board, signer, 4, 4, run=run)
    return root


def unsigned(record: bytes) -> bytes:
    """A record without its signature."""
    value = json.loads(record)
    del value["signature"]
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def signed_by(record: bytes, signer: dw.SigningKey, kind: str) -> bytes:
    """An unsigned record as its writer would have stored it, signed by another key."""
    from board_runs import fresh_memory

    board = dw.Board(fresh_memory(), create=True)
    value: dict[str, Any] = json.loads(record)
    version = value["version"]
    if kind == "anchor":
        board.store.commit_anchor(version, record, signer.native)
        stored = board.store.read(f"manifests/{version:020d}.anchor.json", 1 << 20)
    else:
        raise AssertionError(kind)
    assert stored is not None
    return stored


@dataclass
class Readers:
    """A follower and a directory that hold version 2, before an attack."""

    root: Path
    trust: dw.Trust | None
    follower: dw.Follower
    directory: Path

    @classmethod
    def of(cls, root: Path, scratch: Path, trust: dw.Trust | None) -> Readers:
        """Bring both to version 2."""
        follower = dw.Board(root, trust=trust).follower(zeros(model()))
        follower.advance(2)
        directory = scratch / "pulled"
        dw.Board(root, trust=trust).pull(directory, version=2)
        return cls(root, trust, follower, directory)

    def unchanged(self) -> bool:
        """Whether both still hold version 2."""
        return (
            self.follower.version == 2
            and same(self.follower.target, model(2))
            and holds(self.directory, 2)
        )

    def go_on(self) -> None:
        """Both reach version 4 of a sound board."""
        self.follower.advance()
        assert same(self.follower.target, model(4))
        dw.Board(self.root, trust=self.trust).pull(self.directory)
        assert holds(self.directory, 4)


def replaced(root: Path, other: Path, version: int) -> None:
    """Put another board's version in the place of this one's: manifest and objects."""
    shutil.copy(manifest_path(other, version), manifest_path(root, version))
    for kind in ("objects", "anchors"):
        source = other / kind / str(version)
        if source.exists():
            shutil.copytree(source, root / kind / str(version), dirs_exist_ok=True)
