"""What a board says about a version, as Python objects.

The Rust core reads, bounds and validates the records (``spec/commit-v1.md``); these classes
show them, and turn them into JSON for a commit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from .. import _native
from ..types import Record

# ``bytes`` is also a figure of the classes below.
_Bytes: TypeAlias = bytes
#: A state digest, 16 bytes.
State: TypeAlias = _Bytes


@dataclass(frozen=True)
class ObjectRef(Record):
    """An immutable object that a record vouches for.

    Attributes:
        path: from the board's root.
        bytes: its length.
        blake3: of its bytes, 64 hexadecimal digits.
    """

    path: str
    bytes: int
    blake3: str


@dataclass(frozen=True)
class PartRef(ObjectRef):
    """A version's delta.

    Attributes:
        records: an object with the BLAKE3 of each record, 32 bytes each, for those who fetch parts
            of it (see ``DeltaStats.record_hashes``); None: it can only be fetched whole.
    """

    records: ObjectRef | None = None


@dataclass(frozen=True)
class BlocksRef(ObjectRef):
    """Hashes of the blocks of a file.

    Attributes:
        block_bytes: bytes of a block, a power of two; the file's last one may be shorter.
    """

    block_bytes: int


@dataclass(frozen=True)
class AnchorFile(ObjectRef):
    """A file of an anchor.

    Attributes:
        blocks: an object with the BLAKE3 of each of its blocks, 32 bytes each, for those who read
            parts of it; None: only the whole can be checked.
    """

    blocks: BlocksRef | None = None


@dataclass(frozen=True)
class AnchorFiles(Record):
    """A full checkpoint on the board: its directory, and every file in it."""

    path: str
    files: tuple[AnchorFile, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.bytes for file in self.files)

    @property
    def objects(self) -> tuple[ObjectRef, ...]:
        """All that lies in the directory: the files, and the hashes of their blocks."""
        blocks = (file.blocks for file in self.files if file.blocks is not None)
        return (*self.files, *blocks)

    def relative(self, file: ObjectRef) -> str:
        """The file's path within the checkpoint directory."""
        return file.path.removeprefix(f"{self.path}/")


@dataclass(frozen=True)
class VersionRef(Record):
    """Another version, with the digest of its manifest (or anchor record)."""

    version: int
    digest: str


@dataclass(frozen=True)
class Manifest(Record):
    """One committed version.

    Attributes:
        version: its number.
        parent: the version before; None for the first of a board.
        base_state: 16 bytes, the state that the delta starts from; None without a delta.
        result_state: 16 bytes, the state of this version.
        objects: the delta: one object, or the parts of several writers.
        anchor: a full checkpoint of this version, committed with it.
        last_anchor: the newest anchor of an earlier version when this one was committed.
        elements, changed: of all tensors, and those that the delta changes.
        dense_bytes: bytes of all tensors.
        epoch: of the publisher; rises with every publisher that is opened.
        write_id: random name of the attempt that committed it.
        time: of the commit, in seconds since 1970; informative.
        meta: the publisher's own text.
        skips: spans of the skip records that lead to this version, if they were added: one from
            ``version - span`` each.
        signer: name of the key that it says it is signed with; empty without a signature. True
            only where the board was opened with trusted keys.
        digest: BLAKE3 of the manifest's bytes, 64 hexadecimal digits; empty before a commit.
    """

    _derived = ("bytes", "bits_per_change")

    version: int
    parent: VersionRef | None
    base_state: State | None
    result_state: State
    objects: tuple[PartRef, ...]
    anchor: AnchorFiles | None
    last_anchor: VersionRef | None
    elements: int
    changed: int
    dense_bytes: int
    epoch: int
    write_id: str
    time: float
    run: str = ""
    meta: Mapping[str, str] = field(default_factory=dict)
    skips: tuple[int, ...] = ()
    signer: str = ""
    digest: str = ""

    @property
    def parent_version(self) -> int | None:
        """The version before."""
        return None if self.parent is None else self.parent.version

    @property
    def parent_digest(self) -> str | None:
        """BLAKE3 of the manifest of the version before."""
        return None if self.parent is None else self.parent.digest

    @property
    def bytes(self) -> int:
        """Bytes of the delta; 0 for a version that only has an anchor."""
        return sum(item.bytes for item in self.objects)

    @property
    def bits_per_change(self) -> float:
        """Bits of the delta for each changed element; nan where nothing changed."""
        return 8 * self.bytes / self.changed if self.objects and self.changed else math.nan

    @property
    def ref(self) -> VersionRef:
        """Version and digest, as a child names them."""
        return VersionRef(self.version, self.digest)

    @classmethod
    def from_json(cls, raw: _Bytes, digest: str) -> Manifest:
        """Read a manifest that the Rust core has validated."""
        value = json.loads(raw)
        anchor = value.get("anchor")
        base = value["base_state"]
        return cls(
            version=value["version"],
            parent=_version_ref(value["parent"]),
            base_state=None if base is None else bytes.fromhex(base),
            result_state=bytes.fromhex(value["result_state"]),
            objects=tuple(_part(item) for item in value["objects"]),
            anchor=None if anchor is None else anchor_files(anchor),
            last_anchor=_version_ref(value.get("last_anchor")),
            elements=value.get("elements", 0),
            changed=value.get("changed", 0),
            dense_bytes=value.get("dense_bytes", 0),
            epoch=value["epoch"],
            write_id=value["write_id"],
            time=value["time_ms"] / 1000,
            run=value.get("run", ""),
            meta=value.get("meta", {}),
            skips=tuple(value.get("skips", ())),
            signer=_native.record_signer(raw) or "",
            digest=digest,
        )

    def to_json(self) -> _Bytes:
        """JSON for the Rust core, which checks it and stores it in canonical form."""
        return _json(
            {
                "format": 1,
                "run": self.run,
                "version": self.version,
                "parent": None if self.parent is None else self.parent.as_dict(),
                "base_state": None if self.base_state is None else self.base_state.hex(),
                "result_state": self.result_state.hex(),
                "objects": _parts(self.objects),
                "anchor": None if self.anchor is None else self.anchor.as_dict(),
                "last_anchor": None if self.last_anchor is None else self.last_anchor.as_dict(),
                "elements": self.elements,
                "changed": self.changed,
                "dense_bytes": self.dense_bytes,
                "epoch": self.epoch,
                "write_id": self.write_id,
                "time_ms": round(self.time * 1000),
                "skips": list(self.skips),
                "meta": dict(self.meta),
            }
        )


