"""One step of a path along a board's versions."""

from __future__ import annotations

from dataclasses import dataclass

from .manifest import Manifest, PartRef


@dataclass(frozen=True)
class Hop:
    """A delta that leads to a version.

    Attributes:
        manifest: of the version that it leads to.
        base_version: that it starts from: the one before, or an earlier one.
        base_state: 16 bytes, the state of that version.
        parts: its objects.
        changed: elements that it changes.
        is_link: whether it folds the deltas of several versions.
    """

    manifest: Manifest
    base_version: int
    base_state: bytes
    parts: tuple[PartRef, ...]
    changed: int
    is_link: bool = False

    @classmethod
    def of(cls, manifest: Manifest) -> Hop:
        """The delta of a version that has one."""
        assert manifest.parent is not None and manifest.base_state is not None
        return cls(
            manifest,
            manifest.parent.version,
            manifest.base_state,
            manifest.objects,
            manifest.changed,
        )

    @property
    def version(self) -> int:
        """The version that it leads to."""
        return self.manifest.version

    @property
    def result_state(self) -> bytes:
        """The state of that version, 16 bytes."""
        return self.manifest.result_state

    @property
    def bytes(self) -> int:
        """Bytes of the delta."""
        return sum(part.bytes for part in self.parts)
