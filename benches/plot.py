"""Size against speed, one point for each codec, from a saved result.

    python benches/plot.py RESULT.json [--data dense-1] [-o docs/benchmarks.svg]

Both floors of the data set are lines. Codecs beyond the axis (a whole compressed checkpoint) are
left out and named in the title.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.path import Path as Line
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from table import Row

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.svg"

#: Bits per change at the end of the axis.
MOST_BITS = 52.0
OURS, OTHERS, GREY = "#0b62c4", "#b3541e", "#6b6b6b"

#: Where a label may stand: offset in points, alignment.
PLACES: Sequence[tuple[float, float, str, str]] = [
    (dx, dy, ha, va)
    for reach in (1.0, 1.6, 2.4, 3.4, 4.6)
    for dx, dy, ha, va in (
        (7 * reach, 0, "left", "center"),
        (0, 6 * reach, "center", "bottom"),
        (0, -6 * reach, "center", "top"),
        (-7 * reach, 0, "right", "center"),
        (5 * reach, 5 * reach, "left", "bottom"),
        (5 * reach, -5 * reach, "left", "top"),
        (-5 * reach, 5 * reach, "right", "bottom"),
        (-5 * reach, -5 * reach, "right", "top"),
    )
]


def speed(row: Row, what: str) -> float:
    """GB/s of dense bytes with one thread."""
    return float(row["dense_bytes"] / row["seconds"][f"{what} 1"] / 1e9)


def label_apart(
    axes: Axes, points: Sequence[tuple[float, float, str, str]], keep_off: Sequence[Bbox]
) -> None:
    """Name every point (x, y, text, colour) where it covers no other label, point or border.

    Tries places near the point first; a label that had to move gets a thin line to its point, which
    crosses no other label. ``keep_off``: what else is drawn, in pixels.
    """
    canvas: Any = axes.figure.canvas
    renderer = canvas.get_renderer()
    inside = axes.get_window_extent(renderer)
    at = [tuple(axes.transData.transform((x, y))) for x, y, _, _ in points]
    dots = [Bbox.from_bounds(x - 4, y - 4, 8, 8) for x, y in at]
    taken: list[Bbox] = []
    leaders: list[Line] = []
    for i, (x, y, text, colour) in enumerate(points):
        others = [*taken, *dots[:i], *dots[i + 1 :]]
        for dx, dy, ha, va in PLACES:
            far = max(abs(dx), abs(dy)) > 10
            line = {"arrowstyle": "-", "lw": 0.5, "color": colour, "shrinkB": 4} if far else None
            label = axes.annotate(
                text,
                (x, y),
                (dx, dy),
                textcoords="offset points",
                ha=ha,
                va=va,
                fontsize=8,
                color=colour,
                arrowprops=line,
            )
            label.update_positions(renderer)
            # Of the text alone: the annotation's own extent has the line in it.
            box = Text.get_window_extent(label, renderer).padded(2)
            middle = ((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2)
            fits = inside.x0 < box.x0 and box.x1 < inside.x1
            fits = fits and inside.y0 < box.y0 and box.y1 < inside.y1
            fits = fits and not any(box.overlaps(other) for other in (*keep_off, dots[i], *others))
            leader = [Line([at[i], middle])] if far else []
            crossings = [
                *((new, other) for new in leader for other in taken),
                *((old, box) for old in leaders),
            ]
            if fits and not any(a.intersects_bbox(b, filled=False) for a, b in crossings):
                taken.append(box)
                leaders += leader
                break
            label.remove()
        else:
            raise SystemExit(f"no place for the label {text!r}; make the figure larger")


def prepare(axes: Axes, rows: Sequence[Row], what: str, title: str) -> None:
    """Axes of one operation: GB/s across (logarithmic), bits per change upwards."""
    speeds = [speed(row, what) for row in rows]
    axes.set_xscale("log")
    axes.set_xlim(min(speeds) / 2, max(*speeds, speed(rows[0], "memcpy")) * 3)
    axes.set_ylim(0, MOST_BITS)
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("GB/s of dense BF16, one thread")
    axes.grid(True, which="major", lw=0.4, color="#dddddd")
    axes.set_axisbelow(True)
    axes.xaxis.set_major_formatter("{x:g}")


def fill(axes: Axes, rows: Sequence[Row], what: str) -> None:
    """Floors, memcpy, and the points with their names."""
    memcpy = speed(rows[0], "memcpy")
    speeds = [speed(row, what) for row in rows]
    lines = [
        axes.axhline(rows[0]["floors"]["exponent"], color=GREY, lw=0.9, ls="--"),
        axes.axhline(rows[0]["floors"]["absolute"], color=GREY, lw=0.9, ls="--"),
        axes.axvline(memcpy, color=GREY, lw=0.9, ls=":"),
    ]
    beside: dict[str, Any] = {
        "transform": axes.get_yaxis_transform(),
        "va": "top",
        "fontsize": 7,
        "color": GREY,
    }
    texts = [
        axes.text(
            0.01, rows[0]["floors"]["exponent"] - 0.5, "floor, old exponents known", **beside
        ),
        axes.text(0.01, rows[0]["floors"]["absolute"] - 0.5, "floor, nothing known", **beside),
        axes.text(memcpy, MOST_BITS - 0.6, " memcpy", va="top", fontsize=7, color=GREY),
    ]
    keep_off = [item.get_window_extent().padded(2) for item in (*lines, *texts)]
    points = []
    for row, x in zip(rows, speeds, strict=True):
        colour = OTHERS if row["published"] else OURS
        marker = "s" if row["published"] else "o"
        axes.plot(x, row["bits_per_change"], marker, color=colour, ms=5)
        name = row["codec"] if row["published"] else f"deltawire {row['codec']}"
        points.append((x, row["bits_per_change"], name, colour))
    label_apart(axes, points, keep_off)


def draw(result: dict[str, Any], data: str, path: Path) -> None:
    """Write the figure; format by the suffix of the path."""
    rows = [row for row in result["rows"] if row["data"] == data]
    if not rows:
        raise SystemExit(f"the result has no data set {data!r}")
    shown = [row for row in rows if row["bits_per_change"] <= MOST_BITS]
    beyond = [row for row in rows if row["bits_per_change"] > MOST_BITS]
    # Text as shapes, and nothing that changes from run to run: the file is kept in version control.
    mpl.rcParams.update({"svg.fonttype": "path", "svg.hashsalt": "deltawire"})
    mpl.rcParams.update({"font.family": "DejaVu Sans", "font.size": 9})
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(12, 6.4), sharey=True, facecolor="white", layout="constrained"
    )
    FigureCanvasAgg(figure)
    density = 100 * rows[0]["changed"] / rows[0]["elements"]
    left.set_ylabel("bits per changed element, whole file")
    note = "".join(f"; not shown: {r['codec']}, {r['bits_per_change']:,.0f} bits" for r in beyond)
    figure.suptitle(
        f"{data}: {rows[0]['elements'] / 1e6:.1f} M elements, {density:.2f} % changed. Lower and "
        f"further right is better{note}",
        fontsize=9,
    )
    prepare(left, shown, "encode", "encode, comparison included")
    prepare(right, shown, "decode", "decode + apply in place")
    # The places of labels depend on the final layout.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    fill(left, shown, "encode")
    fill(right, shown, "decode")
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> None:
    parser = argparse.ArgumentParser(description="size against speed")
    parser.add_argument("result", type=Path)
    parser.add_argument("--data", default="dense-1", help="which data set")
    parser.add_argument("-o", "--output", type=Path, default=DOCUMENT)
    options = parser.parse_args()
    draw(json.loads(options.result.read_text()), options.data, options.output)


if __name__ == "__main__":
    main()
