"""What all detectors share: the base's digests, and proving changes against them.

A detector keeps no copy of what receivers hold, but the digest of each piece of it (16 bytes for
8,192 elements, ``spec/digest-v1.md``). What it found is proven tile by tile: the elements now,
with the old ones put back, must have the digest that was kept. So no change can be missed
silently, whoever made it; a tile that does not prove right is sent whole.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _native
from ..closing import Closing
from ..digest import combine
from ..errors import LayoutMismatch, WrongBase
from ..tensors import ITEMSIZE, TensorView
from ..types import Changes, Tiling
from .journal import Found, nothing
from .ondevice import DeviceTiles, Proven, Tile, on_device, total
from .parts import parts_of
from .report import Proof
from .served import Box, Part, torch_from

if TYPE_CHECKING:
    import torch.distributed as dist

    from ..stream import Progress, StreamWriter

#: Served bytes of the tiles that are read at once.
_BATCH_BYTES = 16 << 20


class Detector(Closing):
    """Finds the elements whose served value changed since the base, without a copy of it.

    The base is what the model holds when the detector is made, and after that what was last
    published or collected. A detector belongs to one rank: it reads that rank's shards, and
    publishes each element on one rank only.

    Args:
        model: module, or mapping of names in the checkpoint to parameters.
        view: what receivers serve: a dtype to which floating-point parameters are cast, or a
            callback ``(name, tensor) -> {name: tensor}`` for anything else, such as quantised
            blocks with their scales; it is called with one whole parameter at a time.
        tiling: how tensors are cut into tiles.
        threads: as many as processors where None.
        ranks: the process group of all ranks that hold some of the model, if there are several:
            each of them makes its detector at the same time, they tell one another what they hold,
            and decide who publishes what several of them hold. It carries Python objects, as a
            gloo group does.
        stepped: ids of the parameters that an optimizer of this rank steps.

    Attributes:
        state: state digest of what this rank holds of the base, 16 bytes. Those of all ranks add
            up to the version's.
        proof: how the last version's changes were proven, None before the first.

    Raises:
        LayoutMismatch: a parameter that cannot be carried, or a shard that is no box of its matrix.
    """

    proof: Proof | None = None

    def __init__(
        self,
        model: Any,
        *,
        view: Any = None,
        tiling: Tiling | None = None,
        threads: int | None = None,
        ranks: dist.ProcessGroup | None = None,
        stepped: set[int] | None = None,
    ) -> None:
        self._threads, self._ranks = threads, ranks
        self._tiling = tiling or Tiling()
        self._parts = parts_of(
            model, view=view, tiling=self._tiling, ranks=ranks, stepped=stepped or set()
        )
        self._kept: dict[str, list[bytes]] = {}
        self._written: Mapping[str, list[bytes]] | None = None
        self._starts: dict[str, bytes] = {}
        for part in self._parts.mine:
            findings = _findings(part, nothing(ITEMSIZE[part.dtype]))
            kept: list[bytes] = []
            source = part.source()
            for batch in _batches(part, findings):
                if on_device(source):
                    kept += DeviceTiles(part, source).digests(batch)
                    continue
                kept += findings.digests(
                    [(tile, part.read(source, box)) for tile, box, _ in batch], threads
                )
            self._kept[part.name], self._starts[part.name] = kept, bytes(findings.start())
            part.origin.release()

    def close(self) -> None:
        """Leave the optimizer as it was; again does nothing."""

    @abstractmethod
    def _found(self, part: Part) -> Found:
        """What may have changed of a part since the base."""

    @abstractmethod
    def _restart(self) -> None:
        """What is held now is the base."""

    def _wrote(self) -> None:
        """Changes up to now have been written."""

    def _adopt(self) -> None:
        """What was written last is the base, whatever has happened since."""
        self.settle()

    def exchange(self) -> None:
        """Tell other ranks what was found in their tiles; all ranks call it."""

    def _lost(self, part: Part) -> str | None:
        """Why changes of a part may be unknown, if they may."""
        return None

    @property
    def tensors(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The tensor table, of all ranks: names to served dtypes and whole shapes, in order."""
        return {name: (dtype, shape) for name, (dtype, shape, _) in self._parts.all.items()}

    @property
    def mine(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Those of which this rank publishes something."""
        return {p.name: (p.dtype, p.shape) for p in self._parts.mine}

    @property
    def tiles(self) -> dict[str, tuple[int, int]]:
        """Rows and columns of each tensor's tiles: no rank's shard cuts one."""
        return {name: tile for name, (_, _, tile) in self._parts.all.items()}

    @property
    def tiling(self) -> Tiling:
        """How tensors are cut where shards leave the choice."""
        return self._tiling

    @property
    def ranks(self) -> dist.ProcessGroup | None:
        """The process group of all ranks that publish together."""
        return self._ranks

    @property
    def parts(self) -> int:
        """Number of tensors of which this rank publishes something."""
        return len(self._parts.mine)

    @property
    def elements(self) -> int:
        """Elements that this rank publishes."""
        return sum(part.elements for part in self._parts.mine)

    @property
    def dense_bytes(self) -> int:
        """Served bytes of them."""
        return sum(part.nbytes for part in self._parts.mine)

    @property
    def state(self) -> bytes:
        """State digest of what this rank holds of the base; 16 bytes."""
        return self._state(self._kept)

    def _state(self, kept: Mapping[str, list[bytes]]) -> bytes:
        sums = []
        for name, digests in kept.items():
            sums.append(combine(self._starts[name], total(b"".join(digests))))
        return combine(*sums)

    def served(self) -> Iterator[tuple[str, TensorView]]:
        """What receivers serve of each tensor as it is now, whole, one after another.

        For the first anchor: ``dict(detector.served())``, or one by one into a file.

        Raises:
            LayoutMismatch: this rank holds a shard only.
        """
        for part in self._parts.mine:
            source = part.source()
            _, rows, _, cols = part.place
            data = part.read(source, part.place)[0]
            if len(self._parts.all) != len(self._parts.mine) or (rows, cols) != _whole(part):
                raise LayoutMismatch(
                    "this rank holds a shard only; gather the model for an anchor", tensor=part.name
                )
            yield part.name, TensorView(part.dtype, part.shape, data)
            part.origin.release()

    def collect(self) -> Iterator[tuple[str, Changes]]:
        """Changes since the base, proven, tensor by tensor; what is held now is the base then.

        Tensors come in the order of ``tensors``, those that did not change are left out. A tile
        that does not prove right is given whole, with ``certified`` false. The base moves on once
        all were taken; if the iteration ends before, nothing has happened. Do not step meanwhile.
        """
        proof, after = Proof(), {}
        started = time.perf_counter()
        for part in self._parts.mine:
            findings = _findings(part, self._found(part), blind=self._lost(part) is not None)
            kept: list[bytes] = []
            changes = _Collected(part)
            source = part.source()
            for batch in _batches(part, findings):
                before = self._kept[part.name][len(kept) : len(kept) + len(batch)]
                matrices = [part.read(source, box) for _, box, _ in batch]
                rewound = findings.rewind(
                    [(t, m, b) for (t, *_), m, b in zip(batch, matrices, before, strict=True)],
                    self._threads,
                )
                for (_, box, _), matrix, (how, digests, *found) in zip(
                    batch, matrices, rewound, strict=True
                ):
                    kept.append(digests)
                    proof.note(part.name, how, box[1] * box[3])
                    changes.add(how, box, matrix, *found)
                # Before the next ones are read.
                del matrices, matrix, rewound
            after[part.name] = kept
            part.origin.release()
            if changes.count:
                yield part.name, changes.changes()
        self._end(proof, started, after)

    def write(self, writer: StreamWriter, *, progress: Progress | None = None) -> None:
        """Write the changes since the base, proven, into a delta with this detector's tensors.

        The base stays until :meth:`settle`.
        """
        self._written = None
        proof, after = Proof(), {}
        started = time.perf_counter()
        for part in self._parts.mine:
            kept: list[bytes] = []
            for batch, told in self._written_tiles(writer, part):
                for (_, box, _), (how, digests) in zip(batch, told, strict=True):
                    kept.append(digests)
                    proof.note(part.name, how, box[1] * box[3])
                if progress is not None:
                    width = ITEMSIZE[part.dtype]
                    progress(sum(box[1] * box[3] for _, box, _ in batch) * width)
            after[part.name] = kept
            part.origin.release()
        self._report(proof, started)
        self._written = after
        self._wrote()

    def settle(self) -> None:
        """What :meth:`write` wrote last is published: it is the base now.

        ``publish`` calls it. After ``upload_part`` every rank does, once the version is committed.

        Raises:
            ValueError: nothing was written since the base.
        """
        if self._written is None:
            raise ValueError("nothing was written since the base; publish first")
        self._kept.update(self._written)
        self._written = None
        self._restart()

    def require_base(self, state: bytes, *, version: int | None = None) -> None:
        """See that the base has a state digest.

        If what was written last has it, that was published although the store said otherwise, and
        is the base from now on.

        Raises:
            WrongBase: neither has.
        """
        mine = self.state
        if mine != state and self._written is not None and self._state(self._written) == state:
            self._adopt()
            return
        if mine != state:
            raise WrongBase(
                f"the detector's base has the state {mine.hex()}, this version has {state.hex()}; "
                "make the detector while the model holds the version that changes are to follow",
                version=version,
            )

    def _end(self, proof: Proof, started: float, after: Mapping[str, list[bytes]]) -> None:
        self._report(proof, started)
        self._written = after
        self.settle()

    def _report(self, proof: Proof, started: float) -> None:
        proof.seconds = time.perf_counter() - started
        self.proof = proof
        lost = {part.name: self._lost(part) for part in self._parts.mine}
        proof.log({name: why for name, why in lost.items() if why is not None})

    def _written_tiles(
        self, writer: StreamWriter, part: Part
    ) -> Iterator[tuple[list[Tile], list[tuple[str, bytes]]]]:
        """Write a part's tiles, some at a time: how each was proven, and its digests after."""
        found = self._found(part)
        findings = _findings(part, found, blind=self._lost(part) is not None)
        index = writer.begin_detected(part.name, findings)
        source, done = part.source(), 0
        kept = self._kept[part.name]
        device = None
        if on_device(source) and writer.profile != "overwrite":
            device = DeviceTiles(part, source, found, findings)
        for batch in _batches(part, findings):
            before = kept[done : done + len(batch)]
            done += len(batch)
            told: list[tuple[str, bytes]] = []
            proven = [Proven(None)] * len(batch) if device is None else device.prove(batch, before)
            # Tiles go into the delta in order, whichever way they were proven.
            for same, run in groupby(
                zip(batch, before, proven, strict=True), lambda one: one[2].after is None
            ):
                some = list(run)
                if same:
                    told += writer.add_detected(
                        index,
                        findings,
                        [(tile, part.read(source, box), b) for (tile, box, _), b, _ in some],
                    )
                    continue
                writer.add_proven(
                    part.name,
                    index,
                    [
                        (tile, one.partition, total(b), total(one.after or b""))
                        for (tile, _, _), b, one in some
                    ],
                )
                told += [
                    ("settled" if one.settled else "told", one.after or b"") for _, _, one in some
                ]
            yield batch, told


def _batches(part: Part, findings: _native.Findings) -> Iterator[list[Tile]]:
    """Tiles, some at a time."""
    width = ITEMSIZE[part.dtype]
    batch: list[Tile] = []
    size = 0
    for tile, row, rows, col, cols, piece_rows in findings.tiles():
        batch.append((tile, (row, rows, col, cols), piece_rows))
        size += rows * cols * width
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _findings(part: Part, found: Found, *, blind: bool = False) -> _native.Findings:
    return _native.Findings(
        part.name,
        part.dtype,
        list(part.shape),
        part.tile,
        part.place,
        np.ascontiguousarray(found.positions, np.int64),
        found.sure.tobytes(),
        found.old.tobytes(),
        found.other.tobytes(),
        blind,
    )


def _whole(part: Part) -> tuple[int, int]:
    from ..tensors import matrix_shape

    return matrix_shape(part.shape)


class _Collected:
    """Changes of one tensor, tile by tile."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._bits = np.dtype(f"u{ITEMSIZE[part.dtype]}")
        self._lists: list[tuple[Any, Any, Any, Any]] = []
        self.count = 0

    def add(self, how: str, box: Box, matrix: Any, *found: bytes) -> None:
        """Add a tile's: positions, old and new elements."""
        positions, old, new = found
        row, rows, col, cols = box
        certified = how not in ("open", "wrong")
        if certified:
            at = np.frombuffer(positions, np.uint32).astype(np.int64)
            before, after = np.frombuffer(old, self._bits), np.frombuffer(new, self._bits)
        else:
            at = np.arange(rows * cols, dtype=np.int64)
            after = np.ascontiguousarray(matrix[0]).view(self._bits).reshape(-1)
            before = after
        if not len(at):
            return
        local = (row - self._part.place[0] + at // cols) * self._part.place[3]
        local += col - self._part.place[2] + at % cols
        self._lists.append((local, after, before, np.full(len(at), certified)))
        self.count += len(at)

    def changes(self) -> Changes:
        """All of them, ascending."""
        positions, values, old, certified = (
            np.concatenate(list(column)) for column in zip(*self._lists, strict=True)
        )
        order = np.argsort(positions, kind="stable")
        return Changes(
            positions[order], self._typed(values[order]), certified[order], self._typed(old[order])
        )

    def _typed(self, bits: Any) -> Any:
        return torch_from(bits).view(self._part.origin.served()[self._part.name])
