"""One rank of a sharded trainer: ``python rank_runs.py JSON``, started by ``test_detect_ranks``.

All ranks train the same model on the same batches, sharded in some way, and publish together.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist

import deltawire as dw
from deltawire.detect import AdamWBoundaryDetector, Slice, StepwiseDetector, publish_together
from detect_runs import Model, backward, made


def sharded(model: Model, layout: str, world: int) -> Any:
    """The model under a layout."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    if layout in ("fsdp", "hsdp", "fsdp+tp"):
        shape, names = {
            "fsdp": ((world,), ("shard",)),
            "hsdp": ((2, world // 2), ("copy", "shard")),
            "fsdp+tp": ((2, world // 2), ("shard", "tensor")),
        }[layout]
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        if layout == "fsdp+tp":
            from torch.distributed.tensor.parallel import (
                ColwiseParallel,
                RowwiseParallel,
                parallelize_module,
            )

            for layer in model.layers:
                plan = {
                    "kv_proj": ColwiseParallel(output_layouts=_replicated()),
                    "down_proj": RowwiseParallel(input_layouts=_replicated()),
                }
                parallelize_module(layer, mesh["tensor"], plan)
            mesh = mesh["shard"]
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif layout == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model)
    return model


def _replicated() -> Any:
    from torch.distributed.tensor import Replicate

    return Replicate()


class Flat:
    """A distributed optimizer: BF16 weights complete, FP32 masters in a flat buffer that is cut."""

    def __init__(self, model: Model, rank: int, world: int) -> None:
        self.model = model.to(torch.bfloat16)
        self.named = list(model.named_parameters())
        flat = torch.cat([p.detach().float().flatten() for _, p in self.named])
        self.cuts = [len(flat) * i // world for i in range(world + 1)]
        self.mine = self.cuts[rank], self.cuts[rank + 1]
        self.master = torch.nn.Parameter(flat[self.mine[0] : self.mine[1]].clone())
        self.optimizer = torch.optim.AdamW([self.master], lr=1e-5, weight_decay=0.1)

    def tensors(self) -> dict[str, Any]:
        """What this rank's detector is given."""
        out: dict[str, Any] = {}
        begin = 0
        for name, p in self.named:
            first = max(self.mine[0], begin)
            last = min(self.mine[1], begin + p.numel())
            if first < last:
                out[name] = Slice(p, self.master, first - self.mine[0], first - begin, last - first)
            begin += p.numel()
        return {**out, "scale": self.model.scale}

    def step(self) -> None:
        """Step what is here, and gather the weights."""
        grads = torch.cat([p.grad.float().flatten() for _, p in self.named])
        self.master.grad = grads[self.mine[0] : self.mine[1]].clone()
        self.optimizer.step()
        parts = [torch.empty(b - a) for a, b in pairwise(self.cuts)]
        dist.all_gather(parts, self.master.detach().clone())
        flat = torch.cat(parts)
        with torch.no_grad():
            for _, p in self.named:
                p.copy_(flat[: p.numel()].view(p.shape))
                flat = flat[p.numel() :]


def main(config: dict[str, Any]) -> None:
    """Train and publish."""
    rank, world = config["rank"], config["world"]
    dist.init_process_group(
        "gloo",
        init_method=f"file://{config['work']}/rendezvous",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=config.get("timeout", 120)),
    )
    torch.set_num_threads(1)
    model = sharded(made(**config.get("sizes", {})), config["layout"], world)
    parameters = list(model.parameters())
    optimizer: Any
    held: Any = model
    step: Any = None
    if config["layout"] == "flat":
        flat = Flat(model, rank, world)
        held, optimizer, step = flat.tensors(), flat.optimizer, flat.step
    elif config["layout"] == "zero":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer = ZeroRedundancyOptimizer(
            parameters, torch.optim.AdamW, lr=1e-5, weight_decay=0.1
        )
    else:
        optimizer = torch.optim.AdamW(parameters, lr=1e-5, weight_decay=0.1)
    kind = {"adamw": AdamWBoundaryDetector, "stepwise": StepwiseDetector}[config["detector"]]
    tiling = dw.Tiling(**config.get("tiling", {}))
    detector = kind(held, optimizer, ranks=dist.group.WORLD, tiling=tiling)
    board = dw.Board(config["board"])
    publisher = board.publisher() if rank == 0 else None
    told: list[Any] = []
    for number in range(1, config["versions"] + 1):
        backward(model, number)
        (step or optimizer.step)()
        if config.get("dies") == [rank, number]:
            os._exit(17)
        if config.get("fails") == [rank, number]:
            detector._found = None  # type: ignore[assignment, method-assign]
        try:
            stats = publish_together(detector, board, publisher)
        except dw.DeltawireError as error:
            told.append({"error": type(error).__name__, "message": str(error)})
            if config.get("fails") == [rank, number]:
                del detector._found
            stats = publish_together(detector, board, publisher)
        assert detector.proof is not None
        told.append({**stats.as_dict(), "wrong": detector.proof.wrong, "open": detector.proof.open})
    if publisher is not None:
        publisher.close()
    detector.close()
    dist.barrier()
    print(json.dumps({"told": told, "elements": detector.elements}), flush=True)
    # The threads of gloo now and then abort the process at its end.
    os._exit(0)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
