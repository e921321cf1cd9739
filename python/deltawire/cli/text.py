"""Numbers and tables for people."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def _three(value: float) -> str:
    """Three digits, also where the last are zeros, so that columns line up."""
    return "0" if value == 0 else f"{value:#.3g}".rstrip(".")


def number(count: int, noun: str) -> str:
    """A count with its noun: ``1 delta``, ``2 deltas``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def size(count: float) -> str:
    """Bytes with a decimal unit: ``58.1 kB``, ``14.2 MB``, ``2.34 GB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 999.5:
            return f"{count:.0f} B" if unit == "B" else f"{_three(count)} {unit}"
        count /= 1000
    return f"{_three(count)} TB"


def duration(seconds: float) -> str:
    """Time in the unit that suits it, from milliseconds to days."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 99.5:
        return f"{_three(seconds)} s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.1f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"


def percent(part: float, whole: float) -> str:
    """A share, with enough digits for rare changes."""
    return f"{_three(100 * part / whole)} %" if whole else "none"


def bits(value: float) -> str:
    """Bits per change, which are undefined where nothing changed."""
    return "-" if math.isnan(value) else f"{value:.2f}"


def changes(changed: int, elements: int) -> str:
    """How much of a model changed."""
    return f"{changed:,} of {elements:,} elements ({percent(changed, elements)})"


def cost(stored: int, dense: int, bits_per_change: float) -> str:
    """What the changes cost on the wire and against the dense checkpoint."""
    parts = [size(stored)]
    if not math.isnan(bits_per_change):
        parts.append(f"{bits(bits_per_change)} bits per change")
    if 0 < stored < dense:
        parts.append(f"{dense / stored:.3g}x smaller than the checkpoint ({size(dense)})")
    return ", ".join(parts)


def versions(base: int | None, version: int) -> str:
    """What a delta leads from and to."""
    return f"version {version}" if base is None else f"version {base} -> {version}"


def state(digest: bytes | None) -> str:
    """A state digest, where known."""
    return "not known" if digest is None else digest.hex()


def fields(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Lines of names and values, indented and aligned."""
    rows = list(rows)
    width = max((len(name) for name, _ in rows), default=0)
    return [f"  {name:<{width}}  {value}" for name, value in rows]


def one_line(value: str) -> str:
    """Text of others without what moves a terminal's cursor."""
    return "".join(sign if sign.isprintable() else " " for sign in value)


def shortened(value: str, width: int) -> str:
    """Text cut to so many characters, with a mark where something is missing."""
    return value if len(value) <= width else value[: max(width - 1, 0)] + "\u2026"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, align: str) -> list[str]:
    """Lines of columns; ``align`` has ``<`` or ``>`` for each of them. Empty columns go."""
    body = [list(row) for row in rows]
    shown = [i for i in range(len(head)) if any(row[i] for row in body)]
    cells = [[row[i] for i in shown] for row in (list(head), *body)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    sides = [align[i] for i in shown]
    return [
        "  ".join(
            f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)
        ).rstrip()
        for row in cells
    ]
