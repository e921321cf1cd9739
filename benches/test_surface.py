"""The Python surface under pytest-benchmark, one thread, on a small synthetic policy.

    make bench-python

For watching one call while working on it; ``run.py`` is what gets compared and recorded. Not
collected by a plain ``pytest``. ``gbps`` in the saved JSON is GB/s of dense bytes by the median.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest

import deltawire as dw
from contenders import Target
from data import DataSet
from deltawire.types import Profile
from measure import CountingSink
from synth import Decoder, policy_step

ROUNDS = 20
PIECE = 64 << 10

PROFILES = pytest.mark.parametrize("profile", ["compact", "fast", "overwrite"])


@pytest.fixture(scope="module")
def data() -> DataSet:
    """4.9 M elements, about one percent changed."""
    sizes = Decoder(hidden=512, inner=1408, layers=1, kv=128, vocab=4096)
    return DataSet("small", *policy_step(sizes, 1.1e-6))


@pytest.fixture
def timed(benchmark: Any, data: DataSet) -> Callable[..., Any]:
    """Time a call, each round after its setup; returns what the last call returned."""

    def run(call: Callable[[], object], setup: Callable[[], None] | None = None) -> Any:
        result = benchmark.pedantic(call, setup=setup, rounds=ROUNDS, warmup_rounds=2)
        benchmark.extra_info["gbps"] = data.nbytes / benchmark.stats.stats.median / 1e9
        return result

    return run


def delta_of(data: DataSet, profile: Profile) -> bytes:
    sink = io.BytesIO()
    dw.diff(data.base, data.new, sink, profile=profile)
    return sink.getvalue()


@PROFILES
def test_diff(timed: Callable[..., Any], data: DataSet, profile: Profile) -> None:
    """Comparison, both digests and encoding."""
    timed(lambda: dw.diff(data.base, data.new, CountingSink(), profile=profile, threads=1))


@PROFILES
@pytest.mark.parametrize("verify", [True, False], ids=["proven", "unproven"])
def test_apply(timed: Callable[..., Any], data: DataSet, profile: Profile, verify: bool) -> None:
    """Checks, decoding and the scatter, with and without the proof of the whole state."""
    delta, receiver = delta_of(data, profile), Target(data)
    timed(lambda: dw.apply(delta, receiver.tensors, verify=verify, threads=1), setup=receiver.reset)
    receiver.checker(profile)()


@PROFILES
def test_stream_reader(timed: Callable[..., Any], data: DataSet, profile: Profile) -> None:
    """Chunks as they arrive in pieces, each applied at once."""
    delta, receiver = delta_of(data, profile), Target(data)

    def read() -> None:
        reader = dw.StreamReader()
        for start in range(0, len(delta), PIECE):
            for chunk in reader.feed(delta[start : start + PIECE]):
                chunk.apply_(receiver.tensors)
        reader.finish()

    timed(read, setup=receiver.reset)
    receiver.checker(profile)()


@PROFILES
def test_inspect(timed: Callable[..., Any], data: DataSet, profile: Profile) -> None:
    """Every checksum of a delta."""
    delta = delta_of(data, profile)
    info = timed(lambda: dw.inspect(delta))
    assert info.elements * 2 == data.nbytes


def test_state_digest(timed: Callable[..., Any], data: DataSet) -> None:
    """One pass over the state."""
    timed(lambda: dw.state_digest(data.new, threads=1))
