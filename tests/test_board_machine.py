"""Random sequences of everything that can happen to a board; see ``board_machine``."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from board_machine import BoardMachine, Totals

#: Runs that may be needed before everything has come by.
MOST_RUNS = 8


@pytest.mark.hypothesis
def test_any_sequence_of_events() -> None:
    """What is committed stays, nothing else shows, and readers know what they hold."""
    BoardMachine.totals = totals = Totals()
    # 100 examples in the default profile.
    examples = settings().max_examples
    lacking: list[str] = []
    for _ in range(MOST_RUNS):
        run_state_machine_as_test(  # type: ignore[no-untyped-call]
            BoardMachine, settings=settings(max_examples=examples, stateful_step_count=30)
        )
        lacking = missing(totals)
        if not lacking:
            break
    print(f"\n{totals}")
    assert totals.examples >= examples
    assert not lacking, f"never seen: {lacking}"


def missing(totals: Totals) -> list[str]:
    """What the examples were not about yet."""
    wanted = {
        "13 kinds of events": len(totals.events) == 13,
        "six kinds of faults": len(totals.injected) >= 6,
        "faults": sum(totals.injected.values()) > totals.examples,
        "errors": {"StoreError", "VersionConflict"} <= set(totals.errors),
        "versions": totals.versions > totals.examples,
        "collected versions": totals.collected > 0,
        "skip records": totals.skips > totals.examples / 10,
    }
    return [name for name, seen in wanted.items() if not seen]
