"""What a publisher may name in a record: a signature makes readers believe it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import StoreError, UntrustedDelta, WrongVersion
from .manifest import AnchorFiles, Manifest, ObjectRef, VersionRef
from .trust import SigningKey, Trust

if TYPE_CHECKING:
    from .board import Board


def judging(board: Board, key: SigningKey | None) -> Board:
    """The board as a publisher with this key reads what it vouches for.

    Without trusted keys a publisher that signs believes only its own key.
    """
    if key is None or board.records.trusting:
        return board
    return board.trusting(Trust([key.public], introductions=False))


def last_anchor(
    board: Board, key: SigningKey | None, head: Manifest, own: VersionRef | None
) -> VersionRef | None:
    """The newest anchor at or before the head, for the manifest that follows it.

    Args:
        own: the newest that the publisher itself has made.
    """
    known = [head.ref] if head.anchor is not None else []
    known += [ref for ref in (head.last_anchor, own) if ref is not None]
    hint = board.store.hint()
    newest = max((ref.version for ref in known), default=-1)
    if hint is not None and hint[1] is not None and newest < hint[1] <= head.version:
        # Another publisher added it after the head was committed.
        hinted = board.find_manifest(hint[1])
        if hinted is not None and hinted.anchor is None:
            known += _record_of(judging(board, key), hinted, head)
    return max(known, key=lambda ref: ref.version, default=None)


def _record_of(board: Board, manifest: Manifest, head: Manifest) -> list[VersionRef]:
    """The anchor record of a version, unless a signature would vouch for what is not known."""
    try:
        record = board.records.anchor(manifest, head)
    except UntrustedDelta:
        return []
    return [] if record is None else [VersionRef(manifest.version, record.digest)]


def check_uploaded(board: Board, existing: Manifest | None, files: AnchorFiles) -> None:
    """See that no collection took the version, or files of a very slow upload for leftovers.

    Raises:
        WrongVersion, StoreError: it did; there is nothing to commit.
    """
    if existing is not None and not board.store.has_version(existing.version):
        raise WrongVersion(
            "this version was collected while its anchor was uploaded; nothing to do",
            version=existing.version,
            path=board.url,
        )
    stored = dict(board.store.list_all(files.path))
    for file in files.objects:
        if stored.get(file.path) != file.bytes and not _is_there(board, file):
            raise StoreError(
                "this file of an anchor was removed while others were uploaded; collect with a "
                "safety age that is longer than any upload, then publish the anchor again",
                path=f"{board.url.rstrip('/')}/{file.path}",
            )


def _is_there(board: Board, file: ObjectRef) -> bool:
    """Whether a file that a listing lacks is there with its length: listings may lag behind."""
    try:
        end = board.store.read_range(file.path, max(file.bytes - 1, 0), file.bytes)
    except (StoreError, UntrustedDelta):
        return False
    return len(end) == min(file.bytes, 1)
