"""Proving and classing tiles where they lie, on a device: only O(changes) bytes come to the host.

The twin of ``rust/format/src/rewind.rs``. Of what is in doubt the likelier value is taken; a piece
that then disagrees, 16 KiB of BF16, is brought over and settled by that code. Work of all tiles of
a batch is queued on the current stream before the first result is waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _native
from ..digest import PRIME
from ..partition import Partition
from ..tensors import ITEMSIZE, NativeMatrix, matrix_shape
from .device import Key, choose, digest, exponents, key, start_partition
from .journal import Found, nothing
from .served import Box, Part, integers_of, torch_from
from .tiles import EXPONENTS

if TYPE_CHECKING:
    import torch

#: A tile's number, box, and rows of a piece.
Tile = tuple[int, Box, int]


def on_device(tensor: torch.Tensor) -> bool:
    """Whether a tensor's tiles are proven where they lie."""
    return bool(tensor.device.type == "cuda")


@dataclass(frozen=True)
class Proven:
    """What came of one tile.

    Attributes:
        after: digests of its pieces now; None where the base was not found: bring the tile over.
        partition: its changes, if there are any.
        settled: whether some piece was settled on the host.
    """

    after: bytes | None
    partition: Partition | None = None
    settled: bool = False


@dataclass
class _Work:
    """A tile that is being proven."""

    new: torch.Tensor
    base: torch.Tensor
    #: Elements that were named.
    named: torch.Tensor
    #: Digests of the base's pieces, and of those now.
    sums: torch.Tensor
    right: bool = True
    settled: bool = False


