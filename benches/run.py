"""One table: how small deltas are, and how fast against copying memory on this machine.

    python benches/run.py [--quick] [--json] [--save] [--machine NAME]

For each data set and profile: bits per changed element of the whole file, encode and apply with one
and two threads as a fraction of numpy's memcpy with as many threads, the pause of the commit as a
fraction of one copy of the model, and peak anonymous memory. "Encode" includes comparing the dense
tensors and both state digests; "apply" includes every check, the scatter and the proof of the
result. GB/s count dense bytes, 1 GB = 1e9 bytes.
"""

from __future__ import annotations

import argparse
import datetime
import io
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import deltawire as dw
from bounds import exponent_floor
from data import DataSet, Tensors, data_sets
from deltawire.checkpoint import write_safetensors
from measure import CountingSink, Memcpy, Operation, in_rounds, machine
from synth import Decoder

HERE = Path(__file__).resolve().parent
PROFILES = ("compact", "fast", "overwrite")
THREADS = (1, 2)
Row = dict[str, Any]


def copy_of(tensors: Tensors) -> Tensors:
    """The same tensors in memory of their own."""
    return {
        name: dw.TensorView.from_bytes(view.dtype, view.shape, view.contiguous().copy())
        for name, view in tensors.items()
    }


def restore(target: Tensors, tensors: Tensors) -> None:
    """Write ``tensors`` over ``target``."""
    for name, view in tensors.items():
        np.copyto(target[name].data, view.data)


def check_equal(target: Tensors, expected: Tensors, what: str) -> None:
    """A benchmark of wrong results is worth nothing."""
    for name, view in expected.items():
        if not np.array_equal(target[name].data, view.data):
            raise SystemExit(f"{what}: tensor {name!r} is not bit-exact after apply")


