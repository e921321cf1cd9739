"""Publishing versions: deltas and anchors, each committed by one create-only record."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ..digest import combine, state_digest
from ..errors import (
    BrokenChain,
    StoreError,
    VersionConflict,
    WrongBase,
)
from ..types import Profile, Tiling
from .anchor import Source
from .attempt import Attempt, PublishStats, attempted, uploaded_delta
from .background import AnchorSettings, BackgroundAnchors, BackgroundSkips, SkipSettings
from .changes import Tensors, source_of
from .manifest import (
    AnchorFiles,
    AnchorRecord,
    Manifest,
    PartRef,
    VersionRef,
)
from .parts import PublishTicket, UploadedPart
from .pending import PendingVersion
from .succession import next_version, require_last, with_delta, without_anchor
from .transfer import Progress
from .trust import SigningKey
from .vouching import check_uploaded, judging, last_anchor
from .worker import Worker

if TYPE_CHECKING:
    from ..detect import Detector
    from .board import Board

#: Tensor bytes in one file of an anchor that is made from tensors.
_SHARD_BYTES = 5 << 30


class Publisher:
    """The one writer of a board. Use as a context manager.

    Opening takes the next writer epoch, which fences every publisher opened before.
    """

    def __init__(
        self,
        board: Board,
        *,
        run: str | None = None,
        key: SigningKey | None = None,
        anchors: AnchorSettings | None = None,
        skips: SkipSettings | None = None,
    ) -> None:
        """Use :meth:`deltawire.Board.publisher`."""
        self._board = board
        self._key = key
        self._store = board.store
        self._run = run
        self._epoch = self._store.acquire_epoch(secrets.token_hex(16), _now_ms())
        self._anchor: VersionRef | None = None
        self._last: VersionRef | None = None
        self._skips = SkipSettings() if skips is None else skips
        source = judging(board, key)
        self._workers: list[Worker] = [
            BackgroundSkips(source, self._skips, span, key) for span in self._skips.spans
        ]
        if anchors is not None and anchors.wanted:
            self._workers.append(BackgroundAnchors(source, anchors, self._upload_anchor))
        #: Versions begun; what is not committed is given up at the end.
        self._pending: list[PendingVersion] = []
        self._closed = False

    @property
    def epoch(self) -> int:
        """This publisher's epoch."""
        return self._epoch

    @property
    def closed(self) -> bool:
        """Whether it refuses to publish any more."""
        return self._closed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            # What went wrong matters more than an anchor, and must not wait for it.
            self._end(cancel=True)

    def close(self) -> None:
        """Refuse to publish any more; wait for work in the background, or cancel it.

        Raises:
            DeltawireError: work in the background failed; everything else was published.
        """
        self._end()
        self._check_workers()

    def _check_workers(self) -> None:
        for worker in self._workers:
            worker.check()

    def _end(self, *, cancel: bool | None = None) -> None:
        for pending in self._pending:
            pending.abandon()
        if not self._closed:
            for worker in self._workers:
                worker.close(cancel=cancel)
        self._closed = True

    def publish(
        self,
        version: int | None = None,
        *,
        base: Tensors | None = None,
        new: Tensors | None = None,
        detector: Detector | None = None,
        profile: Profile = "compact",
        tiling: Tiling | None = None,
        meta: Mapping[str, str] | None = None,
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> PublishStats:
        """Publish the delta from ``base`` to ``new``, or what a detector found, as the next one.

        On any error no version was committed, what was uploaded is removed as far as the store
        allows, and the head is as before.

        Args:
            version: must be the head's plus one; None: that.
            base: the head's bits: a path, an open ``Checkpoint``, or name -> tensor.
            new: the same tensors, changed.
            detector: instead of both: what it found since the head (:mod:`deltawire.detect`).
            profile: ``compact``, ``fast`` or ``overwrite``.
            tiling: how tensors are cut; followers' shards end where tiles do.
            meta: free text, kept in the manifest and in the delta.
            threads: by default all cores.
            progress: called with the number of dense bytes just done.

        Raises:
            WrongVersion: ``version`` does not follow the head, or the board is empty.
            WrongBase: ``base``, or the detector's base, does not hold the head's bits.
            VersionConflict: another publisher was opened, or committed this version first.
            LayoutMismatch: names, shapes or dtypes disagree.
            StoreError: the store failed.
            TypeError: neither ``base`` and ``new`` nor a detector, or both.
            ValueError: a tiling other than the detector's.
            DeltawireError: work in the background failed since the last call, which is told
                once and before anything is done.
        """
        source = source_of(base, new, detector)
        head, version = self._following(version)
        with attempted(self._store, version) as attempt:
            path = self._store.object_path(version, 0, attempt.write_id)
            upload = self._store.upload(path)
            attempt.opened(upload, path)
            started = time.perf_counter()
            try:
                stats = source.write(
                    upload,
                    base_version=head.version,
                    version=version,
                    run=self._run_name(head),
                    profile=profile,
                    tiling=tiling,
                    threads=threads,
                    meta=dict(meta or {}),
                    base_state=head.result_state,
                    progress=progress,
                )
            except WrongBase as error:
                if detector is not None:
                    raise
                raise WrongBase(
                    f"the base does not have the head's state {head.result_state.hex()}; pull the "
                    "head and publish against it",
                    version=head.version,
                    path=self._board.url,
                ) from error
            encoded = time.perf_counter()
            if stats.result_state is None:
                raise WrongBase("the delta's states are not known; give the whole base")
            records = self._store.records_path(version, 0, attempt.write_id)
            delta = uploaded_delta(attempt, upload, records, stats.record_hashes)
            self._commit(
                attempt,
                self._manifest(
                    attempt,
                    head,
                    base_state=stats.base_state,
                    result_state=stats.result_state,
                    objects=(delta,),
                    elements=stats.elements,
                    changed=stats.changed,
                    dense_bytes=stats.dense_bytes,
                    meta=meta,
                ),
            )
        source.published()
        return PublishStats(
            version,
            delta.bytes,
            stats.changed,
            stats.elements,
            stats.dense_bytes,
            encoded - started,
            time.perf_counter() - encoded,
            stats.result_state,
            resent=source.resent,
        )

    def begin(
        self,
        version: int | None = None,
        *,
        parts: int,
        profile: Profile = "compact",
        tiling: Tiling | None = None,
        meta: Mapping[str, str] | None = None,
    ) -> PendingVersion:
        """Begin a version that several ranks publish together, each its part of the delta.

            with publisher.begin(parts=ranks) as pending:
                # on every rank, with the ticket: board.upload_part(ticket, rank, base=, new=)
                pending.commit(uploaded)

        Args:
            version, profile, tiling, meta: as for :meth:`publish`.
            parts: number of ranks that upload one, 1 to 4096.

        Raises:
            WrongVersion, VersionConflict, StoreError, DeltawireError: as :meth:`publish`.
        """
        head, version = self._following(version)
        ticket = PublishTicket(
            version,
            head.version,
            head.digest,
            head.result_state,
            secrets.token_hex(16),
            self._epoch,
            parts,
            self._run_name(head),
            profile,
            tiling or Tiling(),
            dict(meta or {}),
        )
        pending = PendingVersion(
            self._board, head, ticket, partial(self._commit_parts, head, ticket.meta)
        )
        self._pending = [one for one in self._pending if one.open] + [pending]
        return pending

    def publish_anchor(
        self,
        version: int | None,
        checkpoint: str | os.PathLike[str] | Mapping[str, Any],
        *,
        extra_files: str | os.PathLike[str] | None = None,
        meta: Mapping[str, str] | None = None,
        threads: int | None = None,
        progress: Progress | None = None,
        max_shard_bytes: int = _SHARD_BYTES,
    ) -> PublishStats:
        """Publish a whole checkpoint, as an ordinary Hugging Face directory on the board.

        Commits the first version of an empty board (any number), or the version after the head
        without a delta (readers then load the anchor), or adds an anchor to a version that
        exists.

        Args:
            version: which of these; None: the next version, or 0 on an empty board.
            checkpoint: a path, an open ``Checkpoint`` (their files are copied as they are), or
                name -> tensor (written as safetensors files, a few MiB at a time).
            extra_files: directory whose configuration, tokenizer and code files are copied
                along; by default the checkpoint's own.
            meta: free text, kept in the manifest; not for a version that exists.
            progress: called with the number of bytes just uploaded.
            max_shard_bytes: tensor bytes in one file, for a mapping.

        Raises:
            WrongVersion: ``version`` is neither of these.
            WrongBase: the version exists and has other bits than ``checkpoint``.
            VersionConflict: another publisher was faster, or the version has an anchor already.
            StoreError: the store failed. Nothing was committed.
        """
        return self._publish_anchor(
            version, checkpoint, extra_files, meta, threads, progress, max_shard_bytes
        )

    def _upload_anchor(
        self, version: int, path: str | os.PathLike[str], threads: int, progress: Progress
    ) -> PublishStats:
        """The anchor of a version that exists, for the background."""
        return self._publish_anchor(version, path, None, None, threads, progress, _SHARD_BYTES)

    def _publish_anchor(
        self,
        version: int | None,
        checkpoint: str | os.PathLike[str] | Mapping[str, Any],
        extra_files: str | os.PathLike[str] | None,
        meta: Mapping[str, str] | None,
        threads: int | None,
        progress: Progress | None,
        max_shard_bytes: int,
    ) -> PublishStats:
        head = self._head()
        existing = None
        if head is not None and version is not None and version <= head.version:
            existing = without_anchor(self._board, version)
        elif head is not None:
            version = next_version(self._board, version, head)
        elif version is None:
            version = 0
        assert version is not None
        source = Source.of(checkpoint, extra_files)
        started = time.perf_counter()
        state = state_digest(source.tensors, threads=threads)
        elements = sum(view.elements for view in source.tensors.values())
        dense_bytes = sum(view.nbytes for view in source.tensors.values())
        encoded = time.perf_counter()
        if existing is not None and state != existing.result_state:
            raise WrongBase(
                f"the checkpoint's state is {state.hex()}, this version's is "
                f"{existing.result_state.hex()}; give the checkpoint of this very version",
                version=version,
                path=self._board.url,
            )
        with attempted(self._store, version) as attempt:
            directory = self._store.claim_anchor(version, self._epoch, attempt.write_id, _now_ms())
            files = source.upload(
                self._store,
                directory,
                progress=progress,
                max_shard_bytes=max_shard_bytes,
                opened=attempt.opened,
            )
            check_uploaded(self._board, existing, files)
            if existing is not None:
                self._add_anchor(attempt, existing, files)
            else:
                manifest = self._manifest(
                    attempt,
                    head,
                    base_state=None,
                    result_state=state,
                    anchor=files,
                    elements=elements,
                    changed=elements,
                    dense_bytes=dense_bytes,
                    meta=meta,
                )
                self._anchor = VersionRef(version, self._commit(attempt, manifest))
        return PublishStats(
            version,
            files.bytes,
            elements,
            elements,
            dense_bytes,
            encoded - started,
            time.perf_counter() - encoded,
            state,
            anchor=True,
        )

    def _commit_parts(
        self, begun: Manifest, meta: Mapping[str, str], attempt: Attempt, parts: list[UploadedPart]
    ) -> None:
        head = self._head()
        if head is None or head.ref != begun.ref:
            raise VersionConflict(
                f"the board has gone on since this version was begun, after {begun.version}; begin "
                "the next one",
                version=attempt.version,
                path=self._board.url,
            )
        manifest = self._manifest(
            attempt,
            head,
            base_state=head.result_state,
            result_state=combine(*(part.result_sum for part in parts)),
            objects=tuple(part.ref for part in parts),
            elements=sum(part.elements for part in parts),
            changed=sum(part.changed for part in parts),
            dense_bytes=sum(part.dense_bytes for part in parts),
            meta=meta,
        )
        self._commit(attempt, manifest)

    def _following(self, version: int | None) -> tuple[Manifest, int]:
        """The head, and the version after it, which must be ``version`` if that is given."""
        head = self._head()
        self._check_workers()
        return with_delta(self._board, version, head)

    def _head(self) -> Manifest | None:
        if self._closed:
            raise StoreError("this publisher is closed; open another", path=self._board.url)
        self._store.check_epoch(self._epoch)
        # Before the head: another thread may commit while this one looks.
        last = self._last
        version = self._board.head()
        head = None if version is None else self._board.manifest(version)
        require_last(self._board, last, head)
        if version is None or head is None:
            return None
        if head.epoch > self._epoch:
            raise VersionConflict(
                f"another publisher opened this board after this one (epoch {head.epoch} follows "
                f"{self._epoch}); stop one of them, then open a new publisher",
                path=self._board.url,
            )
        if self._run is not None and self._run != head.run:
            raise BrokenChain(
                f"the board is of run {head.run!r}, not {self._run!r}; use another board",
                version=version,
                path=self._board.url,
            )
        return head

    def _run_name(self, head: Manifest | None) -> str:
        if self._run is not None:
            return self._run
        return "" if head is None else head.run

    def _manifest(
        self,
        attempt: Attempt,
        head: Manifest | None,
        *,
        meta: Mapping[str, str] | None,
        base_state: bytes | None,
        result_state: bytes,
        elements: int,
        changed: int,
        dense_bytes: int,
        objects: tuple[PartRef, ...] = (),
        anchor: AnchorFiles | None = None,
    ) -> Manifest:
        return Manifest(
            version=attempt.version,
            parent=None if head is None else head.ref,
            base_state=base_state,
            result_state=result_state,
            objects=objects,
            anchor=anchor,
            last_anchor=None
            if head is None
            else last_anchor(self._board, self._key, head, self._anchor),
            elements=elements,
            changed=changed,
            dense_bytes=dense_bytes,
            epoch=self._epoch,
            write_id=attempt.write_id,
            time=_now_ms() / 1000,
            run=self._run_name(head),
            meta=dict(meta or {}),
            skips=self._skips.at(attempt.version),
        )

    def _commit(self, attempt: Attempt, manifest: Manifest) -> str:
        raw = manifest.to_json()
        attempt.commit_begun = True
        key = None if self._key is None else self._key.native
        digest = self._store.commit(manifest.version, raw, key)
        self._last = VersionRef(manifest.version, digest)
        for worker in self._workers:
            worker.committed(manifest)
        return digest

    def _add_anchor(self, attempt: Attempt, existing: Manifest, files: AnchorFiles) -> None:
        record = AnchorRecord(
            existing.version,
            existing.digest,
            existing.result_state,
            files,
            self._epoch,
            attempt.write_id,
            _now_ms() / 1000,
        )
        self._store.check_epoch(self._epoch)
        raw = record.to_json()
        attempt.is_manifest = False
        attempt.commit_begun = True
        key = None if self._key is None else self._key.native
        ref = VersionRef(existing.version, self._store.commit_anchor(existing.version, raw, key))
        if self._anchor is None or self._anchor.version < ref.version:
            self._anchor = ref
        head = self._board.head()
        if head is not None:
            newest = max(ref.version, self._anchor.version)
            self._store.write_hint(head, newest)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
