"""The one way to read manifests and anchor records: whoever reads here reads what is trusted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import BrokenChain, UntrustedDelta
from .manifest import AnchorRecord, Manifest, SkipRecord

if TYPE_CHECKING:
    from .. import _native
    from .hop import Held
    from .trust import Trust

#: Version, manifest digest, state, epoch and run that a chain must continue.
Start = tuple[int, str, str, int, str | None]
#: Name, key as hexadecimal digits, first version, and the key that introduced it.
Introduced = tuple[str, str, int, str]


class Records:
    """A board's manifests and anchor records.

    With trusted keys, the signature of every record is checked before anything in it is used;
    without, signatures are ignored.
    """

    def __init__(self, store: _native.BoardStore, url: str, trust: Trust | None) -> None:
        self._store = store
        self._url = url
        self._ring = None if trust is None else trust.keyring()

    @property
    def trusting(self) -> bool:
        """Whether signatures are checked."""
        return self._ring is not None

    @property
    def ring(self) -> _native.Keyring | None:
        """The trusted keys in the extension module; None: signatures are ignored."""
        return self._ring

    @property
    def introduced(self) -> list[Introduced]:
        """Keys that were introduced on the board, as far as was looked."""
        return [] if self._ring is None else self._ring.introduced()

    def remember(self, keys: list[Introduced]) -> None:
        """Take up keys that were introduced earlier; who introduced them must still be trusted."""
        if self._ring is not None:
            for key in keys:
                self._ring.remember(*key)

    def manifest(self, version: int, known: str | None = None) -> Manifest | None:
        """The manifest of a version, None if there is no such version.

        Args:
            known: digest of the manifest that was believed before; the same needs no signature
                again, for its key may have ended since.

        Raises:
            UntrustedDelta, UnsupportedDelta, LimitExceeded: it cannot be used.
        """
        record = self._store.manifest(version) if version >= 0 else None
        if record is None:
            return None
        raw, digest = record
        if self._ring is not None and digest != known:
            self._ring.check_manifest(self._store, version, raw)
        return Manifest.from_json(raw, digest)

    def chain(self, first: int, last: int, start: Start | None) -> list[Manifest]:
        """The manifests of versions ``first`` to ``last``, each checked against the one before.

        Raises:
            BrokenChain: they do not link up, with each other or with ``start``.
            UntrustedDelta, UnsupportedDelta, LimitExceeded: one cannot be used.
        """
        try:
            records = self._store.chain(first, last, start)
        except BrokenChain:
            # If a record was altered, say so, and not that another does not fit to it.
            if self._ring is not None:
                for version in range(first, last + 1):
                    self.manifest(version)
            raise
        if self._ring is not None:
            for version, (raw, _) in enumerate(records, first):
                self._ring.check_manifest(self._store, version, raw)
        return [Manifest.from_json(raw, digest) for raw, digest in records]

    def has_skip(self, base: int, version: int) -> bool:
        """Whether there is a skip record from ``base`` to ``version``, whoever wrote it.

        Raises:
            UntrustedDelta, UnsupportedDelta, LimitExceeded: what is there is none.
        """
        return self._store.skip_records([(version, base)])[0] is not None

    def skips(self, ends: Sequence[tuple[Held, Manifest]], goal: Manifest) -> list[SkipRecord]:
        """The deltas there are from a base straight to the version of a manifest.

        Args:
            ends: bases, with digest and state, and manifests.
            goal: of the version that they are to lead to in the end.

        Raises:
            UntrustedDelta: it belongs to other manifests, or no trusted key signed it.
        """
        pairs = [(manifest.version, base.version) for base, manifest in ends]
        found = self._store.skip_records(pairs) if pairs else []
        return [
            self._skip(base, manifest, goal, record[0])
            for (base, manifest), record in zip(ends, found, strict=True)
            if record is not None
        ]

    def _skip(self, base: Held, manifest: Manifest, goal: Manifest, raw: bytes) -> SkipRecord:
        version = manifest.version
        if self._ring is not None:
            self._ring.check_skip(
                self._store, version, base.version, goal.version, manifest.run, raw
            )
        record = SkipRecord.from_json(raw)
        for what, claimed, own in (
            ("manifest", record.manifest, manifest.digest),
            ("result state", record.result_state, manifest.result_state),
            ("base", record.base.digest, base.digest),
            ("base state", record.base_state, base.state),
        ):
            if claimed != own:
                raise UntrustedDelta(
                    f"the skip record from version {base.version} has another {what} than the "
                    "board's manifests; tell the publisher",
                    version=version,
                    path=f"{self._url.rstrip('/')}/objects/{version}/from-{base.version}.json",
                )
        return record

    def anchor_digest(self, version: int) -> str | None:
        """The digest of a version's anchor record as it is stored, None without one."""
        found = self._store.anchor_record(version)
        return None if found is None else found[1]

    def anchor(self, manifest: Manifest, goal: Manifest) -> AnchorRecord | None:
        """The anchor record of a version, None if it has none.

        Args:
            manifest: of that version.
            goal: of the version that the anchor is to lead to.

        Raises:
            UntrustedDelta: it belongs to another manifest, or no trusted key signed it.
        """
        found = self._store.anchor_record(manifest.version)
        if found is None:
            return None
        raw, digest = found
        if self._ring is not None:
            named = goal.last_anchor
            vouched = named is not None and (named.version, named.digest) == (
                manifest.version,
                digest,
            )
            self._ring.check_anchor(
                self._store, manifest.version, goal.version, manifest.run, vouched, raw
            )
        record = AnchorRecord.from_json(raw, digest)
        if record.manifest != manifest.digest or record.result_state != manifest.result_state:
            raise UntrustedDelta(
                "the anchor record belongs to another manifest of this version",
                version=manifest.version,
                path=self._url,
            )
        return record
