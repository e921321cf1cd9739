"""A plain torch training loop that publishes every step, and a replica that follows it.

Run: python examples/train_and_follow.py [BOARD]

Here both sides share one process and, by default, a board in its memory. In earnest BOARD is
a directory or URL, and the receiver runs wherever that can be reached.
"""

import sys

import torch

import deltawire as dw

board = dw.Board(sys.argv[1] if len(sys.argv) > 1 else "memory://example", create=True)

# The trainer: FP32 masters, of which receivers see the BF16 cast.
policy = torch.nn.Sequential(torch.nn.Embedding(512, 64), torch.nn.Linear(64, 512))
optimizer = torch.optim.AdamW(policy.parameters(), lr=5e-6)

# The receiver: its own model, unknown contents. The board's writes go into its parameters.
replica = torch.nn.Sequential(torch.nn.Embedding(512, 64), torch.nn.Linear(64, 512)).bfloat16()
follower = board.follower({name: p.detach() for name, p in replica.named_parameters()})

# Keeps no copy of what was published: the optimizer's state tells what a step has changed.
with dw.detect.on_step(board, policy, optimizer, run="example") as published:
    for _ in range(5):
        tokens = torch.randint(512, (64, 9))
        logits = policy(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        stats = published.step()

        follower.advance()
        print(
            f"version {follower.version}: {stats.changed} of {stats.elements} elements changed, "
            f"{stats.bytes} bytes, state {follower.prove().hex()}"
        )

held = {name: p.detach().bfloat16() for name, p in policy.named_parameters()}
assert all(torch.equal(held[name], p) for name, p in replica.named_parameters())
print("the replica holds the trainer's bits")
