"""Peak anonymous memory of one encode and one apply, in a process that does nothing else.

    python benches/memory.py BASE NEW WORK_DIR PROFILE THREADS

BASE and NEW are checkpoints and stay memory-mapped. Prints one JSON object, bytes above the level
before the call; the library is loaded and its threads are running by then.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np

import deltawire as dw
from deltawire.checkpoint import Checkpoint
from measure import CountingSink, PeakAnonymous


def main(base: str, new: str, work: str, profile: str, threads: str) -> None:
    delta, target = Path(work, "memory.dw"), Path(work, "target.safetensors")
    small = {"w": np.zeros(1, np.float32)}
    dw.diff(small, {"w": np.ones(1, np.float32)}, CountingSink(), threads=int(threads))
    with PeakAnonymous() as encode:
        dw.diff(base, new, delta, profile=profile, threads=int(threads))
    shutil.copyfile(base, target)
    with Checkpoint.open(target, writable=True) as checkpoint, PeakAnonymous() as apply:
        dw.apply(delta, checkpoint, threads=int(threads))
    delta.unlink()
    target.unlink()
    print(json.dumps({"encode": encode.extra, "apply": apply.extra}))


if __name__ == "__main__":
    main(*sys.argv[1:])
