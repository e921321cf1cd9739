"""What a reader remembers of a board, so that it notices one that goes back or stands still."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoint.durable import new_file, read_small
from ..errors import RolledBack, StaleBoard, TargetError
from ..types import Record
from .hop import Held
from .manifest import Manifest
from .records import Introduced

if TYPE_CHECKING:
    from .board import Board

_MAX_MEMORY = 1 << 20


@dataclass(frozen=True)
class Stale(Record):
    """A board whose newest version is older than wanted.

    Attributes:
        version: the newest.
        time: of its commit, as its publisher says, in seconds since 1970.
        age, max_age: seconds.
    """

    version: int
    time: float
    age: float
    max_age: float


OnStale = Callable[[Stale], object]


@dataclass
class Watch:
    """The newest version that a reader has seen, and how old the newest may be.

    Attributes:
        board: that is watched.
        memory: file in which the newest version seen is kept; None: kept in this object only.
        max_age: seconds; None: any age.
        on_stale: called instead of raising; the reader then goes on with what there is.
        seen: the newest version seen.
    """

    board: Board
    memory: str | os.PathLike[str] | None = None
    max_age: float | None = None
    on_stale: OnStale | None = None
    seen: Held | None = None
    _time: float | None = field(default=None, repr=False)
    _written: Held | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Read the memory.

        Raises:
            TargetError: the file is no such memory.
            StoreError: it cannot be read.
        """
        if self.max_age is not None and not self.max_age > 0:
            raise ValueError("max_age is a number of seconds above 0")
        if self.memory is not None:
            self._read(Path(self.memory))

    def recall(self, held: Held | None, keys: list[Introduced]) -> None:
        """Add what is remembered elsewhere.

        Raises:
            RolledBack: it contradicts what is remembered already.
        """
        self.board.records.remember(keys)
        if held is None or held.digest is None:
            return
        seen = self.seen
        if seen is not None and seen.version == held.version and seen.digest != held.digest:
            raise RolledBack(
                f"two manifests of this version are remembered, {seen.digest} and {held.digest}: "
                "the memory is that of another board; name another one, or remove it if you trust "
                "this board",
                version=held.version,
                path=self.board.url,
            )
        if seen is None or seen.version < held.version:
            self.seen = held

    def see(self, manifest: Manifest, *, newest: bool) -> None:
        """Remember a version whose chain was checked, durably if there is a memory.

        Args:
            newest: whether it is the board's newest, which must not be too old.

        Raises:
            StaleBoard: it is, and nobody is called for that.
            StoreError: the memory cannot be written.
        """
        if self.seen is None or self.seen.version <= manifest.version:
            self._time = manifest.time
            self.seen = Held(manifest.version, manifest.digest, manifest.result_state)
        if self.memory is not None and self.seen != self._written:
            self._write(Path(self.memory))
        if newest:
            self.check_age()

    def check_age(self) -> None:
        """Report a newest version that is too old.

        Raises:
            StaleBoard: it is, and nobody is called for that.
        """
        if self.max_age is None or self._time is None or self.seen is None:
            return
        age = time.time() - self._time
        if age <= self.max_age:
            return
        if self.on_stale is not None:
            self.on_stale(Stale(self.seen.version, self._time, age, self.max_age))
            return
        raise StaleBoard(
            f"the newest version is {age:.0f} s old, more than the {self.max_age:g} s allowed: the "
            "publisher stands still, or somebody holds newer versions back; nothing was changed. "
            "Look after the publisher, or allow more",
            version=self.seen.version,
            path=self.board.url,
        )

    def _read(self, path: Path) -> None:
        raw = read_small(path, _MAX_MEMORY)
        if raw is None:
            return
        try:
            value = json.loads(raw)
            if value["format"] != 1:
                raise ValueError("another format")
            held = held_from_json(value["seen"])
            keys = keys_from_json(value["keys"])
        except (ValueError, KeyError, TypeError) as error:
            raise TargetError(
                f"not a memory that this version of deltawire wrote ({error}); name another file, "
                "or remove it if you trust the board",
                path=str(path),
            ) from None
        self.recall(held, keys)
        self._written = self.seen

    def _write(self, path: Path) -> None:
        value = {
            "format": 1,
            "seen": held_to_json(self.seen),
            "keys": self.board.records.introduced,
        }
        with new_file(path) as file:
            file.write(json.dumps(value, indent=2).encode() + b"\n")
        self._written = self.seen


def held_to_json(held: Held | None) -> dict[str, Any] | None:
    """As the state of a pulled directory and a memory have it."""
    if held is None:
        return None
    state = None if held.state is None else held.state.hex()
    return {"version": held.version, "manifest": held.digest, "state": state}


def held_from_json(value: Any) -> Held | None:
    """The inverse; ValueError, KeyError or TypeError for anything else."""
    if value is None:
        return None
    version, digest, state = value["version"], value["manifest"], value["state"]
    if type(version) is not int or version < 0:
        raise ValueError("no version")
    if not isinstance(digest, str) or len(bytes.fromhex(digest)) != 32:
        raise ValueError("no manifest digest")
    return Held(version, digest, None if state is None else bytes.fromhex(state))


def keys_from_json(value: Any) -> list[Introduced]:
    """Introduced keys; ValueError or TypeError for anything else."""
    keys = []
    for name, key, first, by in value:
        if not (isinstance(name, str) and isinstance(by, str) and type(first) is int and first > 0):
            raise ValueError("no key")
        if len(bytes.fromhex(key)) != 32:
            raise ValueError("no key")
        keys.append((name, key, first, by))
    return keys
