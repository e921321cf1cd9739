"""A small Llama made on the spot, for ``deltawire demo --tiny`` and the tests.

The same architecture and parameter names as transformers' ``LlamaForCausalLM`` (rotary
positions, grouped-query attention, SwiGLU, tied embeddings), and the part of its calling
convention that the demo uses. It needs torch alone, so a process starts in half the time.
"""

# mypy: allow-subclassing-any

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CHARACTERS = "\0abcdefghijklmnopqrstuvwxyz0123456789 :"  # index 0 is the end token


@dataclass(frozen=True)
class TinyConfig:
    """Sizes, under the names of a Llama ``config.json``. About 0.8 million parameters."""

    vocab_size: int = len(CHARACTERS)
    hidden_size: int = 128
    intermediate_size: int = 384
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    def as_llama(self) -> dict[str, Any]:
        """The ``config.json`` with which transformers opens the same checkpoint."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "tie_word_embeddings": True,
            "bos_token_id": 0,
            "eos_token_id": 0,
            "max_position_embeddings": 2048,
            "dtype": "bfloat16",
            "head_dim": self.head_dim,
            **{name: getattr(self, name) for name in self.__dataclass_fields__},
        }


class TinyCache:
    """Keys and values of all layers, each of shape (batch, kv heads, length, head size)."""

    def __init__(self, layers: int) -> None:
        self.layers: list[tuple[Tensor, Tensor] | None] = [None] * layers

    def length(self) -> int:
        first = self.layers[0]
        return 0 if first is None else first[0].shape[2]

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        held = self.layers[layer]
        if held is not None:
            key, value = torch.cat([held[0], key], 2), torch.cat([held[1], value], 2)
        self.layers[layer] = (key, value)
        return key, value

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.layers = [
            None if kv is None else tuple(t.repeat_interleave(repeats, 0) for t in kv)
            for kv in self.layers
        ]


@dataclass
class TinyOutput:
    """``logits``: (batch, positions, vocabulary)."""

    logits: Tensor
    past_key_values: TinyCache


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * (wide * scale).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.repeats = config.num_attention_heads // config.num_key_value_heads
        narrow = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, narrow, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, narrow, bias=False)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor, layer: int, cache: TinyCache, rope: Rope, mask: Tensor) -> Tensor:
        batch, length, _ = x.shape

        def heads(y: Tensor) -> Tensor:
            return y.view(batch, length, -1, self.head_dim).transpose(1, 2)

        query, key = rope(heads(self.q_proj(x))), rope(heads(self.k_proj(x)))
        key, value = cache.append(layer, key, heads(self.v_proj(x)))
        key, value = (t.repeat_interleave(self.repeats, 1) for t in (key, value))
        scores = query @ key.transpose(2, 3) / math.sqrt(self.head_dim)
        weights = torch.softmax((scores + mask).float(), dim=-1).to(x.dtype)
        return self.o_proj((weights @ value).transpose(1, 2).reshape(batch, length, -1))


class Rope:
    """Rotary position embedding of given positions, (batch, length)."""

    def __init__(self, positions: Tensor, config: TinyConfig, dtype: torch.dtype) -> None:
        even = torch.arange(0, config.head_dim, 2, dtype=torch.float32)
        angle = positions[:, None, :, None] * config.rope_theta ** (-even / config.head_dim)
        angle = torch.cat([angle, angle], dim=-1)
        self.cos, self.sin = angle.cos().to(dtype), angle.sin().to(dtype)

    def __call__(self, x: Tensor) -> Tensor:
        low, high = x.chunk(2, dim=-1)
        return x * self.cos + torch.cat([-high, low], dim=-1) * self.sin


class Mlp(nn.Module):
    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = Mlp(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, layer: int, cache: TinyCache, rope: Rope, mask: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), layer, cache, rope, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class TinyLlama(nn.Module):
    """The model. ``lm_head`` shares the embedding's tensor, so it has one name, not two."""

    def __init__(self, config: TinyConfig, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.model = Body(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.lm_head.weight = self.model.embed_tokens.weight
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.parameters():
                if parameter.dim() == 2:
                    parameter.normal_(0.0, 0.02, generator=generator)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: TinyCache | None = None,
        use_cache: bool = True,
        logits_to_keep: int = 0,
    ) -> TinyOutput:
        """Like transformers: the mask covers cached and new positions, 0 hides one."""
        cache = past_key_values or TinyCache(self.config.num_hidden_layers)
        x = self.model.embed_tokens(input_ids)
        past, length = cache.length(), input_ids.shape[1]
        if position_ids is None:
            position_ids = torch.arange(past, past + length)[None]
        visible = torch.ones(length, past + length, dtype=torch.bool).tril(past)[None, None]
        if attention_mask is not None:
            visible = visible & (attention_mask[:, None, None, :] != 0)
        mask = torch.zeros(visible.shape, dtype=x.dtype)
        mask.masked_fill_(~visible, torch.finfo(x.dtype).min)
        rope = Rope(position_ids, self.config, x.dtype)
        for index, layer in enumerate(self.model.layers):
            x = layer(x, index, cache, rope, mask)
        x = self.model.norm(x)[:, -logits_to_keep:]
        return TinyOutput(self.lm_head(x), cache)
