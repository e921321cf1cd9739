"""What every process of the demo does besides its work: log, report its end, never outlive."""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from ..errors import DeltawireError
from .options import DemoConfig
from .spool import Spool

ORPHANED = 75
WATCH_SECONDS = 0.5
# The launcher sees all processes and knows whom to blame, so it gives up first.
SLACK_SECONDS = 30.0


def main(name: str, config_path: str, work: Callable[[DemoConfig, Spool], None]) -> int:
    """Run ``work`` and return the exit status. The launcher's log file is stdout and stderr."""
    try:
        config = DemoConfig.load(Path(config_path))
        _end_with(config.launcher)
        spool = Spool(Path(config.work) / "spool", timeout=config.timeout + SLACK_SECONDS)
        log(f"{name} starts, process {os.getpid()}")
        work(config, spool)
    except DeltawireError as error:
        traceback.print_exc()
        return _failed(name, config_path, str(error), error.exit_status)
    except Exception as error:  # noqa: BLE001 - the end of the process: told in full, then gone
        traceback.print_exc()
        return _failed(name, config_path, f"{type(error).__name__}: {error}", 1)
    spool.put("done", name, {"peak_memory": peak_memory()})
    log(f"{name} is done")
    return 0


def log(line: str) -> None:
    """One line with the time of day into the process's log."""
    print(time.strftime("%H:%M:%S"), line, flush=True)


def peak_memory() -> int:
    """The most bytes of memory that this process has held at once, shared ones included."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # elsewhere in KiB


def _failed(name: str, config_path: str, message: str, status: int) -> int:
    """Leave the reason where the launcher finds it."""
    reason = Path(config_path).parent / f"{name}.failed.json"
    reason.write_text(json.dumps({"message": message, "status": status}), encoding="utf-8")
    sys.stderr.flush()
    return status


def _end_with(parent: int) -> None:
    """End this process soon after its parent, however that ended."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_SECONDS)
        log("the launcher is gone; so am I")
        os._exit(ORPHANED)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()
