"""Random sequences of everything that can happen to a board; see ``board_machine``."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from board_machine import BoardMachine, Totals


@pytest.mark.hypothesis
def test_any_sequence_of_events() -> None:
    """What is committed stays, nothing else shows, and readers know what they hold."""
    BoardMachine.totals = totals = Totals()
    # 100 examples in the default profile.
    examples = settings().max_examples
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        BoardMachine, settings=settings(max_examples=examples, stateful_step_count=30)
    )
    print(f"\n{totals}")
    # That it was about something: every rule and fault came by, and most publishing succeeded.
    assert totals.examples >= examples
    assert totals.versions > totals.examples
    assert len(totals.events) == 13, totals.events
    assert totals.skips > totals.examples / 10
    assert len(totals.injected) >= 6
    assert totals.collected > 0
    assert sum(totals.injected.values()) > totals.examples
    assert {"StoreError", "VersionConflict"} <= set(totals.errors)
