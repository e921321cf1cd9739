"""Group-relative policy optimisation: advantages, the clipped loss, one AdamW step.

As in GRPO (arXiv 2402.03300), without a value network and without a KL term. The loss is
averaged over all completion tokens of the step, so long answers do not weigh less per token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .errors import DemoError

CLIP = 0.2  # the ratio to the sampling policy is clipped to [1 - CLIP, 1 + CLIP]
MAX_GRAD_NORM = 1.0


@dataclass(frozen=True)
class Group:
    """All completions of one prompt, with what the sampling policy said about them.

    ``prompt``: token ids. ``completions``: token ids, one list per completion, none empty.
    ``logprobs``: natural logarithms, same lengths. ``rewards``: one per completion.
    """

    prompt: list[int]
    completions: list[list[int]]
    logprobs: list[list[float]]
    rewards: list[float]


@dataclass(frozen=True)
class StepStats:
    """One optimizer step. ``ratio`` is the mean of new to sampling probability, over tokens."""

    loss: float
    grad_norm: float
    ratio: float
    clipped: float
    groups_used: int


def advantages(rewards: Sequence[float]) -> list[float]:
    """Rewards of one group, shifted to mean 0 and scaled to standard deviation 1.

    All zero when the rewards are equal: such a group says nothing about what is better.
    """
    values = torch.tensor(rewards, dtype=torch.float64)
    centred = values - values.mean()
    spread = centred.square().mean().sqrt()
    if spread < 1e-9:
        return [0.0] * len(rewards)
    return [float(v) for v in centred / spread]


def token_logprobs(
    model: Any, prompt: Sequence[int], completions: Sequence[Sequence[int]], temperature: float
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the completions' tokens under ``model``, with gradients.

    Returns ``(logprobs, mask)``, both FP32 of shape (completions, longest completion). The
    prompt passes through the model once for the whole group: its keys and values are shared.
    """
    longest = max(len(c) for c in completions)
    ids = torch.zeros(len(completions), longest, dtype=torch.long)
    mask = torch.zeros(len(completions), longest)
    for row, tokens in enumerate(completions):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        mask[row, : len(tokens)] = 1.0
    # Position i predicts token i + 1: the last prompt token opens every row.
    head = model(input_ids=torch.tensor([prompt[:-1]]), use_cache=True, logits_to_keep=1)
    cache = head.past_key_values
    cache.batch_repeat_interleave(len(completions))
    first = torch.full((len(completions), 1), prompt[-1])
    inputs = torch.cat([first, ids[:, :-1]], dim=1)
    # Rows are padded at their end only, so the causal mask alone keeps padding out of sight.
    logits = model(input_ids=inputs, past_key_values=cache, use_cache=True).logits
    scores = torch.log_softmax(logits.float() / temperature, dim=-1)
    return scores.gather(2, ids[..., None])[..., 0], mask


def step(
    model: Any, optimizer: torch.optim.Optimizer, groups: Sequence[Group], temperature: float
) -> StepStats:
    """One update of ``model``'s parameters from ``groups``. Raises DemoError if not finite."""
    optimizer.zero_grad(set_to_none=True)
    tokens = sum(len(c) for g in groups for c in g.completions)
    loss_sum = ratio_sum = clipped = 0.0
    seen = used = 0
    for group in groups:
        adv = advantages(group.rewards)
        if not any(adv):
            continue
        used += 1
        logp, mask = token_logprobs(model, group.prompt, group.completions, temperature)
        old = torch.zeros_like(mask)
        for row, values in enumerate(group.logprobs):
            old[row, : len(values)] = torch.tensor(values)
        ratio = torch.exp(logp - old)
        weight = torch.tensor(adv, dtype=torch.float32)[:, None]
        gain = torch.minimum(ratio * weight, ratio.clamp(1 - CLIP, 1 + CLIP) * weight)
        loss = -(gain * mask).sum() / tokens
        loss.backward()
        with torch.no_grad():
            loss_sum += float(loss)
            ratio_sum += float((ratio * mask).sum())
            clipped += float((((ratio - 1).abs() > CLIP) * mask).sum())
            seen += int(mask.sum())
    parameters = [p for p in model.parameters() if p.requires_grad]
    norm = float(torch.nn.utils.clip_grad_norm_(parameters, MAX_GRAD_NORM))
    if not (loss_sum == loss_sum and norm < float("inf")):
        raise DemoError(f"the step is not finite: loss {loss_sum}, gradient norm {norm}")
    optimizer.step()
    return StepStats(loss_sum, norm, ratio_sum / max(seen, 1), clipped / max(seen, 1), used)
