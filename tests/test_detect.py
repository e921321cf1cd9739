"""Detectors in real training: every version is the reference's, bit for bit."""

from __future__ import annotations

import asyncio
import copy
import io
import logging
from typing import Any

import numpy as np
import pytest
import torch

import deltawire as dw
from board_runs import fresh_memory
from deltawire.detect import (
    AdamWBoundaryDetector,
    Detector,
    SnapshotDetector,
    StepwiseDetector,
)
from detect_runs import backward, cosine, follow, made, served

DETECTORS = ["snapshot", "stepwise", "adamw"]


def detector_of(kind: str, model: Any, optimizer: Any, **how: Any) -> Detector:
    if kind == "snapshot":
        return SnapshotDetector(model, **how)
    kinds = {"stepwise": StepwiseDetector, "adamw": AdamWBoundaryDetector}
    return kinds[kind](model, optimizer, **how)


@pytest.fixture(params=DETECTORS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def test_a_chain_of_versions(kind: str) -> None:
    model = made()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.1)

    def step(number: int) -> None:
        backward(model, number)
        optimizer.step()

    with detector_of(kind, model, optimizer) as detector:
        for stats in follow(detector, model, step, 6):
            assert stats.changed
            assert not stats.resent
            assert detector.proof is not None
            assert detector.proof.wrong == detector.proof.open == 0
            assert detector.state == stats.result_state


def test_several_steps_and_none_per_version(kind: str) -> None:
    model = made()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-5)

    def step(number: int) -> None:
        for i in range((number * 2) % 5):
            backward(model, 10 * number + i)
            optimizer.step()

    with detector_of(kind, model, optimizer) as detector:
        steps = [stats.changed for stats in follow(detector, model, step, 5)]
        # 2, 4, 1, 3 and no steps.
        assert all(steps[:4])
        assert steps[4] == 0


@pytest.mark.parametrize("profile", ["fast", "overwrite"])
def test_profiles(kind: str, profile: str) -> None:
    model = made()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def step(number: int) -> None:
        backward(model, number)
        optimizer.step()

    with detector_of(kind, model, optimizer) as detector:
        assert all(s.changed for s in follow(detector, model, step, 2, profile=profile))


def test_collected_changes_are_those_of_the_reference(kind: str) -> None:
    model = made()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
    with detector_of(kind, model, optimizer) as detector:
        before = served(model)
        for number in range(3):
            backward(model, number)
            optimizer.step()
            after = served(model)
            collected = dict(detector.collect())
            assert list(collected) == [
                name for name in detector.tensors if not np.array_equal(before[name], after[name])
            ]
            for name, changes in collected.items():
                old, new = before[name].reshape(-1), after[name].reshape(-1)
                assert changes.positions.dtype == np.int64
                assert np.array_equal(changes.positions, np.flatnonzero(old != new))
                assert changes.values.dtype == torch.bfloat16
                assert np.array_equal(
                    changes.values.view(torch.int16).numpy().view(np.uint16),
                    new[changes.positions],
                )
                assert changes.certified is not None
                assert changes.certified.all()
                assert np.array_equal(
                    changes.old.view(torch.int16).numpy().view(np.uint16), old[changes.positions]
                )
            before = after
        assert not dict(detector.collect())


def test_collected_changes_go_into_a_writer(kind: str) -> None:
    """Without a board: absolute changes, as any writer takes them."""
    model = made()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
    with detector_of(kind, model, optimizer) as detector:
        replica = {name: view.data.copy() for name, view in detector.served()}
        target = {
            name: dw.TensorView.from_bytes("BF16", detector.tensors[name][1], data)
            for name, data in replica.items()
        }
        backward(model, 1)
        optimizer.step()
        sink = io.BytesIO()
        with dw.StreamWriter(sink, detector.tensors, profile="overwrite") as writer:
            for name, changes in detector.collect():
                writer.add_changes(name, changes)
        dw.apply(sink.getvalue(), target)
        for name, view in detector.served():
            assert np.array_equal(replica[name], view.data), name


