"""What a board holds, for people: versions, anchors, chains and readers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import BrokenChain
from ..types import Record
from .lease import Lease
from .manifest import AnchorFiles, Manifest
from .plan import find_anchor

if TYPE_CHECKING:
    from .board import Board

#: Manifests read at once.
_BATCH = 64


@dataclass(frozen=True)
class Entry:
    """A version.

    Attributes:
        manifest: its manifest.
        anchor: its checkpoint, committed with it or added later.
        chain_bytes: of the deltas from the last anchor at or before it; 0 at an anchor, None where
            that anchor is not on the board.
    """

    manifest: Manifest
    anchor: AnchorFiles | None
    chain_bytes: int | None


@dataclass(frozen=True)
class Reader(Record):
    """A lease, and how far behind the newest version its reader is.

    Attributes:
        lease: the lease.
        lag_versions: None before its first version.
        lag_seconds: by which its version is older than the newest, by the publisher's clock; None
            where its version is gone.
    """

    lease: Lease
    lag_versions: int | None
    lag_seconds: float | None


@dataclass(frozen=True)
class History:
    """The newest part of a board.

    Attributes:
        head: newest version; None for an empty board.
        boundary: as :meth:`deltawire.Board.boundary`; None also where the store has no listings.
        entries: newest first.
        more: whether there are older versions.
        readers: the one that is farthest behind first; None where the store has no listings.
    """

    head: int | None
    boundary: int | None
    entries: list[Entry]
    more: bool
    readers: list[Reader] | None


def read_history(board: Board, limit: int | None) -> History:
    """Look at a board.

    Args:
        limit: versions at most; the chain of the oldest is read beyond it.

    Raises:
        UntrustedDelta, UnsupportedDelta, LimitExceeded: a record that cannot be used, or that
            no trusted key signed.
        StoreError: the store failed.
    """
    head = board.head()
    boundary: int | None = None
    anchored: set[int] | None = None
    if board.store.lists:
        boundary = board.boundary()
        anchored = set(board.anchor_versions())
    shown: list[tuple[Manifest, AnchorFiles | None]] = []
    below: list[tuple[Manifest, AnchorFiles | None]] = []
    walk = _descend(board, head)
    for manifest in itertools.islice(walk, limit):
        shown.append((manifest, _anchor_of(board, manifest, anchored)))
    more = False
    # As far as the anchor that the last chain shown begins with.
    if shown and shown[-1][1] is None:
        for manifest in walk:
            more = True
            below.append((manifest, _anchor_of(board, manifest, anchored)))
            if below[-1][1] is not None:
                break
    else:
        more = next(walk, None) is not None
    chain: int | None = None
    entries = []
    for number, (manifest, anchor) in enumerate(reversed(shown + below)):
        if anchor is not None:
            chain = 0
        elif chain is not None:
            chain += manifest.bytes
        if number >= len(below):
            entries.append(Entry(manifest, anchor, chain))
    entries.reverse()
    readers = _readers(board, head, entries) if board.store.lists else None
    return History(head, boundary, entries, more, readers)


def _descend(board: Board, head: int | None) -> Iterator[Manifest]:
    """Manifests from the head down to the oldest that is there."""
    version = head
    while version is not None and version >= 0:
        first = max(0, version - _BATCH + 1)
        try:
            manifests = board.records.chain(first, version, None)
        except BrokenChain:
            # The batch reaches below the oldest.
            while version >= first:
                found = board.find_manifest(version)
                if found is None:
                    return
                yield found
                version -= 1
            continue
        yield from reversed(manifests)
        version = first - 1


def _anchor_of(board: Board, manifest: Manifest, anchored: set[int] | None) -> AnchorFiles | None:
    """The anchor of a version; ``anchored`` are those that may have one, None if any may."""
    if manifest.anchor is not None or (anchored is not None and manifest.version not in anchored):
        return manifest.anchor
    return find_anchor(board, manifest, manifest)


def _readers(board: Board, head: int | None, entries: list[Entry]) -> list[Reader]:
    times = {entry.manifest.version: entry.manifest.time for entry in entries}
    readers = []
    for lease in board.readers():
        version = lease.version
        behind = seconds = None
        if version is not None and head is not None:
            behind = head - version
            if version not in times:
                found = board.find_manifest(version)
                if found is not None:
                    times[version] = found.time
            if version in times and head in times:
                seconds = max(0.0, times[head] - times[version])
        readers.append(Reader(lease, behind, seconds))
    readers.sort(key=lambda r: (r.lease.version is not None, r.lease.version or 0, r.lease.name))
    return readers
