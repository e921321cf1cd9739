"""The steps of a path along a board's versions, and the cheapest way over deltas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .manifest import Manifest, PartRef, SkipRecord

if TYPE_CHECKING:
    from .records import Records


@dataclass(frozen=True)
class Held:
    """The version that a reader holds.

    Attributes:
        version: its number.
        digest: BLAKE3 of its manifest, if the reader remembers it.
        state: 16 bytes, if the reader knows it.
    """

    version: int
    digest: str | None = None
    state: bytes | None = None

    @classmethod
    def of(cls, manifest: Manifest) -> Held:
        """What a reader of a version holds."""
        return cls(manifest.version, manifest.digest, manifest.result_state)


@dataclass(frozen=True)
class Hop:
    """A delta that leads to a version.

    Attributes:
        manifest: of the version that it leads to.
        base: the version that it starts from, the one before or an earlier one, with digest and
            state.
        parts: its objects.
        changed: elements that it changes.
    """

    manifest: Manifest
    base: Held
    parts: tuple[PartRef, ...]
    changed: int

    @classmethod
    def of(cls, manifest: Manifest) -> Hop:
        """The delta of a version that has one."""
        assert manifest.parent is not None
        base = Held(manifest.parent.version, manifest.parent.digest, manifest.base_state)
        return cls(manifest, base, manifest.objects, manifest.changed)

    @classmethod
    def over(cls, manifest: Manifest, record: SkipRecord) -> Hop:
        """The delta of a skip record to a version."""
        base = Held(record.base.version, record.base.digest, record.base_state)
        return cls(manifest, base, record.objects, record.changed)

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


def cheapest(
    records: Records, start: Held, chain: Sequence[Manifest], goal: Manifest
) -> tuple[Hop, ...] | None:
    """The deltas with the fewest bytes from ``start`` to the end of ``chain``.

    Looks for the skip records that manifests announce, and for one over the whole way.

    Args:
        start: with digest and state.
        chain: validated manifests of the versions after ``start``, without gaps.
        goal: of the version that all is for.

    Returns:
        None where a version without a delta is in the way.

    Raises:
        UntrustedDelta: a skip record that does not belong to the manifests, or that no trusted key
            signed.
    """
    into: dict[int, list[Hop]] = {item.version: [Hop.of(item)] for item in chain if item.objects}
    for record in records.skips(_announced(start, chain), goal):
        manifest = chain[record.version - start.version - 1]
        into.setdefault(record.version, []).append(Hop.over(manifest, record))
    # For each place the bytes of the way there, and its last hop.
    best: list[tuple[int, Hop | None] | None] = [(0, None)]
    for manifest in chain:
        known: tuple[int, Hop | None] | None = None
        for hop in into.get(manifest.version, []):
            before = best[hop.base.version - start.version]
            if before is not None and (known is None or before[0] + hop.bytes < known[0]):
                known = (before[0] + hop.bytes, hop)
        best.append(known)
    way: list[Hop] = []
    at = len(chain)
    while at > 0:
        found = best[at]
        if found is None or found[1] is None:
            return None
        way.append(found[1])
        at = found[1].base.version - start.version
    return tuple(reversed(way))


def _announced(start: Held, chain: Sequence[Manifest]) -> list[tuple[Held, Manifest]]:
    """The ends of deltas over several versions that may be there."""
    places = [start, *(Held.of(manifest) for manifest in chain)]
    ends: list[tuple[Held, Manifest]] = []
    for manifest in chain:
        spans = {span for span in manifest.skips if manifest.version - span >= start.version}
        if manifest is chain[-1] and len(chain) > 1:
            spans.add(len(chain))
        ends += [
            (places[manifest.version - span - start.version], manifest) for span in sorted(spans)
        ]
    return ends
