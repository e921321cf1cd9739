"""Proving and classing tiles where they lie, on a device: only O(changes) bytes come to the host.

The twin of ``rust/format/src/rewind.rs`` for tiles without doubts; the others are brought over and
settled there. Work of all tiles of a batch is queued on the current stream before the first result
is waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..digest import combine
from ..partition import Partition
from ..tensors import ITEMSIZE, matrix_shape
from .device import Key, choose, digest, exponents, key, start_partition
from .journal import CERTAIN, Found
from .served import Box, Part

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
    """

    after: bytes | None
    partition: Partition | None = None


class DeviceTiles:
    """Tiles of one part, on its device."""

    def __init__(self, part: Part, source: torch.Tensor) -> None:
        self._part, self._source = part, source
        self._key: Key = key(part.name, part.dtype, part.shape)
        _, cols = matrix_shape(part.shape)
        self._words = -(-cols * ITEMSIZE[part.dtype] // 8)
        self._dtype = part.origin.served()[part.name]

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

    def prove(self, tiles: Sequence[Tile], found: Found, before: Sequence[bytes]) -> list[Proven]:
        """Prove what was found in some tiles against the digests of their pieces before."""
        import torch

        device = self._source.device
        width = ITEMSIZE[self._part.dtype]
        signed = found.old.view(np.uint8 if width == 1 else f"i{width}")
        # Copied, since torch wants memory that could be written.
        at, old = (torch.from_numpy(a.copy()).to(device) for a in (found.positions, signed))
        queued = []
        for _, box, rows in tiles:
            new = self._tile(box)
            base = new.clone()
            here, which = self._within(at, box)
            flat = base.view(old.dtype).view(-1)
            flat[here] = old[which]
            moved = flat[here] != new.view(old.dtype).view(-1)[here]
            queued.append(
                (
                    new,
                    base,
                    here[moved],
                    self._pieces(base, box, rows),
                    self._pieces(new, box, rows),
                )
            )
        sums = [s for *_, a, b in queued for s in (a, b)]
        host = torch.cat(sums).cpu().numpy() if sums else np.empty((0, 2), np.int64)
        results, done = [], 0
        for (_, _, _, a, b), kept in zip(queued, before, strict=True):
            base_sums = host[done : done + len(a)].tobytes()
            after = host[done + len(a) : done + len(a) + len(b)].tobytes()
            done += len(a) + len(b)
            results.append((base_sums == kept, after))
        classes = self._classes([q for q, (right, _) in zip(queued, results, strict=True) if right])
        pending: list[Any] = []
        for (number, _, _), (new, base, here, _, b), (right, _) in zip(
            tiles, queued, results, strict=True
        ):
            pending.append(
                start_partition(base, here, new, number, *classes, b.sum(0), dtype=self._part.dtype)
                if right and len(here)
                else None
            )
        return [
            Proven(after if right else None, None if wait is None else wait.wait())
            for wait, (right, after) in zip(pending, results, strict=True)
        ]

    def _classes(self, queued: Sequence[Any]) -> tuple[int, int]:
        """Classes that suit the changes of these tiles, together."""
        from .tiles import _EXPONENTS

        if self._part.dtype not in _EXPONENTS or not any(len(here) for _, _, here, *_ in queued):
            return 0, 1
        counts = [exponents(base, here, self._part.dtype) for _, base, here, *_ in queued]
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

    def _within(self, at: torch.Tensor, box: Box) -> tuple[torch.Tensor, torch.Tensor]:
        """Those of some positions of the part that lie in a tile, within it, and their indices."""
        row, rows, col, cols = box
        first_row, _, first_col, all_cols = self._part.place
        row, col = row - first_row, col - first_col
        if cols == all_cols:
            import torch

            ends = torch.tensor([row * cols, (row + rows) * cols], device=at.device)
            a, b = torch.searchsorted(at, ends).tolist()
            which = torch.arange(a, b, device=at.device)
            return at[a:b] - row * cols, which
        r, c = at // all_cols - row, at % all_cols - col
        inside = (r >= 0) & (r < rows) & (c >= 0) & (c < cols)
        return (r * cols + c)[inside], inside.nonzero().flatten()


def certain(found: Found) -> bool:
    """Whether nothing of what was found is in doubt."""
    return bool((found.sure == CERTAIN).all())


def total(digests: bytes) -> bytes:
    """Sum of 16-byte digests that lie one after another."""
    return combine(*(digests[i : i + 16] for i in range(0, len(digests), 16)))