def speeds(data: DataSet, profile: str, memcpy: Memcpy, rounds: int) -> Row:
    """Sizes and times of one profile on one data set."""
    buffer = io.BytesIO()
    stats = dw.diff(data.base, data.new, buffer, profile=profile)
    delta = buffer.getvalue()
    target = copy_of(data.base)
    dw.apply(delta, target)
    check_equal(target, data.new, f"{data.name}, {profile}")

    commits: list[float] = []

    def encode(threads: int) -> None:
        dw.diff(data.base, data.new, CountingSink(), profile=profile, threads=threads)

    def apply(threads: int) -> None:
        commits.append(dw.apply(delta, target, threads=threads).commit_seconds)

    def reset() -> None:
        restore(target, data.base)

    operations = []
    for threads in THREADS:
        operations += [
            Operation(f"memcpy {threads}", lambda n=threads: memcpy(n)),
            Operation(f"encode {threads}", lambda n=threads: encode(n)),
            Operation(f"apply {threads}", lambda n=threads: apply(n), reset),
            Operation(f"digest {threads}", lambda n=threads: dw.state_digest(data.new, threads=n)),
        ]
    seconds = in_rounds(operations, rounds)
    single_commits = sorted(commits[:: len(THREADS)])
    return {
        "data": data.name,
        "profile": profile,
        "elements": stats.elements,
        "changed": stats.changed,
        "dense_bytes": stats.dense_bytes,
        "bytes": stats.bytes,
        "bits_per_change": stats.bits_per_change,
        "seconds": seconds,
        "commit_seconds": single_commits[len(single_commits) // 2],
    }


def memory(base: Path, new: Path, work: Path, profile: str) -> dict[str, int]:
    """Peak anonymous bytes of encode and apply with two threads, from a process of its own."""
    command = [sys.executable, HERE / "memory.py", base, new, work, profile, "2"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=HERE)
    peaks: dict[str, int] = json.loads(done.stdout)
    return peaks


def measure(sizes: Decoder, recordings: Path, rounds: int) -> list[Row]:
    """One row for each data set and profile."""
    rows: list[Row] = []
    for data in data_sets(sizes, recordings):
        floor = exponent_floor(data.base, data.new)
        memcpy = Memcpy(data.nbytes)
        with tempfile.TemporaryDirectory() as directory:
            work = Path(directory)
            base, new = work / "base.safetensors", work / "new.safetensors"
            write_safetensors(base, data.base)
            write_safetensors(new, data.new)
            for profile in PROFILES:
                print(f"{data.name}: {profile}", file=sys.stderr)
                row = speeds(data, profile, memcpy, rounds)
                row["floor"] = floor
                row["safetensors_bytes"] = base.stat().st_size
                row["peak_bytes"] = memory(base, new, work, profile)
                rows.append(row)
    return rows


HEADINGS = (
    "data",
    "changed",
    "profile",
    "bytes",
    "of safetensors",
    "bits/change",
    "floor",
    *(f"{what} {n}t" for what in ("encode", "apply") for n in THREADS),
    "commit pause",
    "peak MiB enc/app",
)


def cells(row: Row) -> list[str]:
    """One line of the table: speeds in GB/s, then as a fraction of memcpy."""
    seconds = row["seconds"]

    def speed(what: str, threads: int) -> str:
        taken = seconds[f"{what} {threads}"]
        ratio = seconds[f"memcpy {threads}"] / taken
        return f"{row['dense_bytes'] / taken / 1e9:.2f} ({ratio:.2f})"

    peaks = row["peak_bytes"]
    return [
        row["data"],
        f"{100 * row['changed'] / row['elements']:.2f} %",
        row["profile"],
        f"{row['bytes']:,}",
        f"1/{row['safetensors_bytes'] / row['bytes']:.0f}",
        f"{row['bits_per_change']:.2f}",
        f"{row['floor']:.2f}",
        *(speed(what, n) for what in ("encode", "apply") for n in THREADS),
        f"{row['commit_seconds'] / seconds['memcpy 1']:.2f}",
        f"{peaks['encode'] / 2**20:.0f}/{peaks['apply'] / 2**20:.0f}",
    ]


def table(headings: Sequence[str], lines: list[list[str]]) -> str:
    """A Markdown table with aligned columns."""
    widths = [max(map(len, column)) for column in zip(headings, *lines, strict=True)]
    rule = ["-" * width for width in widths]
    return "\n".join(
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |"
        for line in [list(headings), rule, *lines]
    )


def report(host: dict[str, Any], rows: list[Row]) -> str:
    """The table, under a line on the machine and what one copy runs at."""
    largest = max(rows, key=lambda row: row["dense_bytes"])

    def gbps(what: str) -> str:
        return " / ".join(
            f"{largest['dense_bytes'] / largest['seconds'][f'{what} {n}'] / 1e9:.1f}"
            for n in THREADS
        )

    return (
        f"deltawire {host['deltawire']} on {host['cpu']}, {host['cores']} cores "
        f"({', '.join(host['simd']) or 'no SIMD flags known'}), Python {host['python']}\n\n"
        f"memcpy {gbps('memcpy')} GB/s, state digest {gbps('digest')} GB/s with 1 / 2 threads. "
        "Speeds are GB/s of dense bytes and, in brackets, their ratio to memcpy with as many "
        "threads in the same rounds; commit pause is in copies of the model; floor is the least "
        "bits per change given the old exponents.\n\n" + table(HEADINGS, [cells(r) for r in rows])
    )


def save(directory: Path, name: str, text: str, host: dict[str, Any], rows: list[Row]) -> Path:
    """Write ``<date>-<machine>.md`` and ``.json``."""
    directory.mkdir(parents=True, exist_ok=True)
    stem = f"{datetime.date.today().isoformat()}-{re.sub(r'[^a-z0-9]+', '-', name.lower())}"
    path = directory / f"{stem.strip('-')}.md"
    path.write_text(text + "\n")
    path.with_suffix(".json").write_text(json.dumps({"machine": host, "rows": rows}, indent=1))
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description="sizes and speeds of deltas on this machine")
    parser.add_argument("--quick", action="store_true", help="small tensors, three rounds")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.add_argument("--save", action="store_true", help="write benches/results/ as well")
    parser.add_argument("--machine", help="name for saved results (default: the processor's)")
    parser.add_argument("--rounds", type=int, help="timed rounds (default 7)")
    parser.add_argument(
        "--recordings",
        type=Path,
        default=HERE.parents[1] / "shared" / "data",
        help="folder of recorded runs; left out where it does not exist",
    )
    options = parser.parse_args()
    quick = Decoder(hidden=256, inner=640, layers=2, kv=64, vocab=2048)
    sizes = quick if options.quick else Decoder()
    rows = measure(sizes, options.recordings, options.rounds or (3 if options.quick else 7))
    host = machine() | {"deltawire": dw.__version__}
    text = report(host, rows)
    print(json.dumps({"machine": host, "rows": rows}) if options.json else text)
    if options.save:
        path = save(HERE / "results", options.machine or str(host["cpu"]), text, host, rows)
        print(f"saved {path}", file=sys.stderr)


if __name__ == "__main__":
    main()
