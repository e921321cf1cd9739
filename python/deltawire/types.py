"""What deltawire returns: plain, frozen dataclasses.

Digests are 16 bytes as in ``spec/digest-v1.md``. ``as_dict`` gives JSON-ready values with digests
as hexadecimal text.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

#: A state digest of 16 bytes. A name of its own, since some records have a field ``bytes``.
StateDigest = bytes
#: 32 bytes a record.
RecordHashes = bytes

#: What a writer optimises for: size, speed, or independence of the base.
Profile = Literal["compact", "fast", "overwrite"]


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Path):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        shown = [f.name for f in dataclasses.fields(value) if f.metadata.get("shown", True)]
        return {name: _plain(getattr(value, name)) for name in shown}
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


class Record:
    """Base of the result types."""

    #: Properties that ``as_dict`` shows beside the fields.
    _derived: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Fields and derived figures as JSON-ready values."""
        out: dict[str, Any] = _plain(self)
        for name in self._derived:
            out[name] = _plain(getattr(self, name))
        return out


class Sized(Record):
    """Ratios of what has ``elements``, ``changed``, ``bytes`` and ``dense_bytes``."""

    elements: int
    changed: int
    bytes: int
    dense_bytes: int
    _derived = ("bits_per_change", "density", "ratio")

    @property
    def bits_per_change(self) -> float:
        """Bits of the whole delta per changed element; NaN where none changed."""
        return 8 * self.bytes / self.changed if self.changed else math.nan

    @property
    def density(self) -> float:
        """Changed elements by all elements."""
        return self.changed / self.elements if self.elements else 0.0

    @property
    def ratio(self) -> float:
        """Dense bytes by bytes of the delta."""
        return self.dense_bytes / self.bytes if self.bytes else math.nan


@dataclass(frozen=True)
class Changes:
    """Changed elements of one tensor.

    Attributes:
        positions: int64, strictly ascending, flat (row-major) in the tensor.
        values: as many new elements, of the tensor's dtype or as raw bytes of it.
        certified: bool, whether the elements before are known and proven; None: not said.
        old: as many elements before; where they are not certified, the new ones. None: not known.
    """

    positions: npt.NDArray[np.int64]
    values: Any
    certified: npt.NDArray[np.bool_] | None = None
    old: Any = None


@dataclass(frozen=True)
class DeltaStats(Sized):
    """What writing a delta gave.

    Attributes:
        elements: elements of all tensors in the table.
        changed: elements that the delta carries.
        dense_bytes: bytes of all elements.
        bytes: bytes of the delta, all headers counted.
        chunks: tiles with changes.
        base_state: state digest of the base; None where a tensor's base was not given.
        result_state: state digest after the delta; None likewise. Of shards, both are sums over
            what was added; those of all ranks add up (``deltawire.digest.combine``).
        seconds: wall time.
        record_hashes: BLAKE3 of the header, of each chunk, and of index and trailer together, 32
            bytes each: what who reads parts of a stored delta checks them with.
    """

    elements: int
    changed: int
    dense_bytes: int
    bytes: int
    chunks: int
    base_state: StateDigest | None
    result_state: StateDigest | None
    seconds: float
    record_hashes: RecordHashes = field(repr=False, metadata={"shown": False})


@dataclass(frozen=True)
class ApplyStats(Record):
    """What applying a delta did.

    Attributes:
        chunks: chunks of the delta.
        skipped: chunks whose tile had the result already.
        changed: elements written.
        result_state: proven state digest of the delta's tensors; None with ``verify=False``.
        stage_seconds: wall time of reading, checking and proving.
        commit_seconds: wall time of writing, during which the target is in between.
    """

    chunks: int
    skipped: int
    changed: int
    result_state: StateDigest | None
    stage_seconds: float
    commit_seconds: float


@dataclass(frozen=True)
class TensorInfo(Record):
    """One tensor of a delta.

    Attributes:
        name: name in the checkpoint.
        dtype: safetensors name.
        shape: the tensor's own shape.
        tile: rows and columns of a tile, in elements.
        elements: number of elements.
        changed: elements that the delta carries.
        chunks: tiles with changes.
        bytes: bytes of their chunks.
        digest: first four bytes of the tensor's state digest after the delta; None where not
            known.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    tile: tuple[int, int]
    elements: int
    changed: int
    chunks: int
    bytes: int
    digest: StateDigest | None


@dataclass(frozen=True)
class DeltaInfo(Sized):
    """What a delta says about itself, with every chunk's checksum verified.

    Attributes:
        path: file that it was read from, if one.
        format: version of the format, "1.0".
        run: name of the run.
        version: version that the delta leads to.
        base_version: version that it starts from; None: no base needed.
        profile: profile that it was written with.
        meta: free text.
        bytes: bytes of the whole delta.
        header_bytes: of them, before the first chunk.
        index_bytes: of them, after the last chunk.
        elements: elements of all tensors.
        changed: elements that the delta carries.
        chunks: tiles with changes.
        dense_bytes: bytes of all elements.
        base_state: state digest of the base; None where not known.
        result_state: state digest after the delta; None where not known.
        tensors: the tensor table.
        codecs: number of chunks by "positions+values" codec.
    """

    path: str | None
    format: str
    run: str
    version: int
    base_version: int | None
    profile: str
    meta: dict[str, str]
    bytes: int
    header_bytes: int
    index_bytes: int
    elements: int
    changed: int
    chunks: int
    dense_bytes: int
    base_state: StateDigest | None
    result_state: StateDigest | None
    tensors: list[TensorInfo] = field(repr=False)
    codecs: dict[str, int]


@dataclass(frozen=True)
class Limits:
    """What a reader accepts; a claim above is refused before memory is taken for it.

    Attributes:
        max_header_bytes: bytes of header and index payload each, also after decompression.
        max_tensors: entries of the tensor table.
        max_chunk_bytes: bytes of one chunk record.
    """

    max_header_bytes: int = 256 << 20
    max_tensors: int = 1 << 20
    max_chunk_bytes: int = 72 << 20

    def as_tuple(self) -> tuple[int, int, int]:
        """For the native module."""
        return self.max_header_bytes, self.max_tensors, self.max_chunk_bytes


@dataclass(frozen=True)
class Tiling:
    """How a writer cuts tensors into tiles, the unit of coding, checking and fetching.

    Attributes:
        max_elements: most elements of a tile of two bytes an element or less; wider elements have
            as many bytes. Larger tiles cost fewer bytes in headers, smaller ones let a reader fetch
            less.
        ways: tensor-parallel splits up to this many ways fall on tile borders where shapes allow.
        min_elements: parts smaller than this are not cut off.
    """

    max_elements: int = 1 << 20
    ways: int = 8
    min_elements: int = 1 << 19
