"""FSDP2 ranks that publish together what each of them holds; nothing is gathered.

Run: torchrun --nproc-per-node 2 examples/fsdp2_publish.py [BOARD]

By default the board is a directory that is made anew. The ranks compute on the CPU over gloo; on
GPUs only the device and the group of the model change, the group of `ranks` carries objects.
"""

import sys
import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import deltawire as dw

dist.init_process_group("gloo", timeout=timedelta(seconds=60))
first = dist.get_rank() == 0
where = [sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()]
if first:
    dw.Board(where[0], create=True)
dist.broadcast_object_list(where)
board = dw.Board(where[0])

torch.manual_seed(0)
policy = torch.nn.Sequential(torch.nn.Embedding(512, 64), torch.nn.Linear(64, 512))
publisher = board.publisher(run="fsdp2") if first else None
if publisher is not None:
    publisher.publish_anchor(0, {n: p.detach().bfloat16() for n, p in policy.named_parameters()})
fully_shard(policy)
optimizer = torch.optim.AdamW(policy.parameters(), lr=5e-6)
detector = dw.detect.AdamWBoundaryDetector(policy, optimizer, ranks=dist.group.WORLD)

for step in range(3):
    torch.manual_seed(1000 * step + dist.get_rank())
    tokens = torch.randint(512, (16, 9))
    optimizer.zero_grad()
    logits = policy(tokens[:, :-1])
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    optimizer.step()
    stats = dw.detect.publish_together(detector, board, publisher)
    if first:
        print(f"version {stats.version}: {stats.changed} of {stats.elements} elements changed")

# A collective that only this check needs: the weights of all ranks are what a reader gets.
whole = {name: p.detach().full_tensor().bfloat16() for name, p in policy.named_parameters()}
if publisher is not None:
    publisher.close()
    replica = {name: torch.zeros_like(p) for name, p in whole.items()}
    board.follower(replica).advance()
    assert all(torch.equal(whole[name], p) for name, p in replica.items())
    print(f"a reader of {board.url} holds the trainer's bits")
dist.barrier()
dist.destroy_process_group()