@dataclass(frozen=True)
class AnchorRecord(Record):
    """An anchor added to a version after it was committed."""

    version: int
    manifest: str
    result_state: State
    anchor: AnchorFiles
    epoch: int
    write_id: str
    time: float
    digest: str = ""

    @classmethod
    def from_json(cls, raw: bytes, digest: str) -> AnchorRecord:
        """Read a record that the Rust core has validated."""
        value = json.loads(raw)
        return cls(
            version=value["version"],
            manifest=value["manifest"],
            result_state=bytes.fromhex(value["result_state"]),
            anchor=anchor_files(value["anchor"]),
            epoch=value["epoch"],
            write_id=value["write_id"],
            time=value["time_ms"] / 1000,
            digest=digest,
        )

    def to_json(self) -> bytes:
        """JSON for the Rust core, which checks it and stores it in canonical form."""
        return _json(
            {
                "format": 1,
                "version": self.version,
                "manifest": self.manifest,
                "result_state": self.result_state.hex(),
                "anchor": self.anchor.as_dict(),
                "epoch": self.epoch,
                "write_id": self.write_id,
                "time_ms": round(self.time * 1000),
            }
        )


@dataclass(frozen=True)
class SkipRecord(Record):
    """A delta that leads from an earlier version straight to a later one.

    Attributes:
        version: that it leads to.
        manifest: BLAKE3 of that version's manifest, 64 hexadecimal digits.
        base: the version that it starts from, with the BLAKE3 of its manifest.
        base_state, result_state: 16 bytes, the states of the two.
        objects: the delta.
        changed: elements that it changes.
        write_id: random name of the attempt that wrote it.
        time: of the commit, in seconds since 1970; informative.
    """

    version: int
    manifest: str
    base: VersionRef
    base_state: State
    result_state: State
    objects: tuple[PartRef, ...]
    changed: int
    write_id: str
    time: float

    @classmethod
    def from_json(cls, raw: bytes) -> SkipRecord:
        """Read a record that the Rust core has validated."""
        value = json.loads(raw)
        base = value["base"]
        return cls(
            version=value["version"],
            manifest=value["manifest"],
            base=VersionRef(base["version"], base["digest"]),
            base_state=bytes.fromhex(value["base_state"]),
            result_state=bytes.fromhex(value["result_state"]),
            objects=tuple(_part(item) for item in value["objects"]),
            changed=value.get("changed", 0),
            write_id=value["write_id"],
            time=value["time_ms"] / 1000,
        )

    def to_json(self) -> bytes:
        """JSON for the Rust core, which checks it and stores it in canonical form."""
        return _json(
            {
                "format": 1,
                "version": self.version,
                "manifest": self.manifest,
                "base": self.base.as_dict(),
                "base_state": self.base_state.hex(),
                "result_state": self.result_state.hex(),
                "objects": _parts(self.objects),
                "changed": self.changed,
                "write_id": self.write_id,
                "time_ms": round(self.time * 1000),
            }
        )


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def _parts(parts: tuple[PartRef, ...]) -> list[dict[str, Any]]:
    return [
        {key: item for key, item in part.as_dict().items() if item is not None} for part in parts
    ]


def anchor_files(value: Mapping[str, Any]) -> AnchorFiles:
    """The ``anchor`` value of a validated record."""
    return AnchorFiles(value["path"], tuple(_anchor_file(item) for item in value["files"]))


def _anchor_file(value: Mapping[str, Any]) -> AnchorFile:
    blocks = value.get("blocks")
    if blocks is not None:
        blocks = BlocksRef(**_only_object(blocks), block_bytes=blocks["block_bytes"])
    return AnchorFile(**_only_object(value), blocks=blocks)


def _part(value: Mapping[str, Any]) -> PartRef:
    records = value.get("records")
    return PartRef(
        **_only_object(value),
        records=None if records is None else ObjectRef(**_only_object(records)),
    )


def _only_object(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value[key] for key in ("path", "bytes", "blake3")}


def _version_ref(value: Mapping[str, Any] | None) -> VersionRef | None:
    return None if value is None else VersionRef(value["version"], value["digest"])
