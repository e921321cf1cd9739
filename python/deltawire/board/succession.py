"""Which version may come next: what a publisher checks of the head, and of what it adds to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import RolledBack, VersionConflict, WrongVersion
from .manifest import Manifest, VersionRef

if TYPE_CHECKING:
    from .board import Board


def require_last(board: Board, last: VersionRef | None, head: Manifest | None) -> None:
    """Refuse a board without the version committed last: a second history would begin.

    Raises:
        RolledBack: somebody put another copy in the board's place.
    """
    if last is None or (head is not None and head.version > last.version):
        return
    if head is None or head.ref != last:
        ends = "is empty" if head is None else f"ends at {head.version}, {head.digest}"
        raise RolledBack(
            f"the board {ends}, but this publisher committed {last.version}, {last.digest}: "
            "somebody put another copy in its place. Restore it, or open a publisher anew if "
            "that was you",
            version=last.version,
            path=board.url,
        )


def next_version(board: Board, version: int | None, head: Manifest) -> int:
    """The number after the head, which must be ``version`` if that is given.

    Raises:
        VersionConflict, WrongVersion: it is not.
    """
    following = head.version + 1
    if version is None or version == following:
        return following
    if version <= head.version:
        raise VersionConflict(
            f"this version exists already; the next one is {following}",
            version=version,
            path=board.url,
        )
    raise WrongVersion(
        f"versions follow one another: the next one is {following}",
        version=version,
        path=board.url,
    )


def with_delta(board: Board, version: int | None, head: Manifest | None) -> tuple[Manifest, int]:
    """The head, and the number of a version with a delta after it.

    Raises:
        WrongVersion: there is no head.
        VersionConflict, WrongVersion: as :func:`next_version`.
    """
    if head is None:
        raise WrongVersion(
            "the board is empty; its first version is a whole checkpoint: publish_anchor",
            version=version,
            path=board.url,
        )
    return head, next_version(board, version, head)


def without_anchor(board: Board, version: int) -> Manifest:
    """A version to which an anchor may be added.

    Raises:
        VersionConflict: it has one.
    """
    existing = board.manifest(version)
    if existing.anchor is not None or board.records.anchor_digest(version) is not None:
        raise VersionConflict(
            "this version already has an anchor; nothing to do", version=version, path=board.url
        )
    return existing
