"""What detecting gave, and saying so."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from ..types import Record

log = logging.getLogger("deltawire.detect")


@dataclass
class Proof(Record):
    """How the changes of one version were proven.

    Attributes:
        tiles: tiles that were checked.
        settled: of them, those in which digests told what some elements had been.
        open: tiles sent whole, since more was in doubt than digests could tell.
        wrong: tiles sent whole, since the detector missed or made up a change.
        resent: elements of tiles that were sent whole.
        open_tensors, wrong_tensors: names of their tensors.
        seconds: wall time.
    """

    tiles: int = 0
    settled: int = 0
    open: int = 0
    wrong: int = 0
    resent: int = 0
    open_tensors: list[str] = field(default_factory=list)
    wrong_tensors: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def note(self, tensor: str, outcome: str, elements: int) -> None:
        """Count a tile."""
        self.tiles += 1
        if outcome == "settled":
            self.settled += 1
        elif outcome in ("open", "wrong"):
            names = self.open_tensors if outcome == "open" else self.wrong_tensors
            if tensor not in names:
                names.append(tensor)
            setattr(self, outcome, getattr(self, outcome) + 1)
            self.resent += elements

    def log(self, why: dict[str, str]) -> None:
        """Report what was sent whole; ``why`` tells of tensors of which changes were lost."""
        if self.wrong_tensors:
            log.warning(
                "%d tiles of %d tensors did not hold what was detected and are sent whole: %s; "
                "they changed outside of the optimizer's step, or the detector is wrong",
                self.wrong,
                len(self.wrong_tensors),
                _some(self.wrong_tensors),
            )
        if self.open_tensors:
            reasons = sorted({why[name] for name in self.open_tensors if name in why})
            log.warning(
                "%d tiles of %d tensors are sent whole: %s%s",
                self.open,
                len(self.open_tensors),
                _some(self.open_tensors),
                f" ({'; '.join(reasons)})" if reasons else "",
            )


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
