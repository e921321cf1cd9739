"""One version from all ranks of a process group, each publishing what it holds.

Between ranks go the ticket, what each uploaded (a few hundred bytes), and the outcome; no tensor is
gathered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..board import Board, Publisher, PublishStats
from ..errors import DeltawireError, StoreError
from ..types import Profile
from .base import Detector


def publish_together(
    detector: Detector,
    board: Board,
    publisher: Publisher | None,
    *,
    version: int | None = None,
    profile: Profile = "compact",
    meta: Mapping[str, str] | None = None,
    threads: int | None = None,
) -> PublishStats:
    """Publish what the detectors of all ranks found as one version. All ranks call it.

    Args:
        detector: this rank's, made with ``ranks``; give that group a timeout, which bounds the
            wait for a rank that died.
        board: this rank's, the same board on all ranks.
        publisher: on the group's first rank, of that board; None on all others.
        version, profile, meta, threads: as for ``Publisher.publish``.

    Returns:
        Of the version, on every rank.

    Raises:
        DeltawireError: what failed first on any rank, on all of them. No version was committed,
            detectors keep what they found, and the next call publishes it.
        RuntimeError: a rank died, from ``torch.distributed``. As above.
    """
    import torch.distributed as dist

    group = detector.ranks
    if group is None:
        raise ValueError("make the detectors with ranks=, the group of all ranks that publish")
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if (rank == 0) != (publisher is not None):
        raise ValueError("the first rank of the group, and no other, has the publisher")
    first = dist.get_global_rank(group, 0)
    if publisher is None:
        ticket, failure = _received(first, group)
        if failure is not None:
            raise failure
        detector.exchange()
        gathered = _uploaded(detector, board, ticket, rank, threads)
        dist.gather_object(gathered, None, dst=first, group=group)
        stats, failure = _received(first, group)
        if failure is not None:
            raise failure
        detector.settle()
        return _stats(stats)
    try:
        pending = publisher.begin(
            version, parts=size, profile=profile, tiling=detector.tiling, meta=meta
        )
    except Exception as error:
        _sent((None, _plain(error, rank)), first, group)
        raise
    with pending:
        _sent((pending.ticket, None), first, group)
        detector.exchange()
        mine = _uploaded(detector, board, pending.ticket, rank, threads)
        everyone: list[Any] = [None] * size
        dist.gather_object(mine, everyone, dst=first, group=group)
        failures = [failure for _, failure in everyone if failure is not None]
        try:
            if failures:
                raise failures[0]
            committed = pending.commit([part for part, _ in everyone])
        except Exception as error:
            pending.abandon()
            _sent((None, _plain(error, rank)), first, group)
            raise
    detector.settle()
    _sent((committed, None), first, group)
    return committed


def _uploaded(
    detector: Detector, board: Board, ticket: Any, rank: int, threads: int | None
) -> tuple[Any, Exception | None]:
    """This rank's part, or why there is none: every rank must come to the gathering."""
    try:
        return board.upload_part(ticket, rank, detector=detector, threads=threads), None
    except Exception as error:  # noqa: BLE001 - told to all ranks, which raise it
        return None, _plain(error, rank)


def _plain(error: Exception, rank: int) -> Exception:
    """An error that can be sent to other ranks, and says where it was raised."""
    if isinstance(error, DeltawireError):
        told = type(error)(
            f"on rank {rank}: {error.message}",
            tensor=error.tensor,
            version=error.version,
            offset=error.offset,
            path=error.path,
        )
        return told
    return StoreError(f"on rank {rank}: {type(error).__name__}: {error}")


def _sent(value: Any, first: int, group: Any) -> None:
    import torch.distributed as dist

    dist.broadcast_object_list([value], src=first, group=group)


def _received(first: int, group: Any) -> tuple[Any, Exception | None]:
    import torch.distributed as dist

    got: list[Any] = [None]
    dist.broadcast_object_list(got, src=first, group=group)
    value, failure = got[0]
    return value, failure


def _stats(value: Any) -> PublishStats:
    assert isinstance(value, PublishStats)
    return value
