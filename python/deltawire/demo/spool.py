"""The directory through which the demo's processes talk: JSON files, each written once.

    completions/<version>-<follower>.json   what a follower sampled, and with which version
    followers/<version>-<follower>.json     how a follower got to the version, and its digest
    published/<version>.json                what the trainer published
    scores/<version>.json                   the rewards of a version's completions
    done/<process>.json                     the last word of a process

A file appears whole (temporary name, then rename) and is never changed, so a reader needs
no lock.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from .errors import DemoError

POLL_SECONDS = 0.05


class Spool:
    """Reads and writes the files above, all waits with a deadline."""

    KINDS = ("completions", "followers", "published", "scores", "done")

    def __init__(self, root: Path, *, timeout: float) -> None:
        self.root = root
        self.timeout = timeout

    def create(self) -> None:
        for kind in self.KINDS:
            (self.root / kind).mkdir(parents=True, exist_ok=True)

    def path(self, kind: str, name: str) -> Path:
        return self.root / kind / f"{name}.json"

    def put(self, kind: str, name: str, value: dict[str, Any]) -> None:
        """Write one file, whole or not at all. The directory is private to this run."""
        path = self.path(kind, name)
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(json.dumps(value), encoding="utf-8")
        temporary.replace(path)

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """One file's object, or None while it is not there. Raises DemoError if malformed."""
        path = self.path(kind, name)
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise DemoError(
                f"not a JSON file ({error}); run the demo again", path=str(path)
            ) from error
        if not isinstance(value, dict):
            raise DemoError("not a JSON object; run the demo again", path=str(path))
        return value

    def wait(self, kind: str, name: str, *, what: str) -> dict[str, Any]:
        """One file's object, once it is there. Raises DemoError after ``timeout`` seconds."""
        deadline = time.monotonic() + self.timeout
        while (value := self.get(kind, name)) is None:
            if time.monotonic() > deadline:
                raise DemoError(f"no {what} within {self.timeout:g} s")
            time.sleep(POLL_SECONDS)
        return value
