"""GPU kernels against their CPU twins on real sizes, and how fast beside copying on the device.

    python benches/device.py [--elements N] [--rounds N] [--json]

Needs a CUDA device and a torch with triton. Before anything is timed every result is compared with
what the CPU computes from the same bits, which takes minutes; the command fails at the first
difference. A speed is bytes read a second, as a fraction of what copying within the device's memory
does in the same rounds; a copy of N bytes counts as N.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import deltawire as dw
from deltawire.detect import device
from deltawire.detect.step import AdamWStep
from deltawire.digest import combine
from measure import Operation, in_rounds, machine

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import boundary_twin

COLS = 4096
#: Elements that the twin, in numpy, takes at a time.
SLICE = 1 << 20
#: As an optimizer without and with a fused multiply-add would do it.
FORMS = [
    boundary_twin.Step(1 - 1e-7, -3e-5, 0.3, 1e-8, first, contracted, margin)
    for first in (False, True)
    for contracted in (False, True)
    for margin in (0, 1, 4)
]


class Different(Exception):
    """A kernel's result is not the twin's."""


def require(what: str, got: Any, expected: Any) -> None:
    if not np.array_equal(got, expected):
        raise Different(f"{what}: the device's result is not the CPU's")


class Data:
    """Two BF16 states that differ in two percent of the elements, and what AdamW keeps."""

    def __init__(self, elements: int, where: str) -> None:
        import torch

        torch.manual_seed(5)
        shape = (elements // COLS, COLS)

        def normal(scale: float) -> torch.Tensor:
            return torch.randn(shape, device=where) * scale

        self.w, self.m, self.v = normal(0.02), normal(1e-4), normal(3e-4).square()
        self.old = self.w.bfloat16()
        self.new = self.old.clone()
        flips = torch.rand(shape, device=where) < 0.02
        self.new.view(torch.int16)[:] ^= flips.to(torch.int16)
        # Any bits at all: infinities, subnormal numbers, whatever is not a number.
        count = min(elements, 4 * SLICE)
        self.any_bits = [
            torch.randint(-(1 << 31), 1 << 31, (count,), device=where, dtype=torch.int64)
            .to(torch.int32)
            .view(torch.float32)
            for _ in range(3)
        ]
        # Weights at the borders of what rounds to one BF16 value.
        near = torch.randint(-3, 4, (count,), device=where, dtype=torch.int32)
        bits = self.w.reshape(-1)[:count].view(torch.int32)
        self.borders = ((bits & -0x10000) + 0x8000 + near).view(torch.float32)


def on_cpu(tensor: Any) -> Any:
    """Bits of a tensor as a numpy array."""
    import torch

    widths = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.cpu().view(widths[tensor.element_size()]).numpy()


def check_differing(data: Data) -> None:
    expected = np.flatnonzero(on_cpu(data.old) != on_cpu(data.new))
    require("differing", device.differing(data.old, data.new).cpu().numpy(), expected)
    half = slice(COLS // 2, COLS)
    expected = np.flatnonzero(on_cpu(data.old)[:, half] != on_cpu(data.new)[:, half])
    got = device.differing(data.old[:, half], data.new[:, half])
    require("differing, strided", got.cpu().numpy(), expected)


def check_boundary(step: boundary_twin.Step, w: Any, m: Any, v: Any) -> None:
    got = device.boundary(w, m, v, AdamWStep(**vars(step)))
    host = [x.cpu().numpy().reshape(-1) for x in (w, m, v)]
    parts = []
    for first in range(0, len(host[0]), SLICE):
        found = boundary_twin.changes(step, *(x[first : first + SLICE] for x in host))
        parts.append((found.positions + first, found.kinds, found.old, found.other))
    expected = [np.concatenate(field) for field in zip(*parts, strict=True)]
    for field, mine, other in zip(got._fields, got, expected, strict=True):
        require(f"boundary {field}, {step}", mine.cpu().numpy().view(other.dtype), other)


def check_digest(data: Data) -> None:
    import torch

    shape = tuple(data.new.shape)
    key = device.key("w", "BF16", shape)
    parts = [device.digest(data.new, key)]
    words = COLS * 2 // 8
    columns = [
        device.digest(data.new[:, first : first + COLS // 4], key, 0, first // 4, words)
        for first in range(0, COLS, COLS // 4)
    ]
    (expected,) = dw.tensor_digests({"w": data.new.cpu()}).values()
    for what, lanes in (("whole", parts), ("by columns", columns)):
        got = combine(key.start, *map(device.digest_bytes, lanes))
        require(f"digest, {what}", list(got), list(expected))
    # Rows of an odd number of bytes, at an odd address.
    flat = data.new.view(-1).view(torch.uint8)
    width = (len(flat) - 1) // COLS | 1
    odd = flat[1 : 1 + (COLS - 1) * width].view(-1, width)
    key = device.key("w", "U8", tuple(odd.shape))
    (expected,) = dw.tensor_digests({"w": odd.cpu()}).values()
    got = combine(key.start, device.digest_bytes(device.digest(odd, key)))
    require("digest, bytes", list(got), list(expected))


def partitions(data: Data, boxes: list[tuple[int, Any]]) -> list[dw.Partition]:
    """Of all tiles that change: each is on its way while the next is made."""
    key = device.key("w", "BF16", tuple(data.new.shape))
    found = []
    for tile, ((top, bottom), (left, right)) in boxes:
        old, new = data.old[top:bottom, left:right], data.new[top:bottom, left:right]
        positions = device.differing(old, new)
        first, classes = device.choose(device.exponents(old, positions))
        lanes = device.digest(new, key, top, left // 4, COLS // 4)
        found.append(device.start_partition(old, positions, new, tile, first, classes, lanes))
    return [pending.wait() for pending in found]


def check_partition(data: Data) -> list[tuple[int, Any]]:
    """Tiles of the tensor, once their partitions made the delta that they should."""
    before, after = data.old.cpu(), data.new.cpu()
    sink = io.BytesIO()
    dw.diff({"w": before}, {"w": after}, sink)
    boxes = [(chunk.tile, chunk.box) for chunk in dw.StreamReader(sink.getvalue())]
    sink = io.BytesIO()
    with dw.StreamWriter(sink, {"w": before}, version=1) as writer:
        digests = [dw.tensor_digests({"w": tensor})["w"] for tensor in (before, after)]
        writer.add_partitions(
            "w", partitions(data, boxes), base_digest=digests[0], digest=digests[1]
        )
    dw.apply(sink.getvalue(), {"w": before})
    require("partition", on_cpu(before), on_cpu(after))
    return boxes


def check(data: Data) -> list[tuple[int, Any]]:
    """All checks; what was checked goes to standard error. Returns the tiles."""

    def say(what: str) -> None:
        print(f"equal on both: {what}", file=sys.stderr)

    check_differing(data)
    say("differing")
    check_digest(data)
    say("digest")
    count = len(data.borders)
    some = [x.reshape(-1)[:count] for x in (data.m, data.v)]
    for step in FORMS:
        check_boundary(step, *data.any_bits)
        check_boundary(step, data.borders, *some)
    for step in (FORMS[0], FORMS[-1]):
        check_boundary(step, data.w, data.m, data.v)
    say("boundary")
    boxes = check_partition(data)
    say("partition")
    return boxes


def timed(data: Data, boxes: list[tuple[int, Any]], rounds: int) -> list[dict[str, Any]]:
    """Speeds beside that of copying one state."""
    import torch

    key = device.key("w", "BF16", tuple(data.new.shape))
    state = data.old.nbytes
    target = torch.empty_like(data.old)
    wide = torch.empty_like(data.w)
    steps = {
        "boundary": AdamWStep(**vars(FORMS[0])),
        "boundary, margin 4": AdamWStep(**vars(FORMS[2])),
    }
    calls: dict[str, tuple[int, Callable[[], object]]] = {
        "memcpy": (state, lambda: target.copy_(data.old)),
        "memcpy, float32": (2 * state, lambda: wide.copy_(data.w)),
        "differing": (2 * state, lambda: device.differing(data.old, data.new)),
        "digest": (state, lambda: device.digest(data.new, key)),
        "partition, all tiles": (2 * state, lambda: partitions(data, boxes)),
    }
    for name, step in steps.items():
        calls[name] = (6 * state, lambda s=step: device.boundary(data.w, data.m, data.v, s))

    def waited(call: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            call()
            torch.cuda.synchronize()

        return run

    operations = [Operation(name, waited(call)) for name, (_, call) in calls.items()]
    in_rounds(operations, rounds)
    copied = state / operations[0].median
    return [
        {
            "name": operation.name,
            "bytes": calls[operation.name][0],
            "seconds": operation.median,
            "of_memcpy": calls[operation.name][0] / operation.median / copied,
        }
        for operation in operations
    ]


def cuda() -> str:
    """Name of the device; ends the command where there is none."""
    try:
        import torch
        import triton  # noqa: F401
    except ImportError as error:
        sys.exit(f"benches/device.py needs a torch for CUDA, with triton: {error}")
    if not torch.cuda.is_available():
        sys.exit("benches/device.py needs a CUDA device; torch finds none")
    return str(torch.cuda.get_device_name())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=int, default=64 << 20, help="of one tensor")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    name = cuda()
    import torch
    import triton

    data = Data(max(options.elements // COLS, 1) * COLS, "cuda")
    try:
        boxes = check(data)
    except Different as error:
        sys.exit(str(error))
    rows = timed(data, boxes, options.rounds)
    result = {
        "device": name,
        "machine": machine() | {"torch": torch.__version__, "triton": triton.__version__},
        "elements": data.old.numel(),
        "changed": len(device.differing(data.old, data.new)),
        "results": rows,
    }
    if options.json:
        print(json.dumps(result, indent=1))
        return
    print(f"{name}: {result['elements']} elements, {result['changed']} changed")
    for row in rows:
        print(f"{row['name']:24} {row['seconds'] * 1e3:10.3f} ms {row['of_memcpy']:8.2f} of memcpy")


if __name__ == "__main__":
    main()