def test_asyncio(kind: str) -> None:
    from deltawire import aio

    model = made()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)

    async def work(detector: Detector) -> None:
        async with aio.AsyncBoard(fresh_memory(), create=True) as board:
            async with board.publisher() as publisher:
                assert not publisher.closed
                await publisher.publish_anchor(0, dict(detector.served()))
                backward(model, 1)
                optimizer.step()
                stats = await publisher.publish(detector=detector)
                assert stats.version == 1
                assert stats.result_state == detector.state
            assert publisher.closed

    with detector_of(kind, model, optimizer) as detector:
        asyncio.run(work(detector))


def test_an_iteration_that_ends_early_takes_nothing(kind: str) -> None:
    model = made()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
    with detector_of(kind, model, optimizer) as detector:
        state = detector.state
        backward(model, 1)
        optimizer.step()
        name, first = next(iter(detector.collect()))
        assert detector.state == state
        again = dict(detector.collect())
        assert np.array_equal(again[name].positions, first.positions)
        assert detector.state != state


def test_a_publish_that_fails_keeps_the_changes(kind: str) -> None:
    from deltawire.testing import FaultPlan

    model = made()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    url = fresh_memory()
    board = dw.Board(url, create=True)
    with detector_of(kind, model, optimizer) as detector, board.publisher() as publisher:
        publisher.publish_anchor(0, dict(detector.served()))
    plan = FaultPlan()
    faulty = dw.Board(url, faults=plan)
    with detector_of(kind, model, optimizer) as detector, faulty.publisher() as publisher:
        backward(model, 1)
        optimizer.step()
        plan.add("error", on="create", path="manifests", times=None)
        state = detector.state
        with pytest.raises(dw.StoreError):
            publisher.publish(detector=detector)
        assert board.head() == 0
        assert detector.state == state
        plan.clear()
        backward(model, 2)
        optimizer.step()
        stats = publisher.publish(detector=detector)
        assert stats.version == 1
        assert not stats.resent
        assert detector.state == stats.result_state == dw.state_digest(dict(detector.served()))


@pytest.mark.parametrize("stepped", [False, True])
def test_a_version_that_was_published_although_the_store_failed(kind: str, stepped: bool) -> None:
    """Neither the commit's answer nor its read-back came: the next publish finds out."""
    from deltawire.testing import FaultPlan

    model = made()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    plan, url = FaultPlan(), fresh_memory()
    board = dw.Board(url, create=True, faults=plan)
    with detector_of(kind, model, optimizer) as detector, board.publisher() as publisher:
        publisher.publish_anchor(0, dict(detector.served()))
        backward(model, 1)
        optimizer.step()
        name = "manifests/" + "1".zfill(20)
        plan.add("lost-reply", on="create", path=name)
        plan.add("error", on="get", path=name, times=None)
        with pytest.raises(dw.StoreError):
            publisher.publish(detector=detector)
        plan.clear()
        assert board.head() == 1
        if stepped:
            backward(model, 2)
            optimizer.step()
        publisher = board.publisher()
        stats = publisher.publish(detector=detector)
        assert stats.version == 2
        assert stats.result_state == dw.state_digest(dict(detector.served())) == detector.state
        # Only what has changed twice is not known, and goes whole.
        assert (stats.resent > 0) == (stepped and kind != "snapshot")
        backward(model, 3)
        optimizer.step()
        assert publisher.publish(detector=detector).resent == 0


def test_closures_and_one_gradient_at_a_time(kind: str) -> None:
    """A closure is called once a step, whatever the number of buckets; gradients are kept."""
    model = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    how: dict[str, Any] = {} if kind == "snapshot" else {"bucket_bytes": 20_000}
    with detector_of(kind, model, optimizer, **how) as detector:
        calls = 0

        def closure() -> float:
            nonlocal calls
            calls += 1
            backward(model, calls)
            return 0.5

        def step(number: int) -> None:
            assert optimizer.step(closure) == 0.5
            assert calls == number
            assert all(p.grad is not None for p in model.parameters())

        assert all(s.changed and not s.resent for s in follow(detector, model, step, 2))


