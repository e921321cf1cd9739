"""Three lines in a training loop: ``on_step``, and the callback for trainers."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deltawire as dw
from board_runs import fresh_memory
from deltawire import detect
from deltawire.testing import FaultPlan
from detect_runs import backward, made, served


def followed(board: dw.Board, like: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    target = {name: np.zeros_like(values) for name, values in like.items()}
    views = {n: dw.TensorView.from_bytes("BF16", t.shape, t) for n, t in target.items()}
    board.follower(views).advance()
    return target


def check(board: dw.Board, model: Any) -> None:
    weights = served(model)
    for name, values in followed(board, weights).items():
        assert np.array_equal(values, weights[name]), name


def test_a_plain_loop() -> None:
    model = made()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    board = dw.Board(fresh_memory(), create=True)
    with detect.on_step(board, model, optimizer, run="loop") as published:
        assert published.last is not None
        assert published.last.anchor
        for number in range(1, 4):
            backward(model, number)
            optimizer.step()
            stats = published.step()
            assert stats is not None
            assert (stats.version, board.head()) == (number, number)
            check(board, model)
    assert "step" not in vars(optimizer)
    assert board.manifest(3).run == "loop"
    # Later, another process goes on.
    with detect.on_step(board, model, optimizer, every=2) as published:
        for number in range(4, 9):
            backward(model, number)
            optimizer.step()
            assert (published.step() is None) == (number in (4, 6, 8))
        assert board.head() == 5
    # What was left went at the end.
    assert board.head() == 6
    check(board, model)


def test_a_model_that_is_not_the_head() -> None:
    board = dw.Board(fresh_memory(), create=True)
    optimizer = torch.optim.AdamW(made().parameters(), lr=1e-5)
    with detect.on_step(board, made(), optimizer):
        pass
    model = made(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    with pytest.raises(dw.WrongBase, match="make the detector while"):
        detect.on_step(board, model, optimizer)
    assert "step" not in vars(optimizer)


def test_an_error_in_the_loop_publishes_nothing_more() -> None:
    model = made()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    board = dw.Board(fresh_memory(), create=True)

    def loop() -> None:
        with detect.on_step(board, model, optimizer, every=2) as published:
            backward(model, 1)
            optimizer.step()
            published.step()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        loop()
    assert board.head() == 0
    assert "step" not in vars(optimizer)


@pytest.mark.parametrize("on_error", ["raise", "retry"])
def test_a_store_that_fails_for_a_while(on_error: Any, caplog: pytest.LogCaptureFixture) -> None:
    model = made()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    plan, url = FaultPlan(), fresh_memory()
    board = dw.Board(url, create=True, faults=plan)
    with detect.on_step(board, model, optimizer, on_error=on_error) as published:
        plan.add("error", on="create", path="manifests", times=None)
        backward(model, 1)
        optimizer.step()
        if on_error == "raise":
            with pytest.raises(dw.StoreError):
                published.step()
        else:
            with caplog.at_level(logging.WARNING, "deltawire.detect"):
                assert published.step() is None
            assert "the next one has its changes too" in caplog.text
        plan.clear()
        backward(model, 2)
        optimizer.step()
        stats = published.step()
        assert stats is not None
        assert (stats.version, stats.resent) == (1, 0)
    check(dw.Board(url), model)


def test_another_trainer_ends_it() -> None:
    model = made()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    board = dw.Board(fresh_memory(), create=True)
    published = detect.on_step(board, model, optimizer, on_error="retry")
    with board.publisher():
        backward(model, 1)
        optimizer.step()
        with pytest.raises(dw.VersionConflict):
            published.step()
    published.abandon()


@pytest.mark.parametrize("bad", [{"every": 0}, {"on_error": "ignore"}])
def test_settings(bad: dict[str, Any]) -> None:
    model = made()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    with pytest.raises(ValueError, match=next(iter(bad))):
        detect.on_step(dw.Board(fresh_memory(), create=True), model, optimizer, **bad)
    assert "step" not in vars(optimizer)


def test_a_trainer_of_transformers(tmp_path: Path) -> None:
    """Gradient accumulation, a schedule and clipping: a version for each optimizer step."""
    from transformers import Trainer, TrainingArguments

    class Loss(torch.nn.Module):
        """A module that gives a loss, as trainers expect."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = made()

        def forward(self, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
            logits = self.inner(tokens[:, :-1])
            return {
                "loss": torch.nn.functional.cross_entropy(
                    logits.flatten(0, 1), tokens[:, 1:].flatten()
                )
            }

    model = Loss()
    data = [{"tokens": torch.randint(0, 400, (12,))} for _ in range(24)]
    board = dw.Board(str(tmp_path / "board"), create=True)
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(tmp_path / "out"),
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            max_steps=5,
            learning_rate=1e-5,
            lr_scheduler_type="cosine",
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
            remove_unused_columns=False,
        ),
        train_dataset=data,
        callbacks=[detect.trainer_callback(board, run="trainer")],
    )
    trainer.train()
    assert board.head() == 5
    assert board.manifest(3).changed > 1000
    weights = {f"inner.{name}": values for name, values in served(model.inner).items()}
    for name, values in followed(board, weights).items():
        assert np.array_equal(values, weights[name]), name
