"""The host's time that FSDP2 adds to a small layer, on one rank: see fully_shard.lua."""

import timing
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

LAYERS, HIDDEN, TOKENS = timing.size(64, 4), 32, 16


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def sharded(net):
    for block in net:
        fully_shard(block)
    return fully_shard(net)


def pass_of(wrap):
    model = wrap(nn.Sequential(*[Block() for _ in range(LAYERS)]).to(timing.DEVICE))
    x = torch.ones(TOKENS, HIDDEN, device=timing.DEVICE)

    def call():
        model(x).pow(2).mean().backward()
        for p in model.parameters():
            p.grad = None

    return call


# A store of this process alone: a port might be taken.
dist.init_process_group("gloo" if timing.DEVICE == "cpu" else "nccl", store=dist.HashStore(), rank=0, world_size=1)
without = timing.seconds(3, 5, pass_of(lambda net: net))
with_sharding = timing.seconds(3, 5, pass_of(sharded))
timing.report("host time of sharding, us a layer", 1e6 * (with_sharding - without) / LAYERS)
dist.destroy_process_group()
