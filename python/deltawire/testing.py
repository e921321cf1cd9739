"""Faults on purpose: test what your trainer or engine does when a board's store misbehaves.

    plan = FaultPlan(seed=7)
    plan.add("lost-reply", on="create", path="manifests/")
    board = deltawire.Board(url, create=True, faults=plan)

Works with every kind of board. Nothing is random but by the seed, and no clock is read: the same
program meets the same faults again. ``docs/testing.md`` has an example.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from . import _native

__all__ = ["Event", "Fault", "FaultPlan", "Operation"]

Operation = Literal[
    "create",
    "overwrite",
    "begin",
    "part",
    "complete",
    "abort",
    "get",
    "head",
    "list",
    "delete",
]
Fault = Literal[
    "error",
    "timeout",
    "lost-reply",
    "late",
    "torn",
    "cut",
    "short",
    "stale-list",
    "delay",
    "crash",
    "crash-after",
]


@dataclass(frozen=True)
class Event:
    """One request to the store.

    Attributes:
        number: counted from 1 over all boards of the plan.
        operation: what was asked.
        path: of which object or directory, from the store's root.
        fault: what was done to it, delays left out; None: nothing.
    """

    number: int
    operation: str
    path: str
    fault: str | None


class FaultPlan:
    """Decides, request by request, what a board's store does wrong.

    Give it to ``Board(faults=)``. Several boards may share one plan, then they share its counts
    and crashes. A board with a plan counts as one on a store that others run, whatever kind it is:
    a write that failed may still land. What lies below, such as the retries of ``StoreOptions``,
    sees no fault; opening the board is not disturbed.
    """

    def __init__(self, seed: int = 0) -> None:
        """Make a plan without faults, which only counts.

        Args:
            seed: 0 to 2**64 - 1; decides where ``probability`` is below 1, by rule, operation,
                path (write ids left out) and how often the same was asked before, so that what
                else happens at the same time does not matter.
        """
        self._native = _native.FaultPlan(seed)

    @property
    def native(self) -> _native.FaultPlan:
        """The plan as the native module takes it."""
        return self._native

    def add(
        self,
        fault: Fault,
        *,
        on: Operation | Iterable[Operation] = (),
        path: str = "",
        skip: int = 0,
        times: int | None = 1,
        probability: float = 1.0,
        ms: int = 0,
        bytes: int = 0,
        operations: int = 8,
    ) -> None:
        """Add a rule. Of the rules that match a request the first one hits; delays add up.

        Args:
            fault: ``error`` (nothing is done), ``timeout`` (nothing is done, and it fails after
                ``ms``), ``lost-reply`` (it is done, and fails), ``late`` (it fails, and is done
                ``operations`` later, if it can be then), ``torn`` (the first ``bytes`` get the
                name, and it fails; no store may do that to records), ``cut`` (the answer breaks
                off after ``bytes``), ``short`` (it ends there as if complete), ``stale-list``
                (leaves out what was written in the last ``operations``), ``delay`` (by ``ms``),
                ``crash`` (this and all that follows fails, nothing of it is done), ``crash-after``
                (the same, but this one is done).
            on: one or more operations; by default all that the fault fits: ``create`` (records,
                small objects), ``overwrite`` (hints, leases), ``begin``, ``part``, ``complete``
                and ``abort`` of uploads in parts, ``get``, ``head``, ``list``, ``delete``.
            path: only where this is part of the object's path, such as ``"manifests/"``.
            skip: matching requests that are let through first.
            times: how many are hit; None: all further ones.
            probability: share of the matching requests that are hit, 0 to 1.
            ms: milliseconds.
            bytes: bytes that get through.
            operations: counted over all boards of the plan.

        Raises:
            ValueError: an unknown name, an operation that the fault does not fit, or a value out
                of range.
        """
        if min(skip, times or 0, ms, bytes, operations) < 0:
            raise ValueError("skip, times, ms, bytes and operations are not negative")
        wanted = [on] if isinstance(on, str) else list(on)
        self._native.add(fault, wanted, path, skip, times, probability, ms, bytes, operations)

    def clear(self) -> None:
        """Remove all rules, and undo a crash; late writes still land."""
        self._native.clear()

    def crash(self) -> None:
        """Let everything fail from now on, as if the process had no store any more."""
        self._native.crash()

    @property
    def crashed(self) -> bool:
        """Whether a crash has come."""
        return self._native.crashed

    def settle(self) -> int:
        """Let all late writes land now; returns how many there were."""
        return self._native.settle()

    @property
    def counts(self) -> dict[str, int]:
        """Requests so far by operation, those that failed included."""
        return self._native.counts()

    @property
    def injected(self) -> dict[str, int]:
        """Requests hit so far by fault; of those after a crash only the first."""
        return self._native.injected()

    @property
    def events(self) -> list[Event]:
        """The newest requests, at most 10,000, oldest first."""
        return [Event(*event) for event in self._native.events()]

    def count(self, operation: Operation, path: str = "") -> int:
        """Requests of one kind among :attr:`events`, with ``path`` in their path."""
        return sum(event.operation == operation and path in event.path for event in self.events)

    def __repr__(self) -> str:
        return f"<FaultPlan: {sum(self.counts.values())} requests, injected {self.injected}>"
