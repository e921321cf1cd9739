"""Everything that deltawire raises, grouped by what a handler would do.

Each class has a stable ``kind``, the same string that the Rust core uses, and the
exit status that the command line ends with. Instances carry what is known of the
place: ``tensor``, ``version``, ``offset`` (bytes from the start of the stream or
file) and ``path``. All are picklable.
"""

from __future__ import annotations

from typing import Any, ClassVar


class DeltawireError(Exception):
    """Base of all errors."""

    kind: ClassVar[str] = "error"
    exit_status: ClassVar[int] = 1

    def __init__(
        self,
        message: str,
        *,
        tensor: str | None = None,
        version: int | None = None,
        offset: int | None = None,
        path: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.tensor = tensor
        self.version = version
        self.offset = offset
        self.path = path

    def __str__(self) -> str:
        place = []
        if self.path is not None:
            place.append(self.path)
        if self.tensor is not None:
            place.append(f"tensor {self.tensor!r}")
        if self.version is not None:
            place.append(f"version {self.version}")
        if self.offset is not None:
            place.append(f"byte {self.offset}")
        return f"{', '.join(place)}: {self.message}" if place else self.message

    def __reduce__(self) -> Any:
        return _rebuild, (
            type(self),
            self.message,
            {
                "tensor": self.tensor,
                "version": self.version,
                "offset": self.offset,
                "path": self.path,
            },
        )


def _rebuild(cls: type[DeltawireError], message: str, place: dict[str, Any]) -> DeltawireError:
    return cls(message, **place)


# --- The input cannot be used; get another copy. -------------------------------------


class CorruptDelta(DeltawireError):
    """Bytes that are not a delta, are cut short, or fail a check."""

    kind = "corrupt"
    exit_status = 3


class UnsupportedDelta(DeltawireError):
    """A well-formed delta that needs a newer deltawire."""

    kind = "unsupported"
    exit_status = 3


class LimitExceeded(DeltawireError):
    """The delta claims more than ``Limits`` allows."""

    kind = "limit"
    exit_status = 3


class UntrustedDelta(DeltawireError):
    """An object or manifest whose digest or signature is not the expected one."""

    kind = "untrusted"
    exit_status = 3


class CorruptCheckpoint(DeltawireError):
    """A safetensors file or checkpoint directory that is malformed or incomplete."""

    kind = "checkpoint"
    exit_status = 3


# --- The input is fine but does not fit the target; choose another base or version. --


class WrongBase(DeltawireError):
    """The target does not hold the bits that the delta starts from."""

    kind = "wrong-base"
    exit_status = 4


class WrongVersion(DeltawireError):
    """A version that does not follow, does not exist, or was passed already."""

    kind = "wrong-version"
    exit_status = 4


class LayoutMismatch(DeltawireError):
    """Tensor names, shapes or dtypes that disagree."""

    kind = "layout"
    exit_status = 4


class VersionConflict(DeltawireError):
    """Another writer committed this version first."""

    kind = "conflict"
    exit_status = 4


class BrokenChain(DeltawireError):
    """Manifests that do not link up from the follower's version to the wanted one."""

    kind = "broken-chain"
    exit_status = 4


class RolledBack(BrokenChain):
    """A board that ends before, or differs from, what this reader has already seen of it."""

    kind = "rolled-back"
    exit_status = 4


# --- The surroundings failed; nothing was changed, try again. ------------------------


class StoreError(DeltawireError):
    """A board, file or network operation failed."""

    kind = "store"
    exit_status = 5


class StaleBoard(DeltawireError):
    """A board whose newest version is older than the reader allows."""

    kind = "stale"
    exit_status = 5


# --- Keys. ---------------------------------------------------------------------------


class KeyFileError(DeltawireError):
    """A key file that cannot be used, that others can read, or that exists already."""

    kind = "key-file"
    exit_status = 1


# --- The target. ---------------------------------------------------------------------


class TargetError(DeltawireError):
    """The target cannot be written (read-only, not contiguous, changed underneath)."""

    kind = "target"
    exit_status = 1


class TargetTorn(DeltawireError):
    """A commit that had begun failed. Some tiles are new, the others old, none mixed.

    Apply the same delta again: tiles that have the new bits are recognised and skipped.
    """

    kind = "torn"
    exit_status = 1