class DeviceTiles:
    """Tiles of one part, on its device.

    Args:
        part, source: the part and what its tiles are read from.
        found, findings: what a detector found in it; for :meth:`prove`.
    """

    def __init__(
        self,
        part: Part,
        source: torch.Tensor,
        found: Found | None = None,
        findings: _native.Findings | None = None,
    ) -> None:
        self._part, self._source = part, source
        self._found = nothing(ITEMSIZE[part.dtype]) if found is None else found
        self._findings = findings
        self._old = torch_from(self._found.old).to(source.device)
        self._key: Key = key(part.name, part.dtype, part.shape)
        _, cols = matrix_shape(part.shape)
        self._words = -(-cols * ITEMSIZE[part.dtype] // 8)
        self._dtype = part.origin.served()[part.name]
        self._integers = integers_of(ITEMSIZE[part.dtype])

    def digests(self, tiles: Sequence[Tile]) -> list[bytes]:
        """Digests of the pieces of each tile, 16 bytes a piece."""
        import torch

        sums = [self._pieces(self._tile(box), box, rows) for _, box, rows in tiles]
        host = torch.cat(sums).cpu().numpy() if sums else np.empty((0, 2), np.int64)
        out, done = [], 0
        for one in sums:
            out.append(host[done : done + len(one)].tobytes())
            done += len(one)
        return out

    def prove(self, tiles: Sequence[Tile], before: Sequence[bytes]) -> list[Proven]:
        """Prove what was found in some tiles against the digests of their pieces before."""
        import torch

        works = []
        for _, box, rows in tiles:
            new = self._tile(box)
            base = new.clone()
            here, which = self._within(box)
            self._flat(base)[here] = self._old[which]
            sums = torch.cat([self._pieces(base, box, rows), self._pieces(new, box, rows)])
            works.append(_Work(new, base, here, sums))
        host = torch.cat([work.sums for work in works]).cpu().numpy()
        after, done = [], 0
        for tile, work, kept in zip(tiles, works, before, strict=True):
            n = len(work.sums) // 2
            sums = host[done : done + 2 * n]
            done += 2 * n
            after.append(sums[n:].tobytes())
            wrong = [i for i in range(n) if sums[i].tobytes() != kept[16 * i : 16 * i + 16]]
            if wrong:
                self._settle(tile, work, wrong, kept)
        moved = []
        for work in works:
            differ = self._flat(work.base)[work.named] != self._flat(work.new)[work.named]
            moved.append(work.named[differ])
        classes = self._classes([(w.base, m) for w, m in zip(works, moved, strict=True) if w.right])
        pending: list[Any] = []
        for (number, _, _), work, digests, here in zip(tiles, works, after, moved, strict=True):
            result = int.from_bytes(total(digests)[:8], "little")
            pending.append(
                start_partition(
                    work.base, here, work.new, number, *classes, result, dtype=self._part.dtype
                )
                if work.right and len(here)
                else None
            )
        return [
            Proven(
                digests if work.right else None,
                None if wait is None else wait.wait(),
                work.settled,
            )
            for wait, work, digests in zip(pending, works, after, strict=True)
        ]

    def _settle(
        self,
        tile: Tile,
        work: _Work,
        wrong: list[int],
        kept: bytes,
    ) -> None:
        """Find the old elements of pieces that disagree, on the host."""
        import torch

        assert self._findings is not None  # as in every detector
        number, (row, rows, col, _), piece_rows = tile
        whole_rows, whole_cols = matrix_shape(self._part.shape)
        width = ITEMSIZE[self._part.dtype]
        items: list[tuple[int, int, NativeMatrix, bytes]] = []
        for i in wrong:
            first = i * piece_rows
            piece = work.new[first : min(first + piece_rows, rows)].cpu()
            data = piece.view(torch.uint8).numpy().reshape(len(piece), -1)
            place = (data, whole_rows, whole_cols * width, row + first, col * width)
            items.append((number, i, place, kept[16 * i : 16 * i + 16]))
        flat = self._flat(work.base)
        for how, positions, old in self._findings.rewind_pieces(items):
            if how not in ("told", "settled"):
                work.right = False
                return
            at = torch.from_numpy(np.frombuffer(positions, np.uint32).astype(np.int64))
            values = torch_from(np.frombuffer(old, f"u{width}"))
            flat[at.to(flat.device)] = values.to(flat.device)
        work.settled = True

    def _flat(self, tile: torch.Tensor) -> torch.Tensor:
        """A tile's patterns, one after another."""
        return tile.view(self._integers).view(-1)

    def _classes(self, tiles: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> tuple[int, int]:
        """Classes that suit the changes of these tiles, bases with positions, together."""
        if self._part.dtype not in EXPONENTS or not any(len(here) for _, here in tiles):
            return 0, 1
        counts = [exponents(base, here, self._part.dtype) for base, here in tiles]
        total = counts[0]
        for one in counts[1:]:
            total = total + one
        return choose(total)

    def _tile(self, box: Box) -> torch.Tensor:
        """A tile's elements, in the served dtype, on the device."""
        row, rows, col, cols = box
        first_row, first_col = self._part.place[0], self._part.place[2]
        here = self._source[
            row - first_row : row - first_row + rows, col - first_col : col - first_col + cols
        ]
        return here.to(self._dtype).contiguous()

    def _pieces(self, tile: torch.Tensor, box: Box, piece_rows: int) -> torch.Tensor:
        """Digests of a tile's pieces: int64 ``[pieces, 2]``, on the device."""
        row, _, col, _ = box
        word = col * ITEMSIZE[self._part.dtype] // 8
        return digest(tile, self._key, row, word, self._words, piece_rows)

    def _within(self, box: Box) -> tuple[torch.Tensor, torch.Tensor]:
        """What was found in a tile: element numbers within it, and indices. Waits for nothing."""
        import torch

        row, rows, col, cols = box
        first_row, _, first_col, all_cols = self._part.place
        row, col = row - first_row, col - first_col
        at = self._found.positions
        # The tile's rows first: positions ascend.
        a, b = np.searchsorted(at, [row * all_cols, (row + rows) * all_cols])
        r, c = at[a:b] // all_cols - row, at[a:b] % all_cols - col
        inside = np.flatnonzero((c >= 0) & (c < cols))
        here, which = (r * cols + c)[inside], inside + a
        device = self._source.device
        return torch.from_numpy(here).to(device), torch.from_numpy(which).to(device)


def total(digests: bytes) -> bytes:
    """Sum of 16-byte digests that lie one after another."""
    lanes = np.frombuffer(digests, "<u8").reshape(-1, 2)
    # Halves, of which 2^32 can be added.
    high = (lanes >> np.uint64(32)).sum(axis=0).tolist()
    low = (lanes & np.uint64(0xFFFFFFFF)).sum(axis=0).tolist()
    sums = [((h << 32) + x) % PRIME for h, x in zip(high, low, strict=True)]
    return b"".join(x.to_bytes(8, "little") for x in sums)
