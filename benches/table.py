"""Results as text: sizes of all codecs on all data sets, then one line for each pair.

python benches/table.py RESULT.json            print the report
python benches/table.py RESULT.json --docs     renew the tables in docs/benchmarks.md
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Result = dict[str, Any]

THREADS = (1, 2)
DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"


def markdown(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns."""
    widths = [max(map(len, column)) for column in zip(headings, *lines, strict=True)]
    rule = ["-" * width for width in widths]
    return "\n".join(
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |"
        for line in [list(headings), rule, *lines]
    )


def distinct(rows: Sequence[Row], key: str) -> list[str]:
    """Values of a column in the order in which they first stand there."""
    return list(dict.fromkeys(row[key] for row in rows))


def sizes(rows: Sequence[Row]) -> str:
    """Bits per change: a line for each codec, a column for each data set."""
    names = distinct(rows, "data")
    first = {name: next(row for row in rows if row["data"] == name) for name in names}
    found = {(row["data"], row["codec"]): row["bits_per_change"] for row in rows}
    lines = [
        ["elements, M", *(f"{first[name]['elements'] / 1e6:.1f}" for name in names)],
        [
            "changed, %",
            *(f"{100 * first[name]['changed'] / first[name]['elements']:.2f}" for name in names),
        ],
        ["floor, exponents known", *(f"{first[n]['floors']['exponent']:.2f}" for n in names)],
        *(
            [codec, *(f"{found[name, codec]:.2f}" for name in names)]
            for codec in distinct(rows, "codec")
        ),
        ["floor, nothing known", *(f"{first[n]['floors']['absolute']:.2f}" for n in names)],
    ]
    return markdown(["bits per change", *names], lines)


HEADINGS = (
    "data",
    "codec",
    "bytes",
    "of dense",
    "bits/change",
    "of floor",
    *(f"{what} {n}t" for what in ("encode", "decode+apply", "proven apply") for n in THREADS),
    *(f"commit pause {n}t" for n in THREADS),
    "peak MiB enc/app",
)


def cells(row: Row) -> list[str]:
    """One line of the table: speeds in GB/s, then as a fraction of memcpy."""
    seconds = row["seconds"]

    def speed(what: str, threads: int) -> str:
        taken = seconds.get(f"{what} {threads}")
        if taken is None:
            return "-"
        ratio = seconds[f"memcpy {threads}"] / taken
        return f"{row['dense_bytes'] / taken / 1e9:.2f} ({ratio:.2f})"

    def pause(threads: int) -> str:
        taken = row["pauses"].get(str(threads))
        return "-" if taken is None else f"{taken / seconds['memcpy 1']:.2f}"

    peaks = row["peak_bytes"]
    return [
        row["data"],
        row["codec"],
        f"{row['bytes']:,}",
        f"1/{row['safetensors_bytes'] / row['bytes']:.0f}",
        f"{row['bits_per_change']:.2f}",
        f"{row['bits_per_change'] / row['floors']['exponent']:.3f}",
        *(speed(what, n) for what in ("encode", "decode", "apply") for n in THREADS),
        *(pause(n) for n in THREADS),
        f"{peaks['encode'] / 2**20:.0f}/{peaks['apply'] / 2**20:.0f}",
    ]


def heading(result: Result) -> str:
    """The machine, and what one copy runs at."""
    host, rows = result["machine"], result["rows"]
    largest = max(rows, key=lambda row: int(row["dense_bytes"]))

    def gbps(what: str) -> str:
        taken = (largest["seconds"][f"{what} {n}"] for n in THREADS)
        return " / ".join(f"{largest['dense_bytes'] / seconds / 1e9:.1f}" for seconds in taken)

    return (
        f"deltawire {host['deltawire']} on {host['cpu']}, {host['cores']} cores "
        f"({', '.join(host['simd']) or 'no SIMD flags known'}), Python {host['python']}, numpy "
        f"{host['numpy']}; medians of {result['method']['rounds']} rounds, of a third of them for "
        f"published layouts. memcpy {gbps('memcpy')} GB/s, state digest {gbps('digest')} GB/s with "
        "1 / 2 threads."
    )


LEGEND = (
    "Speeds are GB/s of dense bytes and, in brackets, their ratio to memcpy with as many threads "
    "in the same rounds. Encode includes comparing the dense tensors and, for deltawire, both "
    "state digests; it knows what the base's must be, as a publisher does. Decode+apply is "
    "`base_state=`: checksums, decoding, the proof of what changes, the scatter; the base was "
    "proven by the apply before. Proven apply digests the whole state instead. Commit pause is in "
    "copies of the model by one thread; the rest of an apply may run while the engine serves. "
    "Lines without it are published layouts in numpy, which check nothing."
)


def report(result: Result) -> str:
    """Everything."""
    rows = result["rows"]
    lines = markdown(HEADINGS, [cells(row) for row in rows])
    return "\n\n".join([heading(result), sizes(rows), LEGEND, lines])


def save(directory: Path, name: str, result: Result) -> Path:
    """Write ``<date>-<machine>.md`` and ``.json``; returns the first."""
    directory.mkdir(parents=True, exist_ok=True)
    machine = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    path = directory / f"{datetime.date.today().isoformat()}-{machine}.md"
    path.write_text(report(result) + "\n")
    path.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    return path


def replace_between(text: str, marker: str, content: str) -> str:
    """Put ``content`` between the comments ``<!-- marker -->`` and ``<!-- /marker -->``."""
    pattern = rf"(<!-- {marker} -->\n).*?(<!-- /{marker} -->)"
    renewed, count = re.subn(
        pattern, lambda m: f"{m[1]}\n{content}\n\n{m[2]}", text, flags=re.DOTALL
    )
    if count != 1:
        raise SystemExit(f"the document has no place for {marker!r}")
    return renewed


def renew(document: Path, result: Result, data: str) -> None:
    """Bring the document's tables to this result; speeds of one data set."""
    chosen = [cells(row)[1:] for row in result["rows"] if row["data"] == data]
    text = document.read_text()
    text = replace_between(text, "machine", heading(result))
    text = replace_between(text, "sizes", sizes(result["rows"]))
    text = replace_between(text, "speeds", markdown(HEADINGS[1:], chosen))
    document.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description="a saved result as text")
    parser.add_argument("result", type=Path)
    parser.add_argument("--docs", action="store_true", help="renew docs/benchmarks.md")
    parser.add_argument("--data", default="dense-1", help="data set of the document's speeds")
    options = parser.parse_args()
    result = json.loads(options.result.read_text())
    if options.docs:
        renew(DOCUMENT, result, options.data)
    else:
        print(report(result))


if __name__ == "__main__":
    main()
