#!/usr/bin/env python3
"""Makes the vectors: ``make.py`` writes them, ``make.py --check`` fails where they differ.

``make.py --native`` also rewrites ``native/``, the goldens of the package's own writer (needs
deltawire installed). Those follow the writer until 0.1.0 is tagged, and never change after.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "reference")]

from recipes.bad import all_bad  # noqa: E402
from recipes.good import all_good, build  # noqa: E402
from recipes.states import State, all_states  # noqa: E402

from deltawire_reference import decode, state_digest  # noqa: E402


def described(state: State) -> dict[str, Any]:
    return {
        "digest": state_digest(state).hex(),
        "tensors": [
            {"name": name, "dtype": v.dtype, "shape": list(v.shape), "hex": v.data.hex()}
            for name, v in state.items()
        ],
    }


def make() -> dict[str, bytes]:
    """Every file by its path under this folder, vectors.json included."""
    states = all_states()
    files: dict[str, bytes] = {}
    good, bad = [], []
    for case in all_good():
        data = build(case, states)
        files[f"good/{case.name}.dw"] = data
        delta = decode(data)
        good.append(
            {
                "file": f"good/{case.name}.dw",
                "feature": case.feature,
                "base": f"{case.states}.base",
                "new": f"{case.states}.new",
                "chunks": len(delta.chunks),
                "changed": sum(chunk.changes for chunk in delta.chunks),
                "result_digests": all(c.result_digest is not None for c in delta.chunks),
            }
        )
    for item in all_bad(states):
        data, spans = item.parts.build()
        files[f"bad/{item.name}.dw"] = data
        bad.append(
            {
                "file": f"bad/{item.name}.dw",
                "rule": item.rule,
                "threat": item.threat,
                "base": item.base,
                "kind": item.kind,
                "offsets": span_of(item.place, spans, len(data)),
            }
        )
    if len(files) != len(good) + len(bad):
        raise SystemExit("two vectors have the same name")
    document = {
        "format": "1.0",
        "states": {name: described(state) for name, state in states.items()},
        "good": good,
        "bad": bad,
    }
    files["vectors.json"] = (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()
    return files


def span_of(place: str | None, spans: dict[str, tuple[int, int]], length: int) -> list[int] | None:
    """First and last offset that an error may name."""
    if place is None:
        return None
    if place in spans:
        return list(spans[place])
    if place.startswith("from "):
        return [spans[place.removeprefix("from ")][0], spans["index"][1]]
    if place == "cut":
        return [0, length]
    if place == "any":
        return [0, length]
    if place == "end":
        return [spans["trailer"][0], length]
    return [spans["header"][1], length]  # a gap


def on_disk(folders: tuple[str, ...]) -> dict[str, bytes]:
    paths = [path for folder in folders for path in (HERE / folder).glob("*.dw")]
    found = {str(path.relative_to(HERE)): path.read_bytes() for path in paths}
    index = HERE / "vectors.json"
    return {**found, "vectors.json": index.read_bytes()} if index.exists() else found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="change nothing, fail where they differ"
    )
    parser.add_argument("--native", action="store_true", help="the package writer's goldens too")
    options = parser.parse_args()
    wanted, found = make(), on_disk(("good", "bad"))
    if options.native:
        from recipes.native import make_native

        wanted |= make_native(all_states())
        found |= on_disk(("native",))
        index = HERE / "native" / "vectors.json"
        if index.exists():
            found["native/vectors.json"] = index.read_bytes()
    changed = [name for name in sorted(wanted | found) if wanted.get(name) != found.get(name)]
    if options.check:
        for name in changed:
            print(f"differs: {name}", file=sys.stderr)
        return 1 if changed else 0
    for name in changed:
        path = HERE / name
        if name not in wanted:
            path.unlink()
            continue
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(wanted[name])
    print(f"{len(wanted)} files, {len(changed)} changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
