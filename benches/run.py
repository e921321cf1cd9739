"""How small deltas are, and how fast against copying memory on this machine, beside other layouts.

    python benches/run.py [--quick] [--only SUBSTRING] [--json] [--save] [--machine NAME]

For each data set, each profile of deltawire and each published layout: bits per changed element of
the whole file, encode and apply with one and two threads as a fraction of numpy's memcpy with as
many threads in the same rounds, the pause of the commit as a fraction of one copy of the model, and
peak anonymous memory. docs/benchmarks.md says what each number includes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

import deltawire as dw
from bounds import bounds
from contenders import THREADS, contenders
from data import DataSet, Source, sources
from deltawire.checkpoint import write_safetensors
from measure import CountingSink, Memcpy, Operation, in_rounds, machine
from table import Result, Row, report, save

HERE = Path(__file__).resolve().parent


def peaks(base: Path, new: Path, codec: str) -> dict[str, int]:
    """Peak anonymous bytes of encode and apply with two threads, from a process of its own."""
    command = [sys.executable, *map(str, (HERE / "memory.py", base, new, base.parent, codec, 2))]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, int] = json.loads(done.stdout)
    return found


def measure(data: DataSet, rounds: int) -> Iterator[Row]:
    """One row for each contender; all take part in the same rounds."""
    memcpy = Memcpy(data.nbytes)
    copies = [Operation(f"memcpy {n}", partial(memcpy, n)) for n in THREADS]
    digests = [
        Operation(f"digest {n}", partial(dw.state_digest, data.new, threads=n)) for n in THREADS
    ]
    competing = contenders(data)
    operations = [*digests]
    for contender in competing:
        operations += [*copies, *contender.operations]
    in_rounds(operations, rounds)

    stats = dw.diff(data.base, data.new, CountingSink())
    floors = bounds(data.base, data.new)
    with tempfile.TemporaryDirectory() as directory:
        base, new = Path(directory, "base.safetensors"), Path(directory, "new.safetensors")
        write_safetensors(base, data.base)
        write_safetensors(new, data.new)
        for contender in competing:
            timed = [*copies, *digests, *contender.operations]
            yield {
                "data": data.name,
                "codec": contender.codec,
                "published": contender.published,
                "tensors": len(data.base),
                "elements": stats.elements,
                "changed": stats.changed,
                "dense_bytes": stats.dense_bytes,
                "safetensors_bytes": base.stat().st_size,
                "bytes": contender.nbytes,
                "bits_per_change": 8 * contender.nbytes / stats.changed,
                "floors": asdict(floors),
                "seconds": {operation.name: operation.median for operation in timed},
                "pauses": contender.pauses,
                "peak_bytes": peaks(base, new, contender.codec),
            }


def measure_all(wanted: list[Source], rounds: int) -> list[Row]:
    """All rows, data set by data set, so that only one is in memory."""
    rows: list[Row] = []
    for source in wanted:
        loaded = source.load()
        if loaded is None:
            continue
        print(source.name, file=sys.stderr)
        rows += measure(DataSet(source.name, *loaded), rounds)
    return rows


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="sizes and speeds of deltas on this machine")
    parser.add_argument("--quick", action="store_true", help="small tensors, three rounds")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="data sets with this in the name"
    )
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
    return parser.parse_args()


def main() -> None:
    options = arguments()
    wanted = [
        source
        for source in sources(options.recordings, quick=options.quick)
        if options.only.lower() in source.name.lower()
    ]
    rounds = options.rounds or (3 if options.quick else 7)
    rows = measure_all(wanted, rounds)
    if not rows:
        raise SystemExit(f"no data set has {options.only!r} in its name, or none could be made")
    host = machine() | {"deltawire": dw.__version__}
    result: Result = {
        "machine": host,
        "method": {"rounds": rounds, "quick": options.quick, "memory_threads": 2},
        "rows": rows,
    }
    print(json.dumps(result) if options.json else report(result))
    if options.save:
        name = options.machine or str(host["cpu"])
        print(f"saved {save(HERE / 'results', name, result)}", file=sys.stderr)


if __name__ == "__main__":
    main()
