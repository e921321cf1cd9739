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
from .manifest import Manifest, SkipRecord
from .plan import read_chain, start_of
from .pull import pull
from .transfer import Progress
from .trust import SigningKey

if TYPE_CHECKING:
    from .board import Board


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
class Way:
    """Validated manifests of both ends, and the cheapest deltas between.

    Attributes:
        base, goal: the ends.
        chain_bytes: of the deltas of all versions between.
        hops: the cheapest way, over skip records too.
    """

    base: Manifest
    goal: Manifest
    chain_bytes: int
    hops: tuple[Hop, ...]


@dataclass(frozen=True)
class FoldSettings:
    """How versions are folded.

    Attributes:
        weights: the weights of the base: a checkpoint path, or names to tensors, only read; or how
            to get a path. Needed where a delta on the way is ``compact``; None: the base is then
            pulled into a directory that goes away again.
        profile: of the result; None: ``compact``, or without weights that of the last delta.
        threads: by default all cores.
        scratch: directory for deltas and weights on their way; by default the system's.
        progress: called with the number of bytes just fetched and dense bytes just done.
    """

    weights: PathLike | Mapping[str, Any] | Callable[[], PathLike] | None = None
    profile: Profile | None = None
    threads: int | None = None
    scratch: PathLike | None = None
    progress: Progress | None = None


def compose_versions(
    board: Board, base: int, version: int, sink: PathLike | Sink, how: FoldSettings
) -> DeltaStats:
    """Fold into ``sink``; see :meth:`deltawire.Board.compose`."""
    return _fold(board, require_way(board, base, version), sink, how)


def publish_skip(
    board: Board, way: Way, how: FoldSettings, key: SigningKey | None = None
) -> SkipStats:
    """Fold onto the board; see :meth:`deltawire.Board.add_skip`.

    Args:
        board: as :func:`deltawire.board.vouching.judging` gives it, where the record is signed.
    """
    started = time.perf_counter()
    base, version = way.base.version, way.goal.version
    if way.goal.signer and key is None:
        raise UntrustedDelta(
            "the board is signed, so that readers would refuse what is not; give a key",
            version=version,
            path=board.url,
        )
    if board.records.has_skip(base, version):
        raise VersionConflict(
            f"there is a delta from version {base} already; nothing to do",
            version=version,
            path=board.url,
        )
    with attempted(board.store, version) as attempt:
        attempt.is_manifest = False
        path, path_of_hashes = board.store.skip_paths(version, base, attempt.write_id)
        upload = board.store.upload(path)
        attempt.opened(upload, path)
        stats = _fold(board, way, upload, how)
        delta = uploaded_delta(attempt, upload, path_of_hashes, stats.record_hashes)
        record = SkipRecord(
            version=version,
            manifest=way.goal.digest,
            base=way.base.ref,
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


def require_way(board: Board, base: int, version: int) -> Way:
    """As :func:`find_way`.

    Raises:
        BrokenChain: a version without a delta is in the way, too.
    """
    way = find_way(board, base, version)
    if way is None:
        between = range(base + 1, version + 1)
        missing = next(one for one in between if not board.manifest(one).objects)
        raise BrokenChain(
            f"version {missing} on the way has no delta, only an anchor; begin there",
            version=missing,
            path=board.url,
        )
    return way


def find_way(board: Board, base: int, version: int) -> Way | None:
    """Both ends and the cheapest deltas between; None where a version without one is in the way.

    Raises:
        WrongVersion: there are no such versions, or not in this order.
        BrokenChain: manifests do not link up.
        UntrustedDelta, StoreError: the board cannot be read, or was altered.
    """
    if base >= version:
        raise WrongVersion(
            f"a delta leads to a later version, not from {base} to {version}",
            version=version,
            path=board.url,
        )
    own, goal = board.manifest(base), board.manifest(version)
    chain = read_chain(board, base + 1, goal, start_of(own))
    hops = cheapest(board.records, Held.of(own), chain, goal)
    if hops is None:
        return None
    return Way(own, goal, sum(item.bytes for item in chain), hops)


def _fold(board: Board, way: Way, sink: PathLike | Sink, how: FoldSettings) -> DeltaStats:
    base = way.base
    fetched = fetch_deltas(
        board, way.hops, base.result_state, spool=how.scratch, progress=how.progress
    )
    try:
        with contextlib.ExitStack() as stack:
            weights: Any = how.weights
            if weights is None or callable(weights):
                relative = any(_is_relative(delta) for delta in fetched)
                if relative and weights is None:
                    weights = stack.enter_context(_pulled(board, base, how))
                else:
                    weights = weights() if relative else None
            stack.enter_context(_blamed(board, way, fetched))
            return compose(
                [delta.path for delta in fetched],
                sink,
                base=weights,
                profile=how.profile,
                threads=how.threads,
                progress=how.progress,
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
def _pulled(board: Board, base: Manifest, how: FoldSettings) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="deltawire-", dir=how.scratch) as directory:
        path = Path(directory) / "checkpoint"
        pull(board, path, version=base.version, threads=how.threads, progress=how.progress)
        yield path


@contextlib.contextmanager
def _blamed(board: Board, way: Way, fetched: Sequence[FetchedDelta]) -> Iterator[None]:
    """Errors name the board, where they would name a file without a name."""
    try:
        yield
    except DeltawireError as error:
        if error.path in [delta.path for delta in fetched]:
            error.path = board.url
        if error.version is None:
            error.version = way.goal.version
        raise
