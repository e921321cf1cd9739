"""Collection of what nobody needs any more."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .. import _native
from ..types import Record

if TYPE_CHECKING:
    from .board import Board

#: Newest versions that stay unless the caller says otherwise.
KEEP = 100
#: Leftovers of attempts younger than this may belong to an upload in progress, seconds.
SAFETY_AGE = 24 * 3600.0
#: For how long an ended lease is respected, for clocks that disagree, seconds.
GRACE = 300.0


@dataclass(frozen=True)
class CollectStats(Record):
    """What a collection did, or, with ``dry_run``, would do.

    Attributes:
        head: newest version; None for an empty board, which is left alone.
        boundary: oldest version that can be relied on from now on; it has an anchor.
        boundary_before: the same, before.
        first, until: versions removed: from ``first`` up to ``until``, exclusive.
        versions: their number.
        limit: why not more: ``keep``, ``age``, ``lease``, or ``anchor`` where no complete anchor
            lies nearer to what might go.
        objects, bytes: deltas and anchor files removed with the versions.
        anchors: anchor directories among them.
        epochs: old writer epochs removed.
        leases: that were respected.
        expired: leases removed because they ended long ago.
        leftovers, leftover_bytes: of failed attempts, removed by a sweep.
        dry_run: whether nothing was changed.
        seconds: that it took.
    """

    _derived = ("versions",)

    head: int | None
    boundary: int | None
    boundary_before: int | None
    first: int
    until: int
    limit: Literal["keep", "age", "lease", "anchor"] | None
    objects: int
    bytes: int
    anchors: int
    epochs: int
    leases: int
    expired: int
    leftovers: int
    leftover_bytes: int
    dry_run: bool
    seconds: float

    @property
    def versions(self) -> int:
        """Number of versions removed."""
        return self.until - self.first


def collect(
    board: Board,
    *,
    keep: int = KEEP,
    older_than: float = 0,
    safety_age: float = SAFETY_AGE,
    grace: float = GRACE,
    sweep: bool = False,
    dry_run: bool = False,
) -> CollectStats:
    """See :meth:`deltawire.Board.collect`."""
    if keep < 1:
        raise ValueError(f"keep={keep}: at least the newest version stays")
    for name, value in [("older_than", older_than), ("safety_age", safety_age), ("grace", grace)]:
        if not 0 <= value < 1e11:
            raise ValueError(f"{name}={value} is no number of seconds")
    started = time.perf_counter()
    figures = _native.board_collect(
        board.store,
        keep=keep,
        older_than_ms=round(older_than * 1000),
        safety_ms=round(safety_age * 1000),
        grace_ms=round(grace * 1000),
        sweep=sweep,
        dry_run=dry_run,
        now_ms=time.time_ns() // 1_000_000,
        write_id=secrets.token_hex(16),
        trust=board.records.ring,
    )
    seconds = time.perf_counter() - started
    if figures is None:
        return CollectStats(None, None, None, 0, 0, None, 0, 0, 0, 0, 0, 0, 0, 0, dry_run, seconds)
    before = figures.pop("old_boundary")
    return CollectStats(boundary_before=before, dry_run=dry_run, seconds=seconds, **figures)
