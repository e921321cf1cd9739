"""One attempt at a version: what it took, and what is undone when it fails."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..errors import DeltawireError, VersionConflict
from ..types import Sized
from .manifest import ObjectRef, PartRef, State
from .ranged import WORTH_BYTES

if TYPE_CHECKING:
    from .. import _native


@dataclass(frozen=True)
class PublishStats(Sized):
    """What publishing one version took.

    Attributes:
        version: its number.
        bytes: uploaded: the delta, or all files of an anchor.
        changed: elements in the delta; for an anchor all elements.
        elements, dense_bytes: of all tensors.
        encode_seconds: comparing and encoding, while uploading; for an anchor its digest.
        publish_seconds: after that, until the version was committed.
        result_state: 16 bytes, the state of the version.
        anchor: whether an anchor was published.
        resent: elements of tiles that were sent whole since a detector's changes did not prove
            right.
    """

    version: int
    bytes: int
    changed: int
    elements: int
    dense_bytes: int
    encode_seconds: float
    publish_seconds: float
    result_state: State
    anchor: bool = False
    resent: int = 0


@dataclass
class Attempt:
    """Objects of one attempt at a version, removed again unless it was committed."""

    store: _native.BoardStore
    version: int
    write_id: str = field(default_factory=lambda: secrets.token_hex(16))
    paths: list[str] = field(default_factory=list)
    uploads: list[_native.BoardUpload] = field(default_factory=list)
    commit_begun: bool = False
    is_manifest: bool = True

    def opened(self, upload: _native.BoardUpload, path: str) -> None:
        """Remember an upload."""
        self.paths.append(path)
        self.uploads.append(upload)

    def undo(self, error: BaseException | None) -> None:
        """Remove what may be removed. The first error matters more than one in here."""
        for upload in self.uploads:
            upload.abort()
        with contextlib.suppress(DeltawireError):
            if self.commit_begun and self.is_manifest:
                # Also after Ctrl-C: the version may exist, then its objects stay.
                self.store.discard(self.version, self.write_id, self.paths)
            elif not self.commit_begun or isinstance(error, VersionConflict):
                for path in self.paths:
                    self.store.delete(path)


def uploaded_delta(
    attempt: Attempt, upload: _native.BoardUpload, records_path: str, hashes: bytes
) -> PartRef:
    """Finish a delta, and put the hashes of its records beside it if it is worth it."""
    delta = ObjectRef(*upload.finish())
    if delta.bytes < WORTH_BYTES:
        return PartRef(delta.path, delta.bytes, delta.blake3)
    records = attempt.store.upload(records_path)
    attempt.opened(records, records_path)
    records.write(hashes)
    return PartRef(delta.path, delta.bytes, delta.blake3, ObjectRef(*records.finish()))


@contextlib.contextmanager
def attempted(store: _native.BoardStore, version: int) -> Iterator[Attempt]:
    """An attempt that is undone if the block fails."""
    attempt = Attempt(store, version)
    try:
        yield attempt
    except BaseException as error:
        attempt.undo(error)
        raise
