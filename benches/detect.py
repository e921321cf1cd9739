"""What finding the changes of a step costs: time against one compare pass, and memory.

    python benches/detect.py [--elements N] [--lr LR] [--rounds N] [--threads N] [--json]

One parameter of ``N`` FP32 elements is stepped by AdamW at RL's learning rates. In the same
rounds: comparing two BF16 copies of as many elements (what a detector with a snapshot does), the
boundary test on the optimizer's state, and proving and encoding what it found. Memory is the peak
of anonymous memory beyond what training holds, in the same process.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import numpy as np
import torch

import deltawire as dw
from deltawire import _native
from deltawire.detect import AdamWBoundaryDetector, StepwiseDetector
from measure import CountingSink, Operation, PeakAnonymous, in_rounds, machine


def trained(elements: int, lr: float) -> tuple[torch.nn.Parameter, torch.optim.AdamW]:
    """A parameter in the middle of training: |m| / sqrt(v) is about 0.18, as measured."""
    torch.manual_seed(0)
    w = torch.nn.Parameter(torch.randn(elements // 4096, 4096) * 0.02)
    optimizer = torch.optim.AdamW([w], lr=lr, weight_decay=0.01)
    v = torch.rand_like(w).mul_(4e-6).add_(1e-6)
    m = torch.randn_like(w).mul_(0.22).mul_(v.sqrt())
    optimizer.state[w] = {"step": torch.tensor(100.0), "exp_avg": m, "exp_avg_sq": v}
    return w, optimizer


def step(w: torch.nn.Parameter, optimizer: torch.optim.AdamW) -> None:
    """One step whose gradient keeps the moments as they are, about."""
    w.grad = torch.randn_like(w).mul_(optimizer.state[w]["exp_avg_sq"].sqrt())
    optimizer.step()
    w.grad = None


class Ours:
    """The detector's work after a step, apart from the step itself."""

    def __init__(self, w: torch.nn.Parameter, optimizer: torch.optim.AdamW, threads: int) -> None:
        self.optimizer, self.threads = optimizer, threads
        self.detector = AdamWBoundaryDetector({"w": w}, optimizer, threads=threads)
        step(w, optimizer)
        self.found = self.detector._journals["w"].found

    def find(self) -> None:
        """The boundary test, again."""
        (parts,) = self.detector._of.values()
        part = parts[0]
        self.detector._journals["w"].clear()
        self.detector._seen = {key: number - 1 for key, number in self.detector._seen.items()}
        self.detector._stepped(self.optimizer)
        assert len(self.detector._found(part)) == len(self.found)

    def encode(self) -> None:
        """Prove and encode, without moving on."""
        detector = self.detector
        with dw.StreamWriter(
            CountingSink(), detector.mine, tiles=detector.tiles, threads=self.threads
        ) as writer:
            detector.write(writer)


def measure(elements: int, lr: float, rounds: int, threads: int) -> dict[str, Any]:
    """Seconds of each operation, best of the rounds, and ratios to the compare pass."""
    torch.set_num_threads(threads)
    w, optimizer = trained(elements, lr)
    ours = Ours(w, optimizer, threads)
    new = w.detach().to(torch.bfloat16).view(torch.int16).numpy().view(np.uint8)
    old = new.copy()
    flat = old.view(np.uint16).reshape(-1)
    flat[ours.found.positions] = ours.found.old
    pieces = range(0, len(new), max(1, len(new) // 16))
    size = max(1, len(new) // 16)

    def compare() -> None:
        for first in pieces:
            _native.differing(old[first : first + size], new[first : first + size], 2)

    operations = [
        Operation("compare", compare),
        Operation("boundary", ours.find),
        Operation("prove and encode", ours.encode),
    ]
    in_rounds(operations, rounds)
    seconds = {one.name: min(one.seconds) for one in operations}
    return {
        "machine": machine(),
        "elements": elements,
        "changed": len(ours.found),
        "threads": threads,
        "seconds": seconds,
        "ratios": {name: value / seconds["compare"] for name, value in seconds.items()},
    }


def memory(elements: int, kind: str) -> dict[str, int]:
    """Peak bytes beyond training's own of a step with a detector, and of proving what it found.

    The step's own temporaries are measured without a detector, and taken off.
    """
    torch.set_num_threads(2)
    w, optimizer = trained(elements, 1e-6)
    step(w, optimizer)
    w.grad = torch.randn_like(w).mul_(optimizer.state[w]["exp_avg_sq"].sqrt())
    with PeakAnonymous() as alone:
        optimizer.step()
    kinds = {"adamw": AdamWBoundaryDetector, "stepwise": StepwiseDetector}
    with PeakAnonymous() as made:
        detector = kinds[kind]({"w": w}, optimizer, threads=2)
    with PeakAnonymous() as stepped:
        optimizer.step()
    changed = len(detector._journals["w"].found)
    with PeakAnonymous() as collected:
        for _ in detector.collect():
            pass
    return {
        "made": made.extra,
        "step": max(0, stepped.extra - alone.extra),
        "collect": collected.extra,
        "changed": changed,
    }


def main(arguments: list[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--elements", type=int, default=1 << 25)
    parser.add_argument("--lr", type=float, default=3e-6)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--memory", choices=["adamw", "stepwise"], help="print only peak memory")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    if given.memory:
        print(json.dumps(memory(given.elements, given.memory)))
        return
    result = measure(given.elements, given.lr, given.rounds, given.threads)
    if given.json:
        print(json.dumps(result, indent=1))
        return
    here = result["machine"]
    simd = ", ".join(here["simd"])
    print(f"{here['cpu']}, {here['cores']} cores, {simd}; {given.threads} threads")
    share = result["changed"] / result["elements"]
    print(f"{result['elements']} elements, {result['changed']} changed ({share:.2%})")
    for name, ratio in result["ratios"].items():
        print(f"{name:18} {1e3 * result['seconds'][name]:9.2f} ms {ratio:7.2f} of a compare pass")


if __name__ == "__main__":
    main(sys.argv[1:])
