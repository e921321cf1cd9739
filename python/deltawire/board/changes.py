"""Where the changes of a version come from: two states, or a detector."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..sources import Sink, opened_tensors
from ..stream import StreamWriter, diff
from ..tensors import as_views
from ..types import DeltaStats, Profile, Tiling
from .transfer import Progress

if TYPE_CHECKING:
    from ..detect import Detector

#: A path, an open ``Checkpoint``, or name -> tensor.
Tensors = str | os.PathLike[str] | Mapping[str, Any]


class ChangeSource(ABC):
    """Writes the delta of one version, and is told once that is published."""

    #: Of the tensors, or what this rank holds of them; known once written.
    elements: int = 0
    dense_bytes: int = 0

    @abstractmethod
    def write(
        self,
        sink: Sink,
        *,
        base_version: int,
        version: int,
        run: str,
        profile: Profile,
        tiling: Tiling | None,
        threads: int | None,
        meta: Mapping[str, str],
        base_state: bytes | None,
        progress: Progress | None,
    ) -> DeltaStats:
        """Write the delta."""

    def published(self) -> None:  # noqa: B027 - most need not know
        """The version is committed: the next one starts from it."""

    @property
    def resent(self) -> int:
        """Elements that were sent whole since their change could not be proven."""
        return 0


class Compared(ChangeSource):
    """Both states are at hand."""

    def __init__(self, base: Tensors, new: Tensors) -> None:
        self._base, self._new = base, new

    def write(self, sink: Sink, **settings: Any) -> DeltaStats:
        with opened_tensors(self._new) as tensors:
            views = as_views(tensors)
            self.elements = sum(view.data.size // view.itemsize for view in views.values())
            self.dense_bytes = sum(view.data.size for view in views.values())
            return diff(self._base, views, sink, **settings)


class Detected(ChangeSource):
    """A detector tells what changed."""

    def __init__(self, detector: Detector) -> None:
        self._detector = detector
        self.elements, self.dense_bytes = detector.elements, detector.dense_bytes

    def write(
        self, sink: Sink, *, tiling: Tiling | None, progress: Progress | None, **settings: Any
    ) -> DeltaStats:
        detector, base_state = self._detector, settings["base_state"]
        if tiling is not None and tiling != detector.tiling:
            raise ValueError("a detector has a tiling of its own: give it to the detector")
        if base_state is not None:
            detector.require_base(base_state, version=settings["base_version"])
        with StreamWriter(sink, detector.mine, tiles=detector.tiles, **settings) as writer:
            detector.write(writer, progress=progress)
        return writer.stats

    def published(self) -> None:
        self._detector.settle()

    @property
    def resent(self) -> int:
        proof = self._detector.proof
        return 0 if proof is None else proof.resent


def source_of(base: Tensors | None, new: Tensors | None, detector: Detector | None) -> ChangeSource:
    """The source that a caller names: ``base`` and ``new``, or ``detector``.

    Raises:
        TypeError: neither, or both.
    """
    if detector is not None:
        if base is not None or new is not None:
            raise TypeError("give base and new, or a detector, not both")
        return Detected(detector)
    if base is None or new is None:
        raise TypeError("give base and new, or a detector")
    return Compared(base, new)
