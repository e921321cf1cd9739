"""Peak anonymous memory of one encode and one apply, in a process that does nothing else.

    python benches/memory.py BASE NEW WORK_DIR CODEC THREADS

BASE and NEW are checkpoints and stay memory-mapped. CODEC is a profile or the name of a competitor.
Prints one JSON object, bytes above the level before the call; libraries are loaded and threads are
running by then. deltawire writes to a file; the competitors return bytes, which count.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np

import deltawire as dw
from deltawire.checkpoint import Checkpoint
from deltawire.types import Profile
from measure import CountingSink, PeakAnonymous

PROFILES: dict[str, Profile] = {"compact": "compact", "fast": "fast", "overwrite": "overwrite"}


def of_deltawire(base: str, new: str, work: str, name: str, threads: int) -> tuple[int, int]:
    """Peaks of ``diff`` and of ``apply`` with every proof, in bytes."""
    delta, target = Path(work, "memory.dw"), Path(work, "target.safetensors")
    small = {"w": np.zeros(1, np.float32)}
    dw.diff(small, {"w": np.ones(1, np.float32)}, CountingSink(), threads=threads)
    with PeakAnonymous() as encode:
        dw.diff(base, new, delta, profile=PROFILES[name], threads=threads)
    shutil.copyfile(base, target)
    with Checkpoint.open(target, writable=True) as checkpoint, PeakAnonymous() as apply:
        dw.apply(delta, checkpoint, threads=threads)
    delta.unlink()
    target.unlink()
    return encode.extra, apply.extra


def of_competitor(base: str, new: str, work: str, name: str, threads: int) -> tuple[int, int]:
    """Peaks of encoding and applying a published layout, in bytes."""
    from competitors import COMPETITORS
    from contenders import bits

    codec = next(codec for codec in COMPETITORS if codec.name == name)
    target = Path(work, "target.safetensors")
    with Checkpoint.open(base) as old, Checkpoint.open(new) as fresh, PeakAnonymous() as encode:
        delta = codec.encode(bits(dict(old.items())), bits(dict(fresh.items())), threads)
    shutil.copyfile(base, target)
    with Checkpoint.open(target, writable=True) as checkpoint, PeakAnonymous() as apply:
        codec.decode(delta, bits(dict(checkpoint.items())), threads)
    target.unlink()
    return encode.extra, apply.extra


def main(base: str, new: str, work: str, codec: str, threads: str) -> None:
    measure = of_deltawire if codec in PROFILES else of_competitor
    encode, apply = measure(base, new, work, codec, int(threads))
    print(json.dumps({"encode": encode, "apply": apply}))


if __name__ == "__main__":
    main(*sys.argv[1:])
