"""Deltas over several versions of a board: into a file, or onto the board as a skip record."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..compose import compose
from ..errors import BrokenChain, DeltawireError, UntrustedDelta, VersionConflict, WrongVersion
from ..sources import PathLike, Sink, open_delta
from ..types import DeltaStats, Profile, Sized
from .attempt import attempted, uploaded_delta
from .fetch import FetchedDelta, fetch_deltas
from .hop import Held, Hop, cheapest
from .manifest import Manifest, SkipRecord, VersionRef
from .pull import pull
from .transfer import Progress
from .trust import SigningKey
from .vouching import judging

if TYPE_CHECKING:
    from .board import Board

#: The weights of the base version, or how to get a path to them where they are needed.
Weights = PathLike | Mapping[str, Any] | Callable[[], PathLike]


@dataclass(frozen=True)
class SkipStats(Sized):
    """What adding a skip record took.

    Attributes:
        version, base_version: that it leads to and from.
        changed: elements that it changes.
        bytes: of the delta.
        chain_bytes: of the deltas that it folds.
        elements, dense_bytes: of all tensors.
        seconds: all in all.
    """

    version: int
    base_version: int
    bytes: int
    changed: int
    elements: int
    dense_bytes: int
    chain_bytes: int
    seconds: float


@dataclass(frozen=True)
class _Way:
    """Validated manifests of both ends, and the cheapest deltas between."""

    base: Manifest
    goal: Manifest
    chain_bytes: int
    hops: tuple[Hop, ...]


def compose_versions(
    board: Board,
    base: int,
    version: int,
    sink: PathLike | Sink,
    *,
    weights: Weights | None = None,
    profile: Profile | None = None,
    threads: int | None = None,
    scratch: PathLike | None = None,
    progress: Progress | None = None,
) -> DeltaStats:
    """Write the delta that leads from one version of a board straight to a later one.

    Args:
        base, version: from and to.
        sink: path, which appears only when all is written, or object with ``write(bytes)``.
        weights: the weights of ``base``: a checkpoint path, or names to tensors, only read. Needed
            where a delta on the way is ``compact``; None: ``base`` is then pulled into a
            directory that goes away again.
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
    way = _find(board, base, version)
    return _fold(board, way, sink, weights, profile, threads, scratch, progress)


def publish_skip(
    board: Board,
    base: int,
    version: int,
    *,
    weights: Weights | None = None,
    key: SigningKey | None = None,
    profile: Profile | None = None,
    threads: int | None = None,
    scratch: PathLike | None = None,
    progress: Progress | None = None,
) -> SkipStats:
    """As :func:`compose_versions`, but add the delta to the board, for readers to choose.

    Neither needs nor fences a publisher.

    Args:
        key: signs the record; necessary where readers trust certain keys only.

    Raises:
        VersionConflict: there is such a record already.
        UntrustedDelta: the board is signed, and no key was given.
        All of :func:`compose_versions`. Nothing was added.
    """
    started = time.perf_counter()
    board = judging(board, key)
    way = _find(board, base, version)
    if way.goal.signer and key is None:
        raise UntrustedDelta(
            "the board is signed, so that readers would refuse what is not; give a key",
            version=version,
            path=board.url,
        )
    if board.store.skip_record(version, base) is not None:
        raise VersionConflict(
            f"there is a delta from version {base} already; nothing to do",
            version=version,
            path=board.url,
        )
    with attempted(board.store, version) as attempt:
        attempt.is_manifest = False
        paths = board.store.skip_paths(version, base, attempt.write_id)
        upload = board.store.upload(paths[0])
        attempt.opened(upload, paths[0])
        stats = _fold(board, way, upload, weights, profile, threads, scratch, progress)
        delta = uploaded_delta(attempt, upload, paths[1], stats.record_hashes)
        record = SkipRecord(
            version=version,
            manifest=way.goal.digest,
            base=VersionRef(base, way.base.digest),
            base_state=way.base.result_state,
            result_state=way.goal.result_state,
            objects=(delta,),
            changed=stats.changed,
            write_id=attempt.write_id,
            time=time.time(),
        )
        if not board.store.has_version(version):
            raise WrongVersion(
                "this version was collected meanwhile; nothing to do",
                version=version,
                path=board.url,
            )
        attempt.commit_begun = True
        native = None if key is None else key.native
        board.store.commit_skip(version, base, record.to_json(), native)
    return SkipStats(
        version,
        base,
        delta.bytes,
        stats.changed,
        stats.elements,
        stats.dense_bytes,
        way.chain_bytes,
        time.perf_counter() - started,
    )


def _find(board: Board, base: int, version: int) -> _Way:
    if base >= version:
        raise WrongVersion(
            f"a delta leads to a later version, not from {base} to {version}",
            version=version,
            path=board.url,
        )
    own, goal = board.manifest(base), board.manifest(version)
    start = (own.version, own.digest, own.result_state.hex(), own.epoch, own.run)
    chain = board.records.chain(base + 1, version, start)
    if chain[-1].digest != goal.digest:
        raise UntrustedDelta(
            "the manifest changed between two reads; manifests never change on a sound board",
            version=version,
            path=board.url,
        )
    hops = cheapest(board.records, Held.of(own), chain, goal)
    if hops is None:
        missing = next(item.version for item in chain if not item.objects)
        raise BrokenChain(
            f"version {missing} on the way has no delta, only an anchor; begin there",
            version=missing,
            path=board.url,
        )
    return _Way(own, goal, sum(item.bytes for item in chain), hops)


def _fold(
    board: Board,
    way: _Way,
    sink: PathLike | Sink,
    weights: Weights | None,
    profile: Profile | None,
    threads: int | None,
    scratch: PathLike | None,
    progress: Progress | None,
) -> DeltaStats:
    fetched = fetch_deltas(board, way.hops, way.base.result_state, spool=scratch, progress=progress)
    try:
        with contextlib.ExitStack() as stack:
            tensors: Any = weights
            if weights is None or callable(weights):
                tensors = None
                if any(_is_relative(delta) for delta in fetched):
                    tensors = (
                        weights()
                        if callable(weights)
                        else stack.enter_context(
                            _pulled(board, way.base, threads, scratch, progress)
                        )
                    )
            stack.enter_context(_blamed(board, way, fetched))
            return compose(
                [delta.path for delta in fetched],
                sink,
                base=tensors,
                profile=profile,
                threads=threads,
                progress=progress,
            )
    finally:
        for delta in fetched:
            delta.close()


def _is_relative(delta: FetchedDelta) -> bool:
    """Whether a delta says nothing without the weights that it starts from."""
    with delta.blamed():
        opened, _ = open_delta(delta.path)
        return bool(opened.info()["profile"] == "compact")


@contextlib.contextmanager
def _pulled(
    board: Board,
    base: Manifest,
    threads: int | None,
    scratch: PathLike | None,
    progress: Progress | None,
) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="deltawire-", dir=scratch) as directory:
        path = Path(directory) / "checkpoint"
        pull(board, path, version=base.version, threads=threads, progress=progress)
        yield path


@contextlib.contextmanager
def _blamed(board: Board, way: _Way, fetched: Sequence[FetchedDelta]) -> Iterator[None]:
    """Errors name the board, where they would name a file without a name."""
    try:
        yield
    except DeltawireError as error:
        if error.path in [delta.path for delta in fetched]:
            error.path = board.url
        if error.version is None:
            error.version = way.goal.version
        raise
