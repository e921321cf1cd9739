"""What a detector gets wrong, or cannot know: noticed, sent whole and told, never published."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import deltawire as dw
from board_runs import fresh_memory
from deltawire.detect import AdamWBoundaryDetector, Detector, SnapshotDetector, StepwiseDetector
from deltawire.detect.journal import Found
from detect_runs import Model, backward, follow, made


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[Any]:
    """What was logged so far."""
    with caplog.at_level(logging.WARNING, "deltawire.detect"):
        yield lambda: [r.getMessage() for r in caplog.records if r.name == "deltawire.detect"]


def training(**how: Any) -> tuple[Model, torch.optim.AdamW, AdamWBoundaryDetector]:
    model = made()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, **how)
    return model, optimizer, AdamWBoundaryDetector(model, optimizer)


def step_of(model: Model, optimizer: Any) -> Any:
    def step(number: int) -> None:
        backward(model, number)
        optimizer.step()

    return step


@pytest.mark.parametrize("how", ["dropped", "wrong"])
def test_a_detector_that_is_broken_on_purpose(how: str, told: Any) -> None:
    """One element of one tensor, among tens of thousands: its tile is sent whole, and named."""
    model, optimizer, detector = training()
    original = detector._found

    def broken(part: Any) -> Found:
        found = original(part)
        if part.name != "layers.1.up_proj.weight" or not len(found):
            return found
        middle = len(found) // 2
        if how == "dropped":
            keep = np.arange(len(found)) != middle
            return Found(*(column[keep] for column in vars(found).values()))
        old = found.old.copy()
        old[middle] ^= 1
        return Found(found.positions, np.zeros_like(found.sure), old, old)

    detector._found = broken  # type: ignore[method-assign]
    for stats in follow(detector, model, step_of(model, optimizer), 3):
        assert detector.proof is not None
        # Where an element nearby was in doubt, it cannot be told whose fault it is.
        assert detector.proof.wrong + detector.proof.open == 1
        names = detector.proof.wrong_tensors + detector.proof.open_tensors
        assert names == ["layers.1.up_proj.weight"]
        assert stats.resent == model.layers[1].up_proj.weight.numel()
    assert len(told()) == 3
    assert "layers.1.up_proj.weight" in told()[0]
    detector.close()


def test_what_changes_outside_of_a_step(told: Any) -> None:
    """Reloaded weights, a buffer, a frozen parameter that is set: sent whole, as nobody saw it."""
    model = made()
    model.norm.weight.requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5)
    with AdamWBoundaryDetector(model, optimizer) as detector:

        def step(number: int) -> None:
            backward(model, number)
            optimizer.step()
            with torch.no_grad():
                if number == 2:
                    model.scale.fill_(2.0)
                    model.norm.weight[3] = 0.5
                    model.layers[0].q_proj.weight[0, 0] = 1.0

        proofs = []
        for _ in follow(detector, model, step, 3):
            assert detector.proof is not None
            proofs.append(detector.proof)
    assert [p.wrong for p in proofs] == [0, 3, 0]
    assert set(proofs[1].wrong_tensors) == {"scale", "norm.weight", "layers.0.q_proj.weight"}


def test_parameters_that_begin_to_learn_later() -> None:
    model = made()
    for p in model.layers[0].parameters():
        p.requires_grad_(False)
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], lr=1e-5, weight_decay=0.1
    )

    def step(number: int) -> None:
        if number == 3:
            for p in model.layers[0].parameters():
                p.requires_grad_(True)
            optimizer.add_param_group({"params": list(model.layers[0].parameters()), "lr": 3e-5})
        backward(model, number)
        optimizer.step()

    with AdamWBoundaryDetector(model, optimizer) as detector:
        assert not any(s.resent for s in follow(detector, model, step, 5))


def test_two_optimizers() -> None:
    model = made()
    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    optimizers = [
        torch.optim.SGD(matrices, lr=1e-3),
        torch.optim.AdamW(others, lr=1e-4),
    ]

    def step(number: int) -> None:
        backward(model, number)
        for optimizer in optimizers:
            optimizer.step()

    with AdamWBoundaryDetector(model, optimizers) as detector:
        assert not any(s.resent for s in follow(detector, model, step, 3))


def test_a_parameter_that_is_in_no_optimizer(told: Any) -> None:
    model = made()
    optimizer = torch.optim.AdamW(model.layers.parameters(), lr=1e-5)
    with AdamWBoundaryDetector(model, optimizer) as detector:
        (message,) = told()
        assert "2 parameters" in message
        assert "embed.weight" in message
        assert not any(s.resent for s in follow(detector, model, step_of(model, optimizer), 2))


def test_zeros_that_begin_to_move() -> None:
    """Biases that start at zero: what they were cannot be computed, but the digests know it."""
    model = made()
    torch.nn.init.zeros_(model.layers[0].q_proj.bias)
    with torch.no_grad():
        model.layers[1].q_proj.bias.fill_(-0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with AdamWBoundaryDetector(model, optimizer) as detector:
        for number, stats in enumerate(follow(detector, model, step_of(model, optimizer), 3)):
            assert detector.proof is not None
            # Zeros are tried; 64 negative ones, each of which could be either, are too many.
            assert stats.resent == (64 if number == 0 else 0)
            assert detector.proof.wrong == 0


@pytest.mark.parametrize("lr", [0.0, 1e-12, 3e-2, 1.0, 30.0])
@pytest.mark.parametrize("fused", [False, True])
def test_adversarial_weights(lr: float, fused: bool) -> None:
    """Near the borders of rounding cells, zeros, denormals, infinite: nothing is missed."""
    generator = np.random.default_rng(5)
    w = (generator.standard_normal(60_000) * 0.02).astype(np.float32)
    pattern = w.view(np.uint32)
    pattern[:20_000] = (pattern[:20_000] & 0xFFFF0000) | 0x8000
    pattern[:20_000] += generator.integers(-3, 4, 20_000).astype(np.uint32)
    pattern[20_000:24_000] &= 0x807FFFFF
    pattern[24_000:26_000] = (generator.integers(100, 140, 2000).astype(np.uint32)) << 23
    w[26_000:27_000] = 0
    w[27_000:28_000] = -0.0
    w[28_000:28_100] = np.inf
    w[28_100:28_200] = -np.inf
    w[28_200:28_300] = np.float32(3.4e38)
    p = torch.nn.Parameter(torch.from_numpy(w).view(100, 600))
    optimizer = torch.optim.AdamW([p], lr=lr, weight_decay=0.05, fused=fused)
    snapshot = SnapshotDetector({"w": p})
    with AdamWBoundaryDetector({"w": p}, optimizer) as detector:
        for _ in range(3):
            grad = generator.standard_normal(w.shape) * (generator.random(w.shape) < 0.8)
            p.grad = torch.from_numpy(grad.astype(np.float32)).view(100, 600)
            optimizer.step()
            expected = dict(snapshot.collect())
            named = detector._found(detector._parts.mine[0])
            blind = detector._lost(detector._parts.mine[0])
            if "w" in expected and blind is None:
                assert not np.setdiff1d(expected["w"].positions, named.positions).size
            found = dict(detector.collect())
            assert set(found) >= set(expected)
            for name, changes in expected.items():
                kept = np.isin(found[name].positions, changes.positions)
                assert np.array_equal(found[name].positions[kept], changes.positions)
            assert detector.state == snapshot.state


def test_not_a_number() -> None:
    """In a moment, and so in a weight: the digests know what it was before."""
    weights = {name: torch.nn.Parameter(torch.randn(50, 40) * 0.02) for name in "ab"}
    optimizer = torch.optim.AdamW(weights.values(), lr=1e-5)
    with AdamWBoundaryDetector(weights, optimizer) as detector:
        snapshot = SnapshotDetector(weights)
        for number in range(1, 5):
            for p in weights.values():
                p.grad = torch.randn(50, 40)
            if number == 2:
                weights["a"].grad[3, 3] = float("nan")
            optimizer.step()
            expected, found = dict(snapshot.collect()), dict(detector.collect())
            assert detector.proof is not None
            assert detector.proof.open == detector.proof.wrong == 0
            assert detector.state == snapshot.state
            for name in "ab":
                assert np.array_equal(found[name].positions, expected[name].positions)


def test_a_step_counter_that_jumps_within_a_step(told: Any) -> None:
    """Two steps where one was announced: what the first one changed is not known."""
    model = made()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    inner = optimizer.step
    twice = False

    def step_some_twice(closure: Any = None) -> None:
        inner()
        if twice:
            grads = {p: p.grad for p in model.parameters()}
            for p in grads:
                p.grad = grads[p] if p is model.layers[0].o_proj.weight else None
            inner()

    optimizer.step = step_some_twice  # type: ignore[method-assign]
    with AdamWBoundaryDetector(model, optimizer, bucket_bytes=None) as detector:

        def step(number: int) -> None:
            nonlocal twice
            twice = number == 2
            backward(model, number)
            optimizer.step()

        for number, stats in enumerate(follow(detector, model, step, 3), 1):
            assert detector.proof is not None
            assert detector.proof.wrong == 0
            names = ["layers.0.o_proj.weight"] if number == 2 else []
            assert detector.proof.open_tensors == names
            assert stats.resent == (64 * 64 if number == 2 else 0)
    assert any("from 1 to 3 in one step" in message for message in told())


def test_a_state_that_is_loaded() -> None:
    """Counters jump between two steps, and the weights stay: nothing is lost."""
    model = made()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    with AdamWBoundaryDetector(model, optimizer) as detector:

        def step(number: int) -> None:
            backward(model, number)
            if number == 3:
                state = optimizer.state_dict()
                for one in state["state"].values():
                    one["step"] = one["step"] + 100
                optimizer.load_state_dict(state)
            optimizer.step()

        assert not any(stats.resent for stats in follow(detector, model, step, 4))


def test_skipped_steps() -> None:
    """Gradients that overflowed: the scaler leaves the step out, and nothing has changed."""
    model = made()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with AdamWBoundaryDetector(model, optimizer) as detector:

        def step(number: int) -> None:
            backward(model, number)
            scaler.scale(torch.ones(()))
            for p in model.parameters():
                p.grad.mul_(scaler.get_scale())
            if number == 2:
                model.norm.weight.grad[0] = float("inf")
            scaler.step(optimizer)
            scaler.update()

        sent = [stats.changed for stats in follow(detector, model, step, 3)]
        assert sent[1] == 0
        assert sent[0] > 0 < sent[2]


def test_foreign_state(told: Any) -> None:
    """Moments of 8 bits: compared around the step from the second one on, with one line."""

    class Small(torch.optim.AdamW):
        """Keeps its second moment in another dtype between steps."""

    model = made()
    optimizer = Small(model.parameters(), lr=1e-5)
    with AdamWBoundaryDetector(model, optimizer) as detector:

        def step(number: int) -> None:
            backward(model, number)
            state = optimizer.state.get(model.embed.weight)
            if state:
                state["exp_avg_sq"] = state["exp_avg_sq"].float()
            optimizer.step()
            state = optimizer.state[model.embed.weight]
            state["exp_avg_sq"] = state["exp_avg_sq"].half()

        original = detector._stepped

        def stepped(one: Any) -> None:
            state = one.state[model.embed.weight]
            state["exp_avg_sq"] = state["exp_avg_sq"].half()
            original(one)

        detector._stepped = stepped  # type: ignore[method-assign]
        for number, stats in enumerate(follow(detector, model, step, 4)):
            assert detector.proof is not None
            assert detector.proof.wrong == 0
            assert (stats.resent > 0) == (number == 0)
    fallback = [message for message in told() if "compared around" in message]
    assert len(fallback) == 1
    assert "exp_avg_sq of float16" in fallback[0]


@pytest.mark.parametrize("how", ["shape", "dtype"])
def test_a_parameter_that_became_another(how: str) -> None:
    model, optimizer, detector = training()
    board = dw.Board(fresh_memory(), create=True)
    with board.publisher() as publisher:
        publisher.publish_anchor(0, dict(detector.served()))
        data = model.norm.weight.data
        model.norm.weight.data = data[:32].clone() if how == "shape" else data.double()
        with pytest.raises(dw.LayoutMismatch, match=r"norm\.weight"):
            publisher.publish(detector=detector)
        assert board.head() == 0
        model.norm.weight.data = data
        backward(model, 1)
        optimizer.step()
        assert publisher.publish(detector=detector).resent == 0
    detector.close()


def test_another_base() -> None:
    _, _, detector = training()
    board = dw.Board(fresh_memory(), create=True)
    with board.publisher() as publisher:
        publisher.publish_anchor(0, dict(SnapshotDetector(made(1)).served()))
        with pytest.raises(dw.WrongBase, match="model holds the version"):
            publisher.publish(detector=detector)
        assert board.head() == 0
        with pytest.raises(TypeError, match="detector"):
            publisher.publish()
        with pytest.raises(TypeError, match="not both"):
            publisher.publish(base={}, new={}, detector=detector)
        with pytest.raises(ValueError, match="tiling"):
            publisher.publish(detector=detector, tiling=dw.Tiling(min_elements=1))
    with pytest.raises(ValueError, match="nothing was written"):
        detector.settle()
    detector.close()


def test_what_is_not_an_optimizer() -> None:
    with pytest.raises(TypeError, match="param_groups"):
        StepwiseDetector(made(), object())


def test_no_copies_are_kept() -> None:
    """Of the three, only the snapshot grows with the model."""
    import tracemalloc

    model = torch.nn.Linear(2000, 2000)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def held(make: Any) -> int:
        tracemalloc.start()
        detector: Detector = make()
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        detector.close()
        return size

    assert held(lambda: SnapshotDetector(model)) > 8_000_000
    assert held(lambda: AdamWBoundaryDetector(model, optimizer)) < 200_000
    assert held(lambda: StepwiseDetector(model, optimizer)) < 200_000
