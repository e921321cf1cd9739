"""Small models that are really trained, and what their served weights were at every version."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

import deltawire as dw
from board_runs import fresh_memory
from deltawire.detect import Detector

# Models this small are not worth threads, which on a busy machine wait for one another.
torch.set_num_threads(1)


class Block(torch.nn.Module):
    """One layer of a decoder, with grouped heads and a gated MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q_proj = torch.nn.Linear(width, width, bias=True)
        self.kv_proj = torch.nn.Linear(width, width, bias=False)
        self.o_proj = torch.nn.Linear(width, width, bias=False)
        self.up_proj = torch.nn.Linear(width, 6 * width, bias=False)
        self.down_proj = torch.nn.Linear(3 * width, width, bias=False)
        self.norm1 = torch.nn.RMSNorm(width)
        self.norm2 = torch.nn.RMSNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention and MLP."""
        h = self.norm1(x)
        k, v = self.kv_proj(h).chunk(2, -1)
        heads = [
            t.unflatten(-1, (-1, k.shape[-1] // 2)).transpose(1, 2) for t in (self.q_proj(h), k, v)
        ]
        mixed = torch.nn.functional.scaled_dot_product_attention(
            *heads, is_causal=True, enable_gqa=True
        )
        x = x + self.o_proj(mixed.transpose(1, 2).flatten(-2))
        gate, up = self.up_proj(self.norm2(x)).chunk(2, -1)
        return x + self.down_proj(torch.nn.functional.silu(gate) * up)


class Model(torch.nn.Module):
    """A decoder with tied embeddings; tokens that never come have rows that never change."""

    def __init__(self, *, vocabulary: int = 512, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(vocabulary, width)
        self.layers = torch.nn.ModuleList(Block(width) for _ in range(layers))
        self.norm = torch.nn.RMSNorm(width)
        self.lm_head = torch.nn.Linear(width, vocabulary, bias=False)
        self.lm_head.weight = self.embed.weight
        self.register_buffer("scale", torch.tensor(1.0))
        for p in self.parameters():
            if p.dim() == 2:
                torch.nn.init.normal_(p, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x)) * self.scale


def made(seed: int = 0, **sizes: int) -> Model:
    """A model with weights of its seed."""
    torch.manual_seed(seed)
    return Model(**sizes)


def backward(model: torch.nn.Module, seed: int) -> None:
    """Gradients of a policy-gradient loss with random advantages."""
    generator = torch.Generator().manual_seed(seed)
    # Few tokens are frequent.
    tokens = (torch.rand(2, 24, generator=generator) ** 3 * 400).long()
    # Before the forward pass: after it, FSDP shows gathered parameters in place of its shards.
    model.zero_grad()
    logits = model(tokens[:, :-1]).log_softmax(-1)
    chosen = logits.gather(-1, tokens[:, 1:, None])[..., 0]
    advantages = torch.randn(2, 1, generator=generator)
    (-(advantages * chosen).mean()).backward()


def cosine(lr: float, step: int, steps: int) -> float:
    """A schedule with warm-up."""
    return lr * min(1.0, (step + 1) / 10) * (0.55 + 0.45 * math.cos(math.pi * step / steps))


def bits(tensors: Any) -> dict[str, np.ndarray]:
    """BF16 patterns of parameters and buffers."""
    return {
        name: t.detach().to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16).copy()
        for name, t in tensors
    }


def served(model: torch.nn.Module) -> dict[str, np.ndarray]:
    """What receivers are to hold of a model: the reference."""
    state = model.state_dict(keep_vars=True)
    tied = {"lm_head.weight"}
    return bits((name, t) for name, t in state.items() if name not in tied)


def changed(old: dict[str, np.ndarray], new: dict[str, np.ndarray]) -> int:
    """Elements that are other bits."""
    return sum(int((old[name] != new[name]).sum()) for name in old)


def follow(
    detector: Detector,
    model: torch.nn.Module,
    step: Callable[[int], None],
    versions: int,
    **how: Any,
) -> Iterator[dw.PublishStats]:
    """Publish ``versions`` steps from a detector, each compared with the reference bit for bit."""
    board = dw.Board(fresh_memory(), create=True)
    with board.publisher(run="detect") as publisher:
        publisher.publish_anchor(0, dict(detector.served()))
        before = served(model)
        target = {name: values.view(np.int16).copy() for name, values in before.items()}
        views = {
            name: dw.TensorView.from_bytes("BF16", tuple(t.shape), t) for name, t in target.items()
        }
        follower = board.follower(views, version=0)
        for number in range(1, versions + 1):
            step(number)
            stats = publisher.publish(detector=detector, **how)
            after = served(model)
            assert stats.version == number
            assert stats.resent or stats.changed == changed(before, after)
            follower.advance()
            for name, values in after.items():
                assert np.array_equal(target[name].view(np.uint16), values), (number, name)
            before = after
            yield stats
