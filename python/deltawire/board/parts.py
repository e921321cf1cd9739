"""What each of several writers does of one version: it uploads a part of the delta.

The first one has begun the version (:mod:`deltawire.board.pending`) and given a ticket to all.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from ..errors import LayoutMismatch, VersionConflict, WrongBase, WrongVersion
from ..types import Profile, Record, Tiling
from .attempt import attempted, uploaded_delta
from .changes import Tensors, source_of
from .manifest import ObjectRef, PartRef, State
from .transfer import Progress

if TYPE_CHECKING:
    from ..detect import Detector
    from .board import Board

#: Most parts of a version.
MAX_PARTS = 4096


@dataclass(frozen=True)
class PublishTicket(Record):
    """What ranks need to know of a version that is being published in parts.

    Small and immutable. It can be pickled; ``as_dict`` is JSON-ready, ``from_dict`` the inverse.

    Attributes:
        version: to be published.
        base_version, base_digest: the head, and the BLAKE3 of its manifest.
        base_state: 16 bytes, its state.
        write_id: random name of the attempt.
        epoch: of the publisher.
        parts: how many there are; ranks are 0 to ``parts - 1``.
        run: name of the run.
        profile, tiling, meta: as for ``publish``.
    """

    version: int
    base_version: int
    base_digest: str
    base_state: State
    write_id: str
    epoch: int
    parts: int
    run: str
    profile: Profile
    tiling: Tiling
    meta: Mapping[str, str]

    def __post_init__(self) -> None:
        if not 1 <= self.parts <= MAX_PARTS:
            raise ValueError(f"a version has 1 to {MAX_PARTS} parts, not {self.parts}")
        if self.profile not in get_args(Profile):
            raise ValueError(f"profile {self.profile!r} is not known")

    def owns(self, path: str, rank: int | None = None) -> bool:
        """Whether an object is a part, or that of ``rank``, that was uploaded with this ticket."""
        start = f"objects/{self.version}/"
        if not path.startswith(start):
            return False
        number, _, rest = path.removeprefix(start).partition("-")
        right = number.isdecimal() if rank is None else number == str(rank)
        return right and rest.startswith(f"{self.write_id}-")

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> PublishTicket:
        """The ticket of which this is ``as_dict``.

        Raises:
            ValueError: it is none.
        """
        try:
            tiling = Tiling(**value["tiling"])
            state = bytes.fromhex(value["base_state"])
            return cls(**{**value, "tiling": tiling, "base_state": state})
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a ticket: {error!r}") from error


@dataclass(frozen=True)
class UploadedPart(Record):
    """A part that is durable, for the publisher to commit.

    Can be pickled; ``as_dict`` is JSON-ready, ``from_dict`` the inverse.

    Attributes:
        version, write_id: of the ticket.
        rank: whose it is.
        path, bytes, blake3: of the object.
        records: hashes of its records, as in ``PartRef``.
        changed: elements that it changes.
        elements, dense_bytes: of this rank's shards.
        base_sum, result_sum: 16 bytes each, state digests of the shards before and after. Those of
            all ranks add up to the states of the versions.
        seconds: comparing, encoding and uploading.
    """

    version: int
    write_id: str
    rank: int
    path: str
    bytes: int
    blake3: str
    records: ObjectRef | None
    changed: int
    elements: int
    dense_bytes: int
    base_sum: State
    result_sum: State
    seconds: float

    @property
    def ref(self) -> PartRef:
        """As a manifest lists it."""
        return PartRef(self.path, self.bytes, self.blake3, self.records)

    @property
    def paths(self) -> list[str]:
        """Its objects."""
        return [self.path, *([] if self.records is None else [self.records.path])]

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> UploadedPart:
        """The part of which this is ``as_dict``.

        Raises:
            ValueError: it is none.
        """
        try:
            records = value["records"]
            sums = {name: bytes.fromhex(value[name]) for name in ("base_sum", "result_sum")}
            return cls(
                **{**value, **sums, "records": None if records is None else ObjectRef(**records)}
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not an uploaded part: {error!r}") from error


def upload_part(
    board: Board,
    ticket: PublishTicket,
    rank: int,
    *,
    base: Tensors | None = None,
    new: Tensors | None = None,
    detector: Detector | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> UploadedPart:
    """Upload one rank's part of a version; see :meth:`deltawire.Board.upload_part`."""
    if not 0 <= rank < ticket.parts:
        raise ValueError(f"rank {rank} of a version with {ticket.parts} parts")
    source = source_of(base, new, detector)
    _check_open(board, ticket)
    _check_base(board, ticket)
    started = time.perf_counter()
    store = board.store
    # A name that nobody has: a rank that is asked again does not touch what it uploaded before.
    path, records = store.part_paths(ticket.version, rank, ticket.write_id, secrets.token_hex(16))
    with attempted(store, ticket.version) as attempt:
        upload = store.upload(path)
        attempt.opened(upload, path)
        stats = source.write(
            upload,
            base_version=ticket.base_version,
            version=ticket.version,
            run=ticket.run,
            profile=ticket.profile,
            tiling=ticket.tiling,
            threads=threads,
            meta=ticket.meta,
            base_state=None,
            progress=progress,
        )
        if stats.base_state is None or stats.result_state is None:
            raise WrongBase("the shards' digests are not known; give the whole base of each")
        part = uploaded_delta(attempt, upload, records, stats.record_hashes)
        # Nobody knows of this part yet, so it can go if it came too late.
        _check_open(board, ticket)
    return UploadedPart(
        ticket.version,
        ticket.write_id,
        rank,
        part.path,
        part.bytes,
        part.blake3,
        part.records,
        stats.changed,
        source.elements,
        source.dense_bytes,
        stats.base_state,
        stats.result_state,
        time.perf_counter() - started,
    )


