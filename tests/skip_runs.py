"""Boards with skip records, and records made by hand."""

from __future__ import annotations

import time

import deltawire as dw
from board_runs import (
    Arrays,
    advance,
    copied,
    model,
)
from deltawire.board.manifest import PartRef, SkipRecord, VersionRef


def back_and_forth(
    board: dw.Board, last: int, profile: dw.types.Profile = "compact"
) -> list[Arrays]:
    """Versions that change the same few elements again and again, so that folding pays."""
    states = [model()]
    with board.publisher(run="test") as publisher:
        publisher.publish_anchor(0, states[0])
        for version in range(1, last + 1):
            arrays = copied(states[-1])
            advance(arrays, 1 + version % 2)
            states.append(arrays)
            publisher.publish(version, base=states[-2], new=arrays, profile=profile)
    return states


def wait_for(board: dw.Board, version: int, span: int) -> None:
    """Until the publisher has added a skip record."""
    deadline = time.monotonic() + 30
    while not board.records.has_skip(version - span, version):
        assert time.monotonic() < deadline, f"no skip record of {version}"
        time.sleep(0.005)


def record(board: dw.Board, base: int, version: int) -> SkipRecord:
    """The skip record between two versions."""
    (found,) = board.store.skip_records([(version, base)])
    assert found is not None
    return SkipRecord.from_json(found[0])


def publish_by_hand(
    board: dw.Board, base: int, version: int, /, old: Arrays, new: Arrays, **changes: object
) -> None:
    """A skip record with a delta of any two states, and with other fields."""
    first, last = board.manifest(base), board.manifest(version)
    path, _ = board.store.skip_paths(version, base, "7" * 32)
    upload = board.store.upload(path)
    stats = dw.diff(old, new, upload, base_version=base, version=version, run=last.run)
    value = {
        "version": version,
        "manifest": last.digest,
        "base": VersionRef(base, first.digest),
        "base_state": first.result_state,
        "result_state": last.result_state,
        "objects": (PartRef(*upload.finish()),),
        "changed": stats.changed,
        "write_id": "7" * 32,
        "time": 1.0,
    }
    made = SkipRecord(**(value | changes))  # type: ignore[arg-type]
    board.store.commit_skip(version, base, made.to_json())
