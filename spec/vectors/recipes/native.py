"""Goldens of the package's own writer: every pair of states under every profile."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from typing import Any

from .states import State

PROFILES = ("compact", "fast", "overwrite")


def cases(states: Mapping[str, State]) -> list[dict[str, Any]]:
    pairs = [name.removesuffix(".new") for name in states if name.endswith(".new")]
    return [
        {
            "file": f"native/{pair}-{profile}.dw",
            "profile": profile,
            "base": f"{pair}.base",
            "new": f"{pair}.new",
        }
        for pair in pairs
        for profile in PROFILES
    ]


def build(case: Mapping[str, Any], state: Callable[[str], State]) -> bytes:
    """The file that ``dw.diff`` writes for a case."""
    import deltawire as dw

    sink = io.BytesIO()
    base, new = (
        {
            name: dw.TensorView.from_bytes(value.dtype, value.shape, bytearray(value.data))
            for name, value in state(case[end]).items()
        }
        for end in ("base", "new")
    )
    dw.diff(
        base,
        new,
        sink,
        base_version=7,
        version=8,
        run="golden",
        profile=case["profile"],
        meta={"writer": "native"},
        threads=1,
    )
    return sink.getvalue()


def make_native(states: Mapping[str, State]) -> dict[str, bytes]:
    """The files of ``native/`` by their path."""
    listed = cases(states)
    files = {case["file"]: build(case, lambda name: states[name]) for case in listed}
    document = json.dumps({"format": "1.0", "files": listed}, indent=1, ensure_ascii=False)
    return {**files, "native/vectors.json": (document + "\n").encode()}
