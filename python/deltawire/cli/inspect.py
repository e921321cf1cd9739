"""``deltawire inspect``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from . import text
from .arguments import add_report, delta_source
from .output import Output

if TYPE_CHECKING:
    from .. import DeltaInfo


def add_parsers(verbs: Any) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "inspect",
        help="show what a delta holds",
        description="Show versions, changes, size and codecs of a delta.",
    )
    parser.add_argument("delta", metavar="OUT.dw", help="the delta; - for stdin")
    parser.add_argument("--tensors", action="store_true", help="list the tensors too")
    add_report(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Show the delta; see the verb's description."""
    import deltawire as dw

    with delta_source(arguments.delta) as source:
        info = dw.inspect(source)
    value = {**info.as_dict(), "path": arguments.delta}
    if not arguments.tensors:
        value.pop("tensors", None)
    lines = _summary(arguments.delta, info)
    if arguments.tensors:
        lines += ["", *_tensors(info)]
    Output(arguments).result(value, lines)
    return 0


def _summary(name: str, info: DeltaInfo) -> list[str]:
    touched = sum(1 for tensor in info.tensors if tensor.changed)
    codecs = sorted(info.codecs.items(), key=lambda item: -item[1])
    rows = [
        ("changed", text.changes(info.changed, info.elements)),
        (
            "tensors",
            f"{touched:,} of {len(info.tensors):,} changed, {text.number(info.chunks, 'chunk')}",
        ),
        ("size", text.cost(info.bytes, info.dense_bytes, info.bits_per_change)),
        ("", f"{text.size(info.header_bytes)} header, {text.size(info.index_bytes)} index"),
        ("codecs", ", ".join(f"{codec} {number}" for codec, number in codecs) or "none"),
        ("base", text.state(info.base_state)),
        ("result", text.state(info.result_state)),
    ]
    if info.run:
        rows.append(("run", info.run))
    rows += [("meta", f"{key}={value}") for key, value in info.meta.items()]
    head = f"{name}: {text.versions(info.base_version, info.version)}, {info.profile}"
    return [f"{head}, format {info.format}", *text.fields(rows)]


def _tensors(info: DeltaInfo) -> list[str]:
    rows = []
    for tensor in info.tensors:
        changed = tensor.changed
        rows.append(
            [
                tensor.name,
                tensor.dtype,
                "x".join(map(str, tensor.shape)) or "scalar",
                f"{changed:,}",
                text.percent(changed, tensor.elements) if changed else "",
                text.size(tensor.bytes) if changed else "",
                text.bits(8 * tensor.bytes / changed) if changed else "",
            ]
        )
    head = ["tensor", "dtype", "shape", "changed", "share", "size", "bits"]
    return text.table(head, rows, align="<<<>>>>")