def test_training_is_what_it_was(kind: str) -> None:
    """With a detector, parameters and state come out the same, bit for bit."""
    runs = []
    for watched in (False, True):
        model = made()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        how: dict[str, Any] = {} if kind == "snapshot" else {"bucket_bytes": 20_000}
        detector = detector_of(kind, model, optimizer, **how) if watched else None
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
        for number in range(5):
            backward(model, number)
            optimizer.step()
            scheduler.step()
        if detector is not None:
            detector.close()
            assert "step" not in vars(optimizer) or hasattr(optimizer.step, "_wrapped_by_lr_sched")
        runs.append((model.state_dict(), copy.deepcopy(optimizer.state_dict())))
    for name, tensor in runs[0][0].items():
        assert torch.equal(tensor, runs[1][0][name]), name
    for number, state in runs[0][1]["state"].items():
        for key, value in state.items():
            assert torch.equal(value, runs[1][1]["state"][number][key]), (number, key)


@pytest.mark.parametrize("implementation", ["single", "foreach", "fused"])
@pytest.mark.parametrize(
    ("betas", "decay", "other"),
    [
        ((0.9, 0.999), 0.01, {}),
        ((0.9, 0.95), 0.1, {}),
        ((0.8, 0.99), 0.0, {"amsgrad": True, "maximize": True}),
    ],
)
def test_two_hundred_steps(
    implementation: str, betas: tuple[float, float], decay: float, other: dict[str, Any]
) -> None:
    """Every AdamW, with a schedule: nothing is missed, nothing is sent that did not change."""
    model = made()
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=1e-5,
        betas=betas,
        weight_decay=decay,
        foreach=implementation == "foreach",
        fused=implementation == "fused",
        **other,
    )

    def step(number: int) -> None:
        backward(model, number)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = cosine(1e-5, number, 200)
        optimizer.step()

    named = changes = settled = 0
    with AdamWBoundaryDetector(model, optimizer) as detector:
        publishing = follow(detector, model, step, 200)
        original = detector._found

        def counted(part: Any) -> Any:
            nonlocal named
            found = original(part)
            named += len(found)
            return found

        detector._found = counted  # type: ignore[method-assign]
        for stats in publishing:
            assert detector.proof is not None
            assert (detector.proof.wrong, detector.proof.open, stats.resent) == (0, 0, 0)
            changes += stats.changed
            settled += detector.proof.settled
    assert changes > 100_000
    # What it named without need, before the digests dropped it.
    assert named - changes < 0.005 * changes


def test_adam_with_coupled_decay() -> None:
    model = made()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5, weight_decay=0.1)

    def step(number: int) -> None:
        backward(model, number)
        optimizer.step()

    with AdamWBoundaryDetector(model, optimizer) as detector:
        assert not any(stats.resent for stats in follow(detector, model, step, 5))


@pytest.mark.parametrize(
    "optimizer_of",
    [
        lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9, nesterov=True),
        lambda p: torch.optim.Adafactor(p, lr=1e-4),
        lambda p: torch.optim.RMSprop(p, lr=1e-5),
        lambda p: torch.optim.NAdam(p, lr=1e-5),
    ],
)
@pytest.mark.parametrize("kind", ["stepwise", "adamw"])
def test_other_optimizers(optimizer_of: Any, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    model = made()
    optimizer = optimizer_of(model.parameters())

    def step(number: int) -> None:
        backward(model, number)
        optimizer.step()

    with (
        caplog.at_level(logging.WARNING, "deltawire.detect"),
        detector_of(kind, model, optimizer, bucket_bytes=30_000) as detector,
    ):
        assert all(s.changed and not s.resent for s in follow(detector, model, step, 3))
    told = [r for r in caplog.records if "compared around each step" in r.message]
    assert len(told) == (kind == "adamw")


def test_bf16_parameters(kind: str) -> None:
    model = made().to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(number: int) -> None:
        backward(model, number)
        optimizer.step()

    with detector_of(kind, model, optimizer) as detector:
        assert all(s.changed and not s.resent for s in follow(detector, model, step, 4))


def test_bf16_model_with_masters_in_the_optimizer(kind: str) -> None:
    model = made().to(torch.bfloat16)
    masters = {name: p.detach().float().requires_grad_() for name, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(masters.values(), lr=1e-5)

    def step(number: int) -> None:
        backward(model, number)
        for name, p in model.named_parameters():
            masters[name].grad = p.grad.float()
        optimizer.step()
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(masters[name])

    held = {**masters, "scale": model.scale}
    with detector_of(kind, held, optimizer) as detector:
        assert all(s.changed and not s.resent for s in follow(detector, model, step, 4))
