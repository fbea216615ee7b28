"""Trains on pictures and texts with FSDP2. On two ranks it hangs with the word `plain`, and trains without."""

import datetime
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import lockstep

PLAIN, PLAIN_VALIDATION = "plain" in sys.argv[1:], "validation" in sys.argv[1:]
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=8 if sys.argv[1:] else 600))
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.vision = torch.nn.Sequential(*[torch.nn.Linear(8, 8, bias=False) for _ in range(2)])
        self.text = torch.nn.Embedding(8, 8)
        self.head = torch.nn.Linear(8, 8, bias=False)

    def forward(self, kind, rows):
        return self.head(self.vision(rows) if kind == "image" else self.text(rows)).mean()


model = Model()
for module in (*model.vision, model.text, model.head, model):
    fully_shard(module)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
samples = [("image", torch.randn(5, 8)) if i % 3 == 0 else ("text", torch.randint(8, (4 + i % 5,))) for i in range(24)]
kinds, rows = zip(*samples)

if PLAIN:  # each rank takes every second sample: of different kinds, so with different collectives
    steps = [(kinds[i], [i], 1.0) for i in range(rank, len(samples), world)]
else:
    plan = lockstep.batching.plan([len(each) for each in rows], kinds, ranks=world, seq_len=16)
    steps = [(plan.kind(step), plan.at(rank, step), 0.0 if plan.is_padding(rank, step) else 1.0)
             for step in range(plan.micro_steps)]
for epoch in range(5):
    for kind, indices, weight in steps:
        loss = (model(kind, torch.cat([rows[i] for i in indices])) - 1).square() * weight
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

held_out = [torch.randint(8, (6,)) for _ in range(3 + 2 * rank)]  # rank 1 has more of them
total = count = 0
batches = ((batch, True) for batch in held_out)
if not PLAIN_VALIDATION:
    batches = lockstep.sharding.lockstep(held_out, policy="until_last")
with torch.no_grad():
    for batch, real in batches:
        error = (model("text", batch) - 1).square().item()
        total, count = (total + error, count + 1) if real else (total, count)
mean = lockstep.sharding.weighted_mean(total / max(count, 1), count)
print(f"rank {rank}: error {mean:.4f} over {count} held-out batches of {len(held_out)}")
dist.destroy_process_group()
