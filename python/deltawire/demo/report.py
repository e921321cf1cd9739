"""What the demo shows: a line per version, the table, the last line, the JSON object."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """One version: what the trainer published, how the followers got it, how it scored.

    Times are in seconds; for two followers the slower one's. Version 0 is the anchor, a
    whole checkpoint, without a delta.
    """

    version: int
    elements: int
    changed: int
    dense_bytes: int
    bytes: int
    encode: float
    publish: float
    pull: float
    stage: float
    commit: float
    prove: float
    reward: float
    reward_std: float
    state: str
    followers: tuple[str, ...]

    @classmethod
    def of(
        cls,
        published: dict[str, Any],
        followers: Sequence[dict[str, Any]],
        scores: dict[str, Any],
    ) -> Row:
        """From the spool's records of one version."""

        def slowest(name: str) -> float:
            return max(float(f.get(name, 0.0)) for f in followers)

        state = published["result_state"]
        return cls(
            version=published["version"],
            elements=published["elements"],
            changed=published["changed"],
            dense_bytes=published["dense_bytes"],
            bytes=published["bytes"],
            encode=published["encode_seconds"],
            publish=published["publish_seconds"],
            pull=slowest("pull_seconds"),
            stage=slowest("stage_seconds"),
            commit=slowest("commit_seconds"),
            prove=slowest("prove_seconds"),
            reward=scores["reward"],
            reward_std=scores["reward_std"],
            state=state,
            followers=tuple("ok" if f["state"] == state else "differs" for f in followers),
        )

    @property
    def density(self) -> float:
        """Share of elements that changed."""
        return self.changed / self.elements

    @property
    def bits_per_change(self) -> float:
        """nan where nothing changed."""
        return 8 * self.bytes / self.changed if self.changed else math.nan

    @property
    def ratio(self) -> float:
        """How many times smaller than the dense checkpoint."""
        return self.dense_bytes / self.bytes

    def as_dict(self) -> dict[str, Any]:
        """Plain values for ``--json``."""
        bits = self.bits_per_change
        return {
            "version": self.version,
            "anchor": self.version == 0,
            "elements": self.elements,
            "changed": self.changed,
            "density": self.density,
            "bytes": self.bytes,
            "dense_bytes": self.dense_bytes,
            "bits_per_change": None if math.isnan(bits) else bits,
            "ratio": self.ratio,
            "encode_seconds": self.encode,
            "publish_seconds": self.publish,
            "pull_seconds": self.pull,
            "stage_seconds": self.stage,
            "commit_seconds": self.commit,
            "prove_seconds": self.prove,
            "reward": self.reward,
            "reward_std": self.reward_std,
            "state": self.state,
            "followers": list(self.followers),
        }


def line(row: Row, last: int, seconds: float) -> str:
    """One version in one line."""
    what = f"anchor {size(row.bytes)}"
    if row.version:
        what = (
            f"{100 * row.density:.2f} % changed, {size(row.bytes)}, "
            f"{row.bits_per_change:.2f} bits/change"
        )
    return (
        f"version {row.version:>{len(str(last))}}/{last}: {what}, "
        f"followers {' '.join(row.followers)}, reward {row.reward:.3f} [{seconds:.0f} s]"
    )


HEADINGS = (
    "version",
    "changed",
    "density",
    "bytes",
    "bits/chg",
    "ratio",
    "encode",
    "publish",
    "pull",
    "stage",
    "commit",
    "reward",
    "followers",
)


def table(rows: Sequence[Row]) -> str:
    """All versions, right-aligned columns; times in milliseconds."""
    cells = [list(HEADINGS)]
    for row in rows:
        delta = row.version > 0
        cells.append(
            [
                str(row.version),
                f"{row.changed:,}" if delta else "anchor",
                f"{100 * row.density:.3f} %" if delta else "-",
                f"{row.bytes:,}",
                f"{row.bits_per_change:.2f}" if delta else "-",
                f"{row.ratio:.1f}" if delta else "-",
                milliseconds(row.encode),
                milliseconds(row.publish),
                milliseconds(row.pull),
                milliseconds(row.stage) if delta else "-",
                milliseconds(row.commit) if delta else "-",
                f"{row.reward:.3f}",
                " ".join(row.followers),
            ]
        )
    widths = [max(len(r[c]) for r in cells) for c in range(len(HEADINGS))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(r, widths, strict=True)).rstrip()
        for r in cells
    )


@dataclass(frozen=True)
class Summary:
    """The whole run. ``peak_memory``: bytes, the sum of the processes' peaks."""

    model: str
    rows: Sequence[Row]
    seconds: float
    peak_memory: int
    board: str | None

    @property
    def deltas(self) -> Sequence[Row]:
        return [row for row in self.rows if row.version > 0]

    @property
    def bytes(self) -> int:
        return sum(row.bytes for row in self.deltas)

    @property
    def dense_bytes(self) -> int:
        return sum(row.dense_bytes for row in self.deltas)

    @property
    def bits_per_change(self) -> float:
        """Over all versions; nan where nothing changed."""
        changed = sum(row.changed for row in self.deltas)
        return 8 * self.bytes / changed if changed else math.nan

    def rewards(self) -> tuple[float, float]:
        """Mean reward of the first and of the last versions, three each where there are six."""
        count = min(3, len(self.rows) // 2)
        rewards = [row.reward for row in self.rows]
        return statistics.fmean(rewards[:count]), statistics.fmean(rewards[-count:])

    def last_line(self) -> str:
        """The line that begins with ``demo ok``."""
        first, last = self.rewards()
        return (
            f"demo ok: {len(self.deltas)} versions, {size(self.bytes)} instead of "
            f"{size(self.dense_bytes)} dense ({self.dense_bytes / self.bytes:.0f}x less), "
            f"{self.bits_per_change:.2f} bits per change, both followers bit-identical to the "
            f"trainer, reward {first:.2f} -> {last:.2f}, {self.seconds:.0f} s, "
            f"at most {self.peak_memory / 2**30:.1f} GiB of memory"
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values for ``--json``."""
        bits = self.bits_per_change
        first, last = self.rewards()
        return {
            "ok": True,
            "model": self.model,
            "versions": [row.as_dict() for row in self.rows],
            "bytes": self.bytes,
            "dense_bytes": self.dense_bytes,
            "bits_per_change": None if math.isnan(bits) else bits,
            "ratio": self.dense_bytes / self.bytes,
            "reward_first": first,
            "reward_last": last,
            "bit_identical": True,
            "seconds": self.seconds,
            "peak_memory_bytes": self.peak_memory,
            "board": self.board,
        }


def size(count: float) -> str:
    """Bytes in decimal units."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms"
