"""Batched sampling with a key-value cache, and the log-probabilities that GRPO needs."""

# mypy: allow-untyped-decorators

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Completion:
    """One sampled answer.

    ``tokens`` includes the end token when the policy produced it; ``logprobs`` are natural
    logarithms of the tokens' probabilities under the distribution that was sampled from.
    """

    prompt: int
    tokens: list[int]
    logprobs: list[float]
    finished: bool


@torch.no_grad()
def sample(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    group: int,
    max_new_tokens: int,
    temperature: float,
    end_token: int,
    generator: torch.Generator,
) -> list[Completion]:
    """``group`` completions of each prompt, ordered by prompt.

    Prompts are token ids of any lengths; they are padded on the left, so that every row
    appends at the same place. Each prompt is read once and its cache copied to its group.
    """
    longest = max(len(p) for p in prompts)
    ids = torch.full((len(prompts), longest), end_token)
    attention = torch.zeros(len(prompts), longest, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        attention[row, longest - len(prompt) :] = 1
    positions = (attention.cumsum(1) - 1).clamp(min=0)
    out = model(
        input_ids=ids,
        attention_mask=attention,
        position_ids=positions,
        use_cache=True,
        logits_to_keep=1,
    )
    cache = out.past_key_values
    cache.batch_repeat_interleave(group)
    logits = out.logits[:, -1].repeat_interleave(group, dim=0)
    attention = attention.repeat_interleave(group, dim=0)
    position = positions[:, -1:].repeat_interleave(group, dim=0)

    rows = len(prompts) * group
    tokens: list[list[int]] = [[] for _ in range(rows)]
    logprobs: list[list[float]] = [[] for _ in range(rows)]
    alive = torch.ones(rows, dtype=torch.bool)
    for count in range(1, max_new_tokens + 1):
        scores = torch.log_softmax(logits.float() / temperature, dim=-1)
        chosen = torch.multinomial(scores.exp(), 1, generator=generator)
        picked = scores.gather(1, chosen)[:, 0]
        for row in alive.nonzero()[:, 0].tolist():
            tokens[row].append(int(chosen[row, 0]))
            logprobs[row].append(float(picked[row]))
        alive &= chosen[:, 0] != end_token
        if count == max_new_tokens or not bool(alive.any()):
            break
        attention = torch.cat([attention, torch.ones(rows, 1, dtype=torch.long)], dim=1)
        position = position + 1
        out = model(
            input_ids=chosen,
            attention_mask=attention,
            position_ids=position,
            past_key_values=cache,
            use_cache=True,
        )
        cache, logits = out.past_key_values, out.logits[:, -1]
    return [
        Completion(row // group, tokens[row], logprobs[row], tokens[row][-1] == end_token)
        for row in range(rows)
    ]
