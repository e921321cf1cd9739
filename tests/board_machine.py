"""Any sequence of publishers, readers, crashes and faults on one board, with a model beside it.

The model knows the bits of everything that anybody ever tried to publish, and what was seen
committed. Rules do one thing each to the board through a plan of faults of the actor's own;
``observe`` looks at the board without faults afterwards. What lies below the boundary of a
collection may be there or not.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import deltawire as dw
from board_runs import Arrays, copied, fresh_memory, same, zeros
from deltawire.testing import Fault, FaultPlan
from signed_runs import trainer

FAULTS: list[Fault] = ["late", "lost-reply", "error", "torn", "cut", "short", "stale-list"]
FAULTS += ["crash", "crash-after"]
#: What a fault may lead to; anything else is a defect.
PUBLISHING = (dw.StoreError, dw.VersionConflict, dw.WrongBase, dw.WrongVersion, dw.UntrustedDelta)
READING = (dw.StoreError, dw.UntrustedDelta)
#: Beyond the grace that leases have for clocks that disagree, and within.
SKEWS = [0, 0, 0, -4000, -100, 100, 4000]


@st.composite
def fault_rules(draw: st.DrawFn) -> dict[str, Any]:
    """One rule for a plan, of all that the protocol must bear."""
    fault = draw(st.sampled_from(FAULTS))
    # No store may tear a record, and skip records lie beside the objects.
    path = draw(st.sampled_from([".dw", ".safetensors"])) if fault == "torn" else ""
    if fault in ("lost-reply", "late", "cut", "short"):
        path = draw(st.sampled_from(["", "manifests/", "control/", "objects/", "anchors/"]))
    return {
        "fault": fault,
        "path": path,
        "skip": draw(st.integers(0, 2 if path or fault == "stale-list" else 20)),
        "times": draw(st.integers(1, 3)),
        "bytes": draw(st.integers(0, 60)),
        "operations": draw(st.integers(1, 40)),
    }


faults = st.none() | fault_rules() | fault_rules()


@dataclass
class Writer:
    """A publisher of one process."""

    plan: FaultPlan
    publisher: dw.Publisher


@dataclass
class Reader:
    """A follower of one process, and what it is to hold."""

    plan: FaultPlan
    follower: dw.Follower
    target: Arrays
    #: Whether a lease protects what it holds.
    leased: bool = False


@dataclass
class Totals:
    """Over all examples."""

    examples: int = 0
    events: Counter[str] = field(default_factory=Counter)
    injected: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    versions: int = 0
    collected: int = 0
    skips: int = 0


class BoardMachine(RuleBasedStateMachine):
    """See the module."""

    totals = Totals()

    def __init__(self) -> None:
        super().__init__()
        self.scratch = Path(tempfile.mkdtemp())
        self.plans: list[FaultPlan] = []
        self.writers: list[Writer] = []
        self.readers: list[Reader] = []
        self.contents: dict[bytes, Arrays] = {}
        #: Version -> manifest digest and state, of all that were ever seen.
        self.versions: dict[int, tuple[str, bytes]] = {}
        self.boundary = 0
        self.leases = 0

    # --- The board -----------------------------------------------------------------------

    @initialize(signed=st.booleans(), local=st.integers(0, 7), begun=st.integers(0, 4))
    def begin(self, signed: bool, local: int, begun: int) -> None:
        """A board, on a disk now and then, and mostly one with some versions."""
        self.url = str(self.scratch / "board") if local == 7 else fresh_memory()
        self.key = trainer() if signed else None
        self.trust = None if self.key is None else dw.Trust([self.key.public])
        dw.Board(self.url, create=True)
        self.totals.examples += 1
        for seed in range(begun):
            if not seed:
                self.open_publisher(None)
            base, new = self.changed(seed)
            # With a second anchor there is something to collect.
            if seed % 3:
                self.writers[-1].publisher.publish(base=base, new=new)
            else:
                self.writers[-1].publisher.publish_anchor(None, new)
            self.observe()

    def board(self, plan: FaultPlan | None = None) -> dw.Board:
        """As a new process opens it."""
        return dw.Board(self.url, trust=self.trust, faults=plan)

    def plan(self, *rules: dict[str, Any] | None) -> FaultPlan:
        """A plan that is counted."""
        plan = FaultPlan(seed=len(self.plans))
        for each in rules:
            if each is not None:
                plan.add(**each)
        self.plans.append(plan)
        return plan

    def failed(self, error: dw.DeltawireError) -> None:
        """Count an error that may be."""
        self.totals.errors[type(error).__name__] += 1

    def arrays(self, version: int) -> Arrays:
        """What a version holds."""
        return self.contents[self.versions[version][1]]

    def there(self) -> list[int]:
        """The versions that must be readable."""
        return sorted(version for version in self.versions if version >= self.boundary)

    def observe(self) -> None:
        """Nothing that was there has changed, and what is new was published by somebody."""
        board = self.board()
        boundary = board.boundary() or 0
        assert boundary >= self.boundary
        self.boundary = boundary
        log = {m.version: m for m in board.log() if m.version >= boundary}
        for version, manifest in log.items():
            found = (manifest.digest, manifest.result_state)
            if version not in self.versions:
                assert found[1] in self.contents, "nobody tried to publish this"
                self.versions[version] = found
                self.totals.versions += 1
                self.read(version)
            assert self.versions[version] == found, "a version has changed"
        assert sorted(log) == self.there()
        assert self.there() == list(range(boundary, max(self.versions, default=-1) + 1))
        assert board.head() == max(self.versions, default=None)

    def read(self, version: int) -> None:
        """A new reader gets the very bits."""
        arrays = self.arrays(version)
        target = zeros(arrays)
        self.board().follower(target).advance(version)
        assert same(target, arrays)

    @invariant()
    def nothing_is_lost(self) -> None:
        """After each event."""
        if hasattr(self, "url"):
            self.observe()

    # --- Publishers ----------------------------------------------------------------------

    @rule(fault=faults)
    def open_publisher(self, fault: dict[str, Any] | None) -> None:
        """One more process that publishes; those before are fenced, and may not know."""
        self.totals.events["open publisher"] += 1
        plan = self.plan(fault)
        try:
            publisher = self.board(plan).publisher(run="machine", key=self.key)
        except dw.StoreError as error:
            self.failed(error)
            return
        self.writers = [*self.writers[-2:], Writer(plan, publisher)]

    def changed(self, seed: int) -> tuple[Arrays, Arrays]:
        """The bits of the head, and others."""
        if not self.versions:
            rng = np.random.default_rng(seed)
            base: Arrays = {
                "a": rng.standard_normal((9, 17)).astype(np.float32),
                "b": rng.integers(0, 1000, 40).astype(np.int16),
            }
        else:
            base = self.arrays(max(self.versions))
        new = copied(base)
        new["a"].reshape(-1)[seed % 153] += 1 + seed
        new["b"][seed % 40] ^= 1 + seed % 7
        self.contents[dw.state_digest(new)] = new
        return base, new

    @precondition(lambda self: self.writers)
    @rule(data=st.data(), fault=faults, seed=st.integers(0, 999), anchor=st.integers(0, 3))
    def publish(
        self, data: st.DataObject, fault: dict[str, Any] | None, seed: int, anchor: int
    ) -> None:
        """The next version, by whoever thinks to be the publisher."""
        self.totals.events["publish"] += 1
        # Mostly the newest one.
        place = data.draw(st.sampled_from([-1, -1, -1, 0]))
        writer = self.writers[place]
        if fault is not None:
            writer.plan.add(**fault)
        base, new = self.changed(seed)
        before = max(self.versions, default=-1)
        try:
            if before < 0 or anchor == 0:
                stats = writer.publisher.publish_anchor(None, new, max_shard_bytes=400)
            elif anchor == 1:
                stats = self.publish_parts(writer, base, new)
            else:
                stats = writer.publisher.publish(base=base, new=new)
        except PUBLISHING as error:
            self.failed(error)
            return
        assert stats.version not in self.versions
        self.observe()
        assert self.versions[stats.version][1] == dw.state_digest(new)

    def publish_parts(self, writer: Writer, base: Arrays, new: Arrays) -> dw.PublishStats:
        """By two ranks, each with its tensor."""
        self.totals.events["publish parts"] += 1
        with writer.publisher.begin(parts=2) as pending:
            rank = self.board(writer.plan)
            parts = [
                rank.upload_part(
                    pending.ticket, number, base={name: base[name]}, new={name: new[name]}
                )
                for number, name in enumerate(base)
            ]
            return pending.commit(parts)

    @precondition(lambda self: self.writers and self.versions)
    @rule(data=st.data(), fault=faults)
    def add_anchor(self, data: st.DataObject, fault: dict[str, Any] | None) -> None:
        """To a version that exists."""
        self.totals.events["add anchor"] += 1
        version = data.draw(st.sampled_from(self.there()))
        writer = self.writers[-1]
        if fault is not None:
            writer.plan.add(**fault)
        try:
            writer.publisher.publish_anchor(version, self.arrays(version), max_shard_bytes=400)
        except PUBLISHING as error:
            self.failed(error)

    @precondition(lambda self: len(self.there()) > 1)
    @rule(data=st.data(), fault=faults, given=st.booleans())
    def add_skip(self, data: st.DataObject, fault: dict[str, Any] | None, given: bool) -> None:
        """A delta over some versions, by anybody."""
        self.totals.events["add skip"] += 1
        ends = st.lists(st.sampled_from(self.there()), min_size=2, max_size=2, unique=True)
        base, version = sorted(data.draw(ends))
        weights = self.arrays(base) if given else None
        try:
            self.board(self.plan(fault)).add_skip(
                base, version, weights=weights, key=self.key, threads=1, scratch=self.scratch
            )
        except (*PUBLISHING, dw.BrokenChain) as error:
            self.failed(error)
            return
        self.observe()
        self.totals.skips += 1
        target = copied(self.arrays(base))
        steps = self.board().follower(target, version=base, threads=1).advance(version)
        assert len(steps) == 1
        assert same(target, self.arrays(version))

    @precondition(lambda self: self.writers)
    @rule(place=st.sampled_from([-1, 0]))
    def kill_publisher(self, place: int) -> None:
        """What it has sent and given up on may still arrive."""
        self.totals.events["kill publisher"] += 1
        self.writers.pop(place).plan.crash()

    @precondition(lambda self: any(plan.injected.get("late") for plan in self.plans))
    @rule(data=st.data())
    def late_writes_arrive(self, data: st.DataObject) -> None:
        """Those of one process, dead or alive."""
        self.totals.events["late writes arrive"] += 1
        data.draw(st.sampled_from(self.plans)).settle()

    # --- Followers -----------------------------------------------------------------------

    @precondition(lambda self: self.versions)
    @rule(late=st.booleans(), lease=st.booleans(), data=st.data())
    def open_follower(self, late: bool, lease: bool, data: st.DataObject) -> None:
        """With nothing, or with the bits of a version."""
        self.totals.events["open follower"] += 1
        plan = self.plan()
        version = None if late else data.draw(st.sampled_from(self.there()))
        known = max(self.versions)
        target = zeros(self.arrays(known)) if version is None else copied(self.arrays(version))
        name = "machine" if lease else None
        follower = self.board(plan).follower(target, version=version, threads=1, lease=name)
        self.readers = [*self.readers[-2:], Reader(plan, follower, target)]
        self.leases += lease
        if lease and late:
            follower.advance()
            self.readers[-1].leased = True

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), fault=faults, to_newest=st.booleans())
    def advance(self, data: st.DataObject, fault: dict[str, Any] | None, to_newest: bool) -> None:
        """To the newest version or another; after an error it knows what it holds."""
        self.totals.events["advance"] += 1
        reader = data.draw(st.sampled_from(self.readers))
        before = reader.follower.version
        later = [v for v in self.there() if before is None or v >= before]
        to = None if to_newest else data.draw(st.sampled_from(sorted(later)))
        if fault is not None:
            reader.plan.add(**fault)
        try:
            reader.follower.advance(to)
        except READING as error:
            self.failed(error)
            assert reader.follower.version is None or reader.follower.version >= (before or 0)
        else:
            self.observe()  # a late write may have arrived
            assert reader.follower.version == (max(self.versions) if to is None else to)
        if reader.follower.version is not None:
            self.observe()
            assert same(reader.target, self.arrays(reader.follower.version))
            # Of a version that was collected before the reader came nobody knows its state.
            if reader.follower.state is not None:
                reader.follower.prove()

    @precondition(lambda self: self.readers)
    @rule(place=st.sampled_from([-1, 0]))
    def restart_follower(self, place: int) -> None:
        """A process that keeps its weights, if it knows what they are, and reconnects."""
        self.totals.events["restart follower"] += 1
        reader = self.readers.pop(place)
        version = reader.follower.version
        plan = self.plan()
        follower = self.board(plan).follower(reader.target, version=version, threads=1)
        self.readers.append(Reader(plan, follower, reader.target))

    # --- Directories ---------------------------------------------------------------------

    @precondition(lambda self: self.versions)
    @rule(number=st.integers(0, 1), fault=faults, to_newest=st.booleans(), data=st.data())
    def pull(
        self, number: int, fault: dict[str, Any] | None, to_newest: bool, data: st.DataObject
    ) -> None:
        """A new process pulls into a directory of before."""
        self.totals.events["pull"] += 1
        directory = self.scratch / f"pulled-{number}"
        before = self.pulled(directory)
        later = [v for v in self.there() if before is None or v >= before]
        to = None if to_newest else data.draw(st.sampled_from(sorted(later)))
        try:
            stats = self.board(self.plan(fault)).pull(directory, version=to, threads=1)
        except READING as error:
            self.failed(error)
        else:
            self.observe()
            assert stats.version == (max(self.versions) if to is None else to)
            assert self.pulled(directory) == stats.version
        self.observe()
        found = self.pulled(directory)
        if found is not None:
            with dw.Checkpoint.open(directory) as checkpoint:
                assert same(checkpoint, self.arrays(found))
        assert not list(self.scratch.glob(".pulled-*"))

    @staticmethod
    def pulled(directory: Path) -> int | None:
        """The version that a directory says to hold; None: none, or it knows that it is torn."""
        if not directory.exists():
            return None
        state = json.loads((directory / "deltawire.json").read_text())
        return None if state["pending"] is not None else int(state["version"])

    @precondition(lambda self: any(self.scratch.glob("pulled-*")))
    @rule(number=st.integers(0, 1))
    def lose_disk(self, number: int) -> None:
        """The directory is gone."""
        self.totals.events["lose disk"] += 1
        shutil.rmtree(self.scratch / f"pulled-{number}", ignore_errors=True)

    # --- Collection ----------------------------------------------------------------------

    @precondition(lambda self: self.versions)
    @rule(
        fault=faults,
        keep=st.integers(1, 4),
        sweep=st.booleans(),
        skew=st.sampled_from(SKEWS),
        dry_run=st.integers(0, 5),
    )
    def collect(
        self, fault: dict[str, Any] | None, keep: int, sweep: bool, skew: int, dry_run: int
    ) -> None:
        """By a machine whose clock may be wrong; what has been under way for long has arrived."""
        self.totals.events["collect"] += 1
        for plan in self.plans:
            plan.settle()
        self.observe()
        before, head = self.boundary, max(self.versions)
        clock = time.time_ns() + skew * 1_000_000_000
        board = self.board(self.plan(fault))
        with patch("deltawire.board.collect.time.time_ns", lambda: clock):
            try:
                stats = board.collect(keep=keep, sweep=sweep, dry_run=dry_run == 5)
            except READING as error:
                self.failed(error)
            else:
                assert stats.boundary is not None
                self.totals.collected += 0 if stats.dry_run else stats.versions
        self.observe()
        assert self.boundary == before or self.boundary <= max(head - keep + 1, 0)
        assert dry_run != 5 or self.boundary == before
        stale = fault is not None and fault["fault"] == "stale-list"
        for reader in self.readers:
            version = reader.follower.version
            if reader.leased and version is not None and abs(skew) < 300 and not stale:
                assert self.board().find_manifest(version) is not None, "leased, and collected"
            elif skew or stale:
                reader.leased = False  # it was taken away

    # --- The end -------------------------------------------------------------------------

    def teardown(self) -> None:
        """Everything arrives, everything is whole, and a new publisher and old readers go on."""
        try:
            if hasattr(self, "url"):
                self.finish()
        finally:
            shutil.rmtree(self.scratch)
            for plan in self.plans:
                self.totals.injected.update(plan.injected)

    def finish(self) -> None:
        """As ``teardown`` says."""
        for plan in self.plans:
            plan.settle()
        self.observe()
        publisher = self.board().publisher(run="machine", key=self.key)
        base, new = self.changed(7)
        if self.versions:
            stats = publisher.publish(base=base, new=new)
        else:
            stats = publisher.publish_anchor(None, new)
        self.observe()
        assert max(self.versions) == stats.version
        for version in self.there():
            self.read(version)
        for reader in self.readers:
            reader.plan.clear()
            reader.follower.advance()
            assert same(reader.target, new)
        for number in range(2):
            directory = self.scratch / f"pulled-{number}"
            self.board().pull(directory, threads=1)
            with dw.Checkpoint.open(directory) as checkpoint:
                assert same(checkpoint, new)
