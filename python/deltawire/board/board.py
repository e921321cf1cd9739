"""Opening a board, and looking at its versions."""

from __future__ import annotations

import copy
import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from .. import _native
from ..errors import WrongVersion
from ..sources import PathLike, Sink
from ..testing import FaultPlan
from ..types import DeltaStats, Profile
from .background import AnchorSettings, SkipSettings
from .changes import Tensors
from .collect import GRACE, KEEP, SAFETY_AGE, CollectStats, collect
from .fetch import check_file
from .follower import Follower
from .hop import Hop
from .joining import fetch_whole
from .lease import Lease, read_leases
from .manifest import Manifest
from .options import StoreOptions
from .parts import PublishTicket, UploadedPart, upload_part
from .publisher import Publisher
from .pull import PullStats, pull
from .records import Records
from .skip import FoldSettings, SkipStats, compose_versions, publish_skip, require_way
from .transfer import Progress, of_version
from .trust import PublicKey, SigningKey, Trust
from .vouching import judging
from .watch import OnStale

if TYPE_CHECKING:
    from ..detect import Detector

#: While waiting for a version, how often the head is looked for in case it was passed by.
_POLLS_PER_HEAD = 32


class Board:
    """A bulletin board: numbered, immutable versions of one run on an object store.

    Args:
        url: a path, ``file:///path``, ``memory://name`` (shared by this process),
            ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``az://container/prefix``, or, to read
            only, ``https://host/path``. Manifests, objects and anchors lie right below it.
        create: make the directory, or memory store, if it is missing. Buckets are never made.
        trust: keys that must have signed what is read, by every method here and by all who use
            this board; None: signatures are ignored.
        options: of a remote store; others have none.
        faults: for tests: what goes wrong with the store on purpose.

    Raises:
        StoreError: an unknown scheme, no board or bucket there, or it cannot be reached.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        create: bool = False,
        trust: Trust | None = None,
        options: StoreOptions | None = None,
        faults: FaultPlan | None = None,
    ) -> None:
        native = None if faults is None else faults.native
        self._store = _native.BoardStore(os.fspath(url), create, options, native)
        self._records = Records(self._store, self._store.url, trust)
        self._options = options
        self._known: int | None = None

    @property
    def url(self) -> str:
        """The path or URL that the board was opened with."""
        return self._store.url

    @property
    def options(self) -> StoreOptions | None:
        """What the board was opened with."""
        return self._options

    @property
    def store(self) -> _native.BoardStore:
        """The storage operations beneath."""
        return self._store

    @property
    def records(self) -> Records:
        """The manifests and anchor records, with their signatures checked."""
        return self._records

    def __repr__(self) -> str:
        return f"<Board {self.url!r}>"

    def trusting(self, trust: Trust) -> Board:
        """The same board over the same connections, with other trusted keys."""
        board = copy.copy(self)
        board._records = Records(self._store, self.url, trust)
        return board

    def head(self) -> int | None:
        """The newest committed version, or None for an empty board.

        Costs two small requests once a version is known; never lists the board.
        """
        head = self._store.head(self._known)
        if head is not None:
            self._known = head
        return head

    def manifest(self, version: int) -> Manifest:
        """The manifest of a version.

        Raises:
            WrongVersion: no such version.
            UntrustedDelta, UnsupportedDelta, LimitExceeded: what is stored is no manifest that
                can be used, or no trusted key signed it.
        """
        found = self.find_manifest(version)
        if found is None:
            raise WrongVersion(
                "no such version: not committed yet, or collected", version=version, path=self.url
            )
        return found

    def find_manifest(self, version: int) -> Manifest | None:
        """As :meth:`manifest`, but None where there is no such version."""
        return self._records.manifest(version)

    def log(self, limit: int | None = None) -> list[Manifest]:
        """The newest manifests, newest first, back to the oldest that is retained."""
        manifests: list[Manifest] = []
        version = self.head()
        while version is not None and version >= 0 and (limit is None or len(manifests) < limit):
            found = self.find_manifest(version)
            if found is None:
                break
            manifests.append(found)
            version = found.parent_version
        return manifests

    def wait(self, version: int, *, timeout: float | None = None, poll: float = 0.2) -> bool:
        """Wait until a version, or a later one, exists.

        Args:
            timeout: give up after so many seconds; None: never.
            poll: seconds between two looks, each one small request.

        Returns:
            Whether it exists.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        for look in itertools.count(1):
            if self._store.has_version(version):
                self._known = max(version, self._known or 0)
                return True
            if look % _POLLS_PER_HEAD == 0:
                # It may have come and been collected while nobody looked.
                head = self.head()
                if head is not None and head >= version:
                    return True
            remaining = poll if deadline is None else min(poll, deadline - time.monotonic())
            if remaining <= 0:
                return False
            time.sleep(remaining)
        return False

    def fetch(self, version: int, file: BinaryIO) -> int:
        """Write a version's delta into ``file``, checking length and BLAKE3; returns its bytes.

        Parts of several writers are joined.

        Raises:
            WrongVersion: no such version, or it has no delta.
            UntrustedDelta: the bytes are not the manifest's. ``file`` then holds useless bytes.
        """
        manifest = self.manifest(version)
        if not manifest.objects:
            raise WrongVersion(
                "this version has no delta; load its anchor", version=version, path=self.url
            )
        with of_version(version):
            return fetch_whole(self, Hop.of(manifest), file)

    def check_delta(self, path: str | os.PathLike[str], version: int) -> Manifest:
        """Check that a file is the very delta of a version, as its manifest names it.

        With trusted keys this tells who made the file, which a delta alone does not.

        Returns:
            The manifest.

        Raises:
            WrongVersion: no such version, or it has no delta.
            UntrustedDelta: the file has other bytes, or no trusted key signed the manifest.
            StoreError: the file or the board cannot be read.
        """
        manifest = self.manifest(version)
        check_file(self, manifest, path)
        return manifest

    def compose(
        self,
        base: int,
        version: int,
        sink: PathLike | Sink,
        *,
        weights: PathLike | Mapping[str, Any] | None = None,
        profile: Profile | None = None,
        threads: int | None = None,
        scratch: PathLike | None = None,
        progress: Progress | None = None,
    ) -> DeltaStats:
        """Write the delta that leads from one version straight to a later one.

        Args:
            base, version: from and to.
            sink: path, which appears only when all is written, or object with ``write(bytes)``.
            weights: the weights of ``base``: a checkpoint path, or names to tensors, only read.
                Needed where a delta on the way is ``compact``; None: ``base`` is then pulled into
                a directory that goes away again.
            profile: of the result; None: ``compact``, or without weights that of the last delta.
            threads: by default all cores.
            scratch: directory for deltas and weights on their way; by default the system's.
            progress: called with the number of bytes just fetched and dense bytes just done.

        Raises:
            WrongVersion: there are no such versions, or not in this order.
            BrokenChain: a version between has no delta, or manifests do not link up.
            WrongBase: ``weights`` are not those of ``base``.
            UntrustedDelta, CorruptDelta, StoreError: the board cannot be read, or was altered.
        """
        how = FoldSettings(weights, profile, threads, scratch, progress)
        return compose_versions(self, base, version, sink, how)

    def add_skip(
        self,
        base: int,
        version: int,
        *,
        weights: PathLike | Mapping[str, Any] | None = None,
        key: SigningKey | None = None,
        profile: Profile | None = None,
        threads: int | None = None,
        scratch: PathLike | None = None,
        progress: Progress | None = None,
    ) -> SkipStats:
        """As :meth:`compose`, but add the delta to the board, for readers to choose.

        Neither needs nor fences a publisher.

        Args:
            key: signs the record; necessary where readers trust certain keys only.

        Raises:
            VersionConflict: there is such a record already.
            UntrustedDelta: the board is signed, and no key was given.
            All of :meth:`compose`. Nothing was added.
        """
        how = FoldSettings(weights, profile, threads, scratch, progress)
        board = judging(self, key)
        return publish_skip(board, require_way(board, base, version), how, key)

    def boundary(self) -> int | None:
        """The oldest version that can be relied on; None if nothing was ever collected.

        It has an anchor. Earlier versions may be there still, and may go at any moment. One
        short listing.

        Raises:
            StoreError: the store failed, or is a web server, which cannot be listed.
        """
        return _native.board_control(self._store)[0]

    def anchor_versions(self) -> list[int]:
        """Versions for which an anchor was begun, ascending; some may not have been completed."""
        boundary, claims, _ = _native.board_control(self._store)
        return sorted({*claims, *([] if boundary is None else [boundary])})

    def readers(self) -> list[Lease]:
        """The leases of readers, ended ones included; one request for each."""
        return read_leases(self._store)

    def collect(
        self,
        *,
        keep: int = KEEP,
        older_than: float = 0,
        safety_age: float = SAFETY_AGE,
        grace: float = GRACE,
        sweep: bool = False,
        dry_run: bool = False,
    ) -> CollectStats:
        """Remove old versions, as far as leases and anchors allow.

        Kept are the newest ``keep`` versions, those younger than ``older_than``, what a lease
        needs, and all back to the newest complete anchor at or before these, so that every version
        that stays can be read by anyone. Safe at any time, beside publishers, readers and
        other collections; after a crash the same call goes on.

        Args:
            keep: newest versions that stay, at least 1.
            older_than: seconds for which the store must have had a version.
            safety_age: seconds; leftovers of attempts, which may belong to an upload in
                progress, are left alone if younger. Longer than any upload of a file.
            grace: seconds for which an ended lease is respected, for clocks that disagree.
            sweep: also look for leftovers of failed attempts at versions that stay, which
                lists the whole board.
            dry_run: change nothing, only say what would be done.

        With trusted keys the head and the version that others then start from must be signed by
        them, so that nobody who can only write has genuine versions collected in favour of others.

        Raises:
            UntrustedDelta, UnsupportedDelta: a lease or record that this version of deltawire
                cannot understand, a head that no trusted key signed, or a boundary from which
                nobody could read; nothing was removed.
            StoreError: the store failed. Every version that stays is whole; call again.
        """
        return collect(
            self,
            keep=keep,
            older_than=older_than,
            safety_age=safety_age,
            grace=grace,
            sweep=sweep,
            dry_run=dry_run,
        )

    def publisher(
        self,
        *,
        run: str | None = None,
        key: SigningKey | None = None,
        anchor_every: int | None = None,
        anchor_outweighed: bool = False,
        anchor_source: Callable[[int], str | os.PathLike[str]] | None = None,
        anchor_scratch: str | os.PathLike[str] | None = None,
        anchor_threads: int = 1,
        anchor_close: Literal["wait", "cancel"] = "wait",
        skip_spans: Sequence[int] = (),
        skip_scratch: str | os.PathLike[str] | None = None,
        skip_threads: int = 1,
        skip_close: Literal["wait", "cancel"] = "wait",
    ) -> Publisher:
        """Open the board for publishing; fences every publisher that was opened before.

        With ``anchor_every`` or ``anchor_outweighed`` a thread adds anchors to versions that were
        published, without holding up the next. It needs nothing from the trainer: it folds
        the board's own anchor and deltas into a directory on disk, proves the result, and
        uploads that. While one is made, later versions wait for the next turn.

        With ``skip_spans`` a thread for each span adds to every version that is a multiple of it
        the delta over so many versions, for readers that are far behind. It is smaller than the
        deltas that it folds, because elements change more than once. Each thread keeps the
        weights that its next delta starts from in a directory on disk.

        Args:
            run: name of the run, written into every version; by default that of the head.
            key: signs every manifest and anchor record; None: they are not signed.
            anchor_every: versions from one anchor to the next.
            anchor_outweighed: make an anchor when the deltas since the last have more bytes
                than the tensors.
            anchor_source: gives the path of a checkpoint of a version, which must stay as it is
                until the publisher asks for the next; its bits are compared with the
                version's. Instead of folding.
            anchor_scratch: directory with room for one checkpoint, used until the publisher is
                closed; by default the system's temporary directory.
            anchor_threads: for folding and comparing.
            anchor_close: whether closing waits for an anchor that is being made, or drops it.
            skip_spans: numbers of versions, for example ``(8, 64)``.
            skip_scratch: directory with room for one checkpoint a span; by default the system's
                temporary directory. Not needed where all deltas are ``fast`` or ``overwrite``.
            skip_threads: for folding and encoding, for each span.
            skip_close: whether closing waits for a skip record that is being made, or drops it.
        """
        anchors = AnchorSettings(
            every=anchor_every,
            outweighed=anchor_outweighed,
            source=anchor_source,
            scratch=anchor_scratch,
            threads=anchor_threads,
            close=anchor_close,
        )
        skips = SkipSettings(
            spans=tuple(skip_spans), scratch=skip_scratch, threads=skip_threads, close=skip_close
        )
        return Publisher(self, run=run, key=key, anchors=anchors, skips=skips)

    def upload_part(
        self,
        ticket: PublishTicket,
        rank: int,
        *,
        base: Tensors | None = None,
        new: Tensors | None = None,
        detector: Detector | None = None,
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> UploadedPart:
        """Upload one rank's part of a version that :meth:`deltawire.Publisher.begin` has begun.

        Needs a board that can be written, and no publisher. The part is durable when this returns,
        and becomes part of a version when the publisher commits it. On an error nothing is left of
        it, as far as the store allows.

        Args:
            ticket: of the version.
            rank: which part, 0 to ``ticket.parts - 1``.
            base: the head's bits of what this rank publishes: a path, or name -> tensor or
                ``Shard``. Every element of the model is published by exactly one rank.
            new: the same, changed.
            detector: instead of both: what this rank's detector found since the head. It goes on
                from this version once told so: :meth:`deltawire.detect.Detector.settle`.
            threads: by default all cores.
            progress: called with the number of dense bytes just done.

        Raises:
            VersionConflict: another publisher was opened, or the version exists.
            WrongVersion: this is not the publisher's board.
            LayoutMismatch: names, shapes or dtypes disagree, or a shard cuts tiles.
            StoreError: the store failed.
        """
        return upload_part(
            self,
            ticket,
            rank,
            base=base,
            new=new,
            detector=detector,
            threads=threads,
            progress=progress,
        )

    def introduce_key(self, new: PublicKey, *, by: SigningKey, first: int | None = None) -> int:
        """Tell readers who trust ``by`` to trust ``new`` from a version on, and ``by`` before it.

        Stop the publisher, introduce the new key, and publish with it from then on.

        Args:
            new: of a name that the board has not seen.
            by: the key that has signed so far.
            first: the first version that ``new`` signs; None: the one after the head.

        Returns:
            ``first``.

        Raises:
            WrongVersion: the board is empty, or has reached ``first`` already.
            VersionConflict: a key of this name was introduced before.
            KeyFileError: both keys have the same name.
            StoreError: the store failed.
        """
        head = self.head()
        following = None if head is None else head + 1
        if head is None or following is None or (first is not None and first < following):
            raise WrongVersion(
                "a key is introduced for versions to come, on a board that has some",
                version=first,
                path=self.url,
            )
        first = following if first is None else first
        run = self.manifest(head).run
        by.native.introduce(
            self._store, run, new.name, new.ed25519.hex(), first, time.time_ns() // 1_000_000
        )
        return first

    def follower(
        self,
        target: Mapping[str, Any],
        *,
        version: int | None = None,
        state: bytes | None = None,
        threads: int | None = None,
        spool: str | os.PathLike[str] | None = None,
        memory: str | os.PathLike[str] | None = None,
        max_age: float | None = None,
        on_stale: OnStale | None = None,
        lease: str | None = None,
        lease_seconds: float = 900.0,
        partial: bool = False,
        repair: bool = True,
    ) -> Follower:
        """Follow the board with tensors that are changed in place.

        Args:
            target: name -> ``torch.Tensor`` (CPU), numpy array, ``Shard`` or ``TensorView``; or a
                writable ``Checkpoint``.
            version: the version that ``target`` holds; None: unknown contents, an anchor is
                loaded first.
            state: 16 bytes, checked against that version's manifest.
            threads: for decoding; by default all cores.
            spool: directory for deltas on their way; by default the system's.
            memory: file that keeps the newest version seen, for a follower that is started again;
                one file for each follower. A board that went back behind it is refused.
            max_age: seconds that the newest version may be old when it is looked for.
            on_stale: called with a ``Stale`` where it is older, and the follower goes on; None:
                ``StaleBoard`` is raised, before the target changes.
            lease: name of this reader, free text. With one, the reader writes to the board what
                it still needs, and collection leaves that in place; so the board must be
                writable. Without one it may be overtaken, and then starts again from an anchor.
            lease_seconds: for which each renewal is good; polls renew it.
            partial: tensors that ``target`` lacks are other ranks'. So they are where it holds a
                ``Shard``. Then only chunks that this rank needs are fetched.
            repair: where a few tiles of ``target`` hold neither the old nor the new bits, rebuild
                them from an anchor and deltas; False: ``WrongBase`` is raised.
        """
        return Follower(
            self,
            target,
            version=version,
            state=state,
            threads=threads,
            spool=spool,
            memory=memory,
            max_age=max_age,
            on_stale=on_stale,
            lease=lease,
            lease_seconds=lease_seconds,
            partial=partial,
            repair=repair,
        )

    def pull(
        self,
        directory: str | os.PathLike[str],
        *,
        version: int | None = None,
        threads: int | None = None,
        progress: Callable[[int], object] | None = None,
        memory: str | os.PathLike[str] | None = None,
        max_age: float | None = None,
        on_stale: OnStale | None = None,
        repair: bool = True,
    ) -> PullStats:
        """Bring a checkpoint directory to a version; see :func:`deltawire.board.pull.pull`."""
        return pull(
            self,
            directory,
            version=version,
            threads=threads,
            progress=progress,
            memory=memory,
            max_age=max_age,
            on_stale=on_stale,
            repair=repair,
        )
