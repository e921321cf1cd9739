"""``SnapshotDetector``: compares with a copy of what receivers hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..types import Tiling
from .base import Detector
from .compare import Snapshot, differences
from .journal import Found
from .served import Part

if TYPE_CHECKING:
    import torch.distributed as dist


class SnapshotDetector(Detector):
    """Keeps a served-dtype copy of the base, and compares with it.

    Always exact, whatever changed the parameters and however often. Costs the memory of one served
    copy where the parameters are; the other detectors need none.

    Args and errors as for :class:`Detector`.
    """

    def __init__(
        self,
        model: Any,
        *,
        view: Any = None,
        tiling: Tiling | None = None,
        threads: int | None = None,
        ranks: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__(model, view=view, tiling=tiling, threads=threads, ranks=ranks)
        self._copies = {part.name: Snapshot(part) for part in self._parts.mine}
        #: Found for a delta that is not yet settled, with the new elements.
        self._latest: dict[str, tuple[Found, Any]] = {}

    def _found(self, part: Part) -> Found:
        found, new = differences(part, self._copies[part.name])
        self._latest[part.name] = (found, new)
        return found

    def _restart(self) -> None:
        for name, (found, new) in self._latest.items():
            self._copies[name].take(found.positions, new)
        self._latest = {}
