"""Two consecutive BF16 versions of a made-up policy that change as real ones do.

Under AdamW an FP32 master moves by ``lr * m / (sqrt(v) + eps)`` in a step. In steady state
``m / sqrt(v)`` is close to normal with the standard deviation of an exponential average of unit
noise, ``sqrt((1 - beta1) / (1 + beta1)) = 0.229`` for ``beta1 = 0.9``, so its mean size is 0.18. A
master lies anywhere in the rounding cell of its BF16 value, whose width halves with each octave of
``|w|``; the chance that a step leaves the cell, ``lr * 0.18 * 2^(7 - exponent)``, doubles.
Neighbouring masters share part of their step size through their row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deltawire.tensors import TensorView

Bits = npt.NDArray[np.uint16]
Floats = npt.NDArray[np.float32]

MOMENTUM_STD = np.float32((0.1 / 1.9) ** 0.5)


@dataclass(frozen=True)
class Decoder:
    """Sizes of a decoder-only transformer with tied embeddings and grouped KV heads.

    Attributes:
        experts: experts of a layer, each with matrices of its own, in place of one MLP; 0: dense.
        expert_inner: inner width of one expert.
    """

    hidden: int = 1024
    inner: int = 2816
    layers: int = 4
    kv: int = 256
    vocab: int = 8192
    experts: int = 0
    expert_inner: int = 384

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Checkpoint name (as in Qwen3 and Qwen3-MoE) -> shape."""
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab, self.hidden)
        }
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}"
            shapes |= {
                f"{prefix}.input_layernorm.weight": (self.hidden,),
                f"{prefix}.self_attn.q_proj.weight": (self.hidden, self.hidden),
                f"{prefix}.self_attn.k_proj.weight": (self.kv, self.hidden),
                f"{prefix}.self_attn.v_proj.weight": (self.kv, self.hidden),
                f"{prefix}.self_attn.o_proj.weight": (self.hidden, self.hidden),
                f"{prefix}.post_attention_layernorm.weight": (self.hidden,),
            }
            if self.experts:
                shapes[f"{prefix}.mlp.gate.weight"] = (self.experts, self.hidden)
                for expert in range(self.experts):
                    name = f"{prefix}.mlp.experts.{expert}"
                    shapes |= self._mlp(name, self.expert_inner)
            else:
                shapes |= self._mlp(f"{prefix}.mlp", self.inner)
        shapes["model.norm.weight"] = (self.hidden,)
        return shapes

    def _mlp(self, prefix: str, inner: int) -> dict[str, tuple[int, ...]]:
        return {
            f"{prefix}.gate_proj.weight": (inner, self.hidden),
            f"{prefix}.up_proj.weight": (inner, self.hidden),
            f"{prefix}.down_proj.weight": (self.hidden, inner),
        }


def bf16_bits(values: Floats) -> Bits:
    """Round finite FP32 values to BF16 patterns, ties to even."""
    bits = values.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def lognormal(rng: np.random.Generator, shape: tuple[int, ...], sigma: float) -> Floats:
    """Positive factors with mean 1."""
    draws = rng.standard_normal(shape, np.float32) * np.float32(sigma)
    factors: Floats = np.exp(draws - np.float32(sigma * sigma / 2))
    return factors


def tensor_step(shape: tuple[int, ...], lr: float, rng: np.random.Generator) -> tuple[Bits, Bits]:
    """BF16 patterns of one tensor before and after a step with learning rate ``lr``."""
    rows = shape[0] if len(shape) > 1 else 1
    matrix = (rows, int(np.prod(shape)) // rows)
    master = rng.standard_normal(matrix, np.float32)
    if len(shape) == 1:  # a norm's gains
        master = np.float32(1) + np.float32(0.1) * master
    else:
        master *= lognormal(rng, (rows, 1), 0.1) * np.float32(0.022) * lognormal(rng, (1, 1), 0.35)
    old = bf16_bits(master)
    step = rng.standard_normal(matrix, np.float32) * (MOMENTUM_STD * np.float32(lr))
    step *= lognormal(rng, (rows, 1), 0.3)
    step *= lognormal(rng, matrix, 0.35)
    master -= step
    return old.reshape(shape), bf16_bits(master).reshape(shape)


def policy_step(
    sizes: Decoder, lr: float, seed: int = 0
) -> tuple[dict[str, TensorView], dict[str, TensorView]]:
    """Two consecutive versions of a whole policy.

    Args:
        sizes: which tensors there are.
        lr: learning rate; 1e-6 changes about one percent of the elements.
        seed: same seed, same bits.
    """
    rng = np.random.Generator(np.random.SFC64(seed))
    base: dict[str, TensorView] = {}
    new: dict[str, TensorView] = {}
    for name, shape in sizes.shapes().items():
        old, changed = tensor_step(shape, lr, rng)
        base[name] = TensorView.from_bytes("BF16", shape, old)
        new[name] = TensorView.from_bytes("BF16", shape, changed)
    return base, new