def _check_open(board: Board, ticket: PublishTicket) -> None:
    """See that the version can still be published with this ticket."""
    board.store.check_epoch(ticket.epoch)
    if board.store.has_version(ticket.version):
        raise VersionConflict(
            "this version exists already; what is uploaded now belongs to no version",
            version=ticket.version,
            path=board.url,
        )


def _check_base(board: Board, ticket: PublishTicket) -> None:
    found = board.records.manifest(ticket.base_version, ticket.base_digest)
    if found is None or found.digest != ticket.base_digest:
        what = "has no such version" if found is None else "has another manifest of this version"
        raise WrongVersion(
            f"the ticket goes on from version {ticket.base_version} with manifest "
            f"{ticket.base_digest}, but this board {what}; every rank opens the publisher's board",
            version=ticket.base_version,
            path=board.url,
        )


def in_order(ticket: PublishTicket, parts: list[UploadedPart]) -> list[UploadedPart]:
    """The parts of all ranks, by rank.

    Raises:
        WrongVersion: one is of another attempt.
        LayoutMismatch: one is missing, or there twice.
    """
    for part in parts:
        names = all(ticket.owns(path, part.rank) for path in part.paths)
        if (part.version, part.write_id) != (ticket.version, ticket.write_id) or not names:
            raise WrongVersion(
                f"the part of rank {part.rank} was uploaded for version {part.version} in attempt "
                f"{part.write_id}, not in {ticket.write_id}; upload it with this attempt's ticket",
                version=ticket.version,
                path=part.path,
            )
    by_rank = {part.rank: part for part in parts}
    missing = [rank for rank in range(ticket.parts) if rank not in by_rank]
    if missing or len(parts) != ticket.parts:
        ranks = [part.rank for part in parts]
        what = (
            f"there is none of rank {missing[0]}"
            if missing
            else f"rank {next(rank for rank in ranks if ranks.count(rank) > 1)} is there twice"
        )
        raise LayoutMismatch(
            f"{len(parts)} parts of {ticket.parts}, and {what}; commit one part of every rank",
            version=ticket.version,
        )
    return [by_rank[rank] for rank in range(ticket.parts)]
