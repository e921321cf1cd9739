"""Anchors and skip records made in the background while deltas are published.

Nothing is asked of the trainer: a thread folds the board's own anchor and deltas into a directory
on disk, with the code of ``pull``, whose result is proven to be the version's bits, and publishes
that directory as an anchor, or encodes the way from it. The directory is kept, so that each costs
the deltas since the last, one upload, and one checkpoint of disk space.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ..errors import BrokenChain
from .manifest import Manifest
from .plan import find_anchor
from .skip import FoldSettings, find_way, publish_skip
from .trust import SigningKey
from .worker import Worker, WorkerSettings

if TYPE_CHECKING:
    from .board import Board

Source = Callable[[int], str | os.PathLike[str]]
Upload = Callable[[int, str | os.PathLike[str], int, Callable[[int], object]], object]

#: Most spans of skip records; see the Rust core.
_MAX_SPANS = 16


@dataclass(frozen=True)
class AnchorSettings:
    """When and how anchors are made; see :meth:`deltawire.Board.publisher`."""

    every: int | None = None
    outweighed: bool = False
    source: Source | None = None
    scratch: str | os.PathLike[str] | None = None
    threads: int = 1
    close: Literal["wait", "cancel"] = "wait"

    def __post_init__(self) -> None:
        if self.every is not None and self.every < 1:
            raise ValueError(f"anchor_every={self.every}: give a number of versions")
        if self.close not in ("wait", "cancel"):
            raise ValueError(f"anchor_close={self.close!r}: wait or cancel")

    @property
    def wanted(self) -> bool:
        """Whether any anchor is to be made."""
        return self.every is not None or self.outweighed

    @property
    def worker(self) -> WorkerSettings:
        """Those of the thread."""
        return WorkerSettings(self.scratch, self.threads, self.close)


@dataclass(frozen=True)
class SkipSettings:
    """When and how skip records are made; see :meth:`deltawire.Board.publisher`."""

    spans: Sequence[int] = ()
    scratch: str | os.PathLike[str] | None = None
    threads: int = 1
    close: Literal["wait", "cancel"] = "wait"

    def __post_init__(self) -> None:
        if len(set(self.spans)) != len(self.spans) or any(span < 2 for span in self.spans):
            raise ValueError(f"skip_spans={self.spans}: give different numbers of versions, from 2")
        if len(self.spans) > _MAX_SPANS:
            raise ValueError(f"skip_spans: {len(self.spans)}, more than {_MAX_SPANS}")
        if self.close not in ("wait", "cancel"):
            raise ValueError(f"skip_close={self.close!r}: wait or cancel")

    def at(self, version: int) -> tuple[int, ...]:
        """The spans that end at a version: it is a multiple of them."""
        return tuple(sorted(s for s in self.spans if version >= s and version % s == 0))

    @property
    def worker(self) -> WorkerSettings:
        """Those of each thread."""
        return WorkerSettings(self.scratch, self.threads, self.close)


class BackgroundAnchors(Worker):
    """A thread that makes anchors of versions that were just published."""

    what = "anchor"
    scratch_option = "anchor_scratch"

    def __init__(self, board: Board, settings: AnchorSettings, upload: Upload) -> None:
        """As for every worker.

        Args:
            upload: publishes a checkpoint as the anchor of a version that exists; gets the
                version, the path, the number of threads and a progress callback.
        """
        super().__init__(board, settings.worker)
        self._when = settings
        self._upload = upload
        # Newest anchor known, and the deltas after it.
        self._last: int | None = None
        self._bytes = 0
        self._counted: int | None = None

    def _wants(self, manifest: Manifest) -> bool:
        return True

    def _oldest(self, manifest: Manifest) -> int:
        return manifest.version

    def _is_done(self, manifest: Manifest) -> bool:
        own = self._board.find_manifest(manifest.version)
        return own is not None and find_anchor(self._board, own, own) is not None

    def _work(self, manifest: Manifest) -> None:
        if not self._is_due(manifest):
            return
        version = manifest.version
        own = self._board.manifest(version)
        if find_anchor(self._board, own, own) is None:
            path = self._checkpoint(version)
            self._upload(version, path, self._when.threads, self._progress)
        self._last, self._bytes, self._counted = version, 0, version

    def _is_due(self, manifest: Manifest) -> bool:
        version = manifest.version
        anchors = [self._last]
        if manifest.anchor is not None:
            anchors.append(version)
        if manifest.last_anchor is not None:
            anchors.append(manifest.last_anchor.version)
        last = max((anchor for anchor in anchors if anchor is not None), default=None)
        if last is None:
            return True
        if last != self._last:
            self._last, self._bytes, self._counted = last, 0, last
        if self._when.every is not None and version - last >= self._when.every:
            return True
        return self._when.outweighed and self._chain_bytes(version) > manifest.dense_bytes

    def _chain_bytes(self, version: int) -> int:
        """Bytes of the deltas after the last anchor; only new manifests are read."""
        assert self._counted is not None
        if version > self._counted:
            try:
                manifests = self._board.records.chain(self._counted + 1, version, None)
            except BrokenChain:
                manifests = []  # collected: there is a newer anchor than the one that was known
            self._bytes += sum(manifest.bytes for manifest in manifests)
            self._counted = version
        return self._bytes

    def _checkpoint(self, version: int) -> str | os.PathLike[str]:
        if self._when.source is not None:
            return self._when.source(version)
        return self._folded(version)


class BackgroundSkips(Worker):
    """A thread that makes the skip records of one span."""

    what = "skip record"
    scratch_option = "skip_scratch"

    def __init__(
        self, board: Board, settings: SkipSettings, span: int, key: SigningKey | None
    ) -> None:
        """As for every worker.

        Args:
            span: the number of versions that each folds.
            key: signs them.
        """
        super().__init__(board, settings.worker)
        self._span = span
        self._key = key

    def _wants(self, manifest: Manifest) -> bool:
        return self._span in manifest.skips

    def _oldest(self, manifest: Manifest) -> int:
        return manifest.version - self._span

    def _is_done(self, manifest: Manifest) -> bool:
        return self._board.records.has_skip(self._oldest(manifest), manifest.version)

    def _work(self, manifest: Manifest) -> None:
        base = self._oldest(manifest)
        if not self._board.store.has_version(base):
            return  # the board begins after it
        way = find_way(self._board, base, manifest.version)
        if way is None:
            return  # a version on the way has no delta
        how = FoldSettings(
            weights=lambda: self._folded(base),
            threads=self._settings.threads,
            scratch=self._settings.scratch,
            progress=self._progress,
        )
        publish_skip(self._board, way, how, self._key)
