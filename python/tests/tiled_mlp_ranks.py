"""tiled_mlp_ranks.py CASE: a rank of tiled_mlp_ranks_test.py, started by torchrun. It prints the outcome as JSON."""

import contextlib
import copy
import json
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import lockstep
from naive_tiles import Naive

HIDDEN = 8


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(HIDDEN)
        self.mlp = lockstep.nn.SwiGLU(HIDDEN, 16)

    def forward(self, x):
        return x + self.mlp(self.norm(x))


class Net(torch.nn.Module):
    """Two blocks. `again` runs them within activation checkpoints."""

    def __init__(self, again=False):
        super().__init__()
        self.inlet = torch.nn.Linear(HIDDEN, HIDDEN)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(2))
        self.again = again

    def forward(self, x):
        x = self.inlet(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        return x


def inputs(rank, step=0):
    """Ranks have different numbers of tokens."""
    generator = torch.Generator().manual_seed(10 * step + rank)
    return torch.randn(2, 5 + 3 * rank, HIDDEN, generator=generator)


def loss_of(y):
    return y.square().sum()


def expected(plain, steps=1):
    """The gradients of the ranks' mean loss, from one process without tiles."""
    plain.zero_grad()
    for step in range(steps):
        (sum(loss_of(plain(inputs(rank, step))) for rank in range(2)) / 2).backward()
    return [parameter.grad for parameter in plain.parameters()]


def distance(model, gradients):
    """The largest relative distance of the model's gradients from these."""
    largest = 0.0
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        if parameter.grad is None:
            return float("inf")
        got = parameter.grad.full_tensor() if hasattr(parameter.grad, "full_tensor") else parameter.grad
        largest = max(largest, ((got - gradient).norm() / gradient.norm()).item())
    return largest


def count_hooks(model):
    counts = {name: 0 for name, _ in model.named_parameters()}

    def count(name):
        counts[name] += 1

    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: count(name))
    return counts


def naive(alone):
    rank = dist.get_rank()
    plain = Block().mlp if alone else Net()
    model = copy.deepcopy(plain)
    if alone:
        model = Naive(model, 3)
    else:
        for block in model.blocks:
            block.mlp = Naive(block.mlp, 3)
    counts = count_hooks(model)
    parallel = DistributedDataParallel(model)
    try:
        loss_of(parallel(inputs(rank).requires_grad_())).backward()
    except RuntimeError as error:
        return {"error": str(error)}
    return {"distance": distance(model, expected(plain)), "hooks": sorted(set(counts.values()))}


def replicated(**options):
    rank = dist.get_rank()
    outcomes = {}
    # A static graph begins with a synchronised step, tiled or not.
    for accumulate in (False,) if options.get("static_graph") else (False, True):
        plain = Net(again=options.get("again", False))
        model = copy.deepcopy(plain)
        lockstep.nn.tile(model, ["blocks.*.mlp"], tiles=3 + rank)
        counts = count_hooks(model)
        parallel = DistributedDataParallel(model, **{name: value for name, value in options.items() if name != "again"})
        if accumulate:
            with parallel.no_sync():
                loss_of(parallel(inputs(rank, 1))).backward()
        loss_of(parallel(inputs(rank))).backward()
        steps = 2 if accumulate else 1
        outcomes[str(accumulate)] = {
            "distance": distance(model, expected(plain, steps)),
            "hooks": sorted({count / steps for count in counts.values()}),
        }
    return outcomes


def shard(model, unit, **options):
    """Shards as the case says: which module is a unit, with the root around it."""
    for block in model.blocks:
        if unit == "block":
            block.mlp = lockstep.nn.TiledMLP(block.mlp, 3)
            fully_shard(block, **options)
        elif unit == "wrapper":
            block.mlp = fully_shard(lockstep.nn.TiledMLP(block.mlp, 3), **options)
        elif unit == "before":
            fully_shard(block.mlp, **options)
            block.mlp = lockstep.nn.TiledMLP(block.mlp, 3)
        elif unit == "after":
            block.mlp = lockstep.nn.TiledMLP(block.mlp, 3)
            fully_shard(block.mlp.module, **options)
        elif unit == "part":
            fully_shard(block.mlp.up_proj, **options)
            block.mlp = lockstep.nn.TiledMLP(block.mlp, 3)
    return fully_shard(model, **options)


def sharded(unit, again=False, low=False, **options):
    rank = dist.get_rank()
    plain = Net(again=again)
    if low:
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = shard(copy.deepcopy(plain), unit, **options)
    calls = []
    for name, module in model.named_modules():
        if isinstance(module, lockstep.nn.SwiGLU):
            module.register_forward_hook(lambda *_: calls.append(1))
    try:
        loss_of(model(inputs(rank)).float()).backward()
    except RuntimeError as error:
        return {"error": str(error)}
    first = distance(model, expected(plain))
    # A second step: the weights of the first are gone, and gathered anew.
    with torch.no_grad():
        for mine, theirs in zip(model.parameters(), plain.parameters()):
            mine.sub_(mine.grad, alpha=0.01)
            theirs.sub_(theirs.grad, alpha=0.01)
    model.zero_grad()
    loss_of(model(inputs(rank, 1)).float()).backward()
    plain.zero_grad()
    (sum(loss_of(plain(inputs(rank, 1))) for rank in range(2)) / 2).backward()
    return {
        "distance": max(first, distance(model, [parameter.grad for parameter in plain.parameters()])),
        "calls": len(calls),
    }


CASES = {
    "naive": lambda: naive(alone=False),
    "naive_alone": lambda: naive(alone=True),
    "ddp": lambda: {
        "plain": replicated(),
        "find_unused": replicated(find_unused_parameters=True),
        "static_graph": replicated(static_graph=True),
        "again": replicated(again=True),
    },
    "fsdp": lambda: {unit: sharded(unit) for unit in ("block", "wrapper", "before", "after")},
    "fsdp_options": lambda: {
        "kept": sharded("block", reshard_after_forward=False),
        "again": sharded("block", again=True),
        "wrapper_again": sharded("wrapper", again=True),
        "low": sharded("block", low=True),
    },
    "fsdp_part": lambda: sharded("part"),
}


def main():
    with contextlib.ExitStack() as stack:
        dist.init_process_group("gloo")
        stack.callback(dist.destroy_process_group)
        torch.manual_seed(0)
        print("OUTCOME " + json.dumps(CASES[sys.argv[1]]()) + "\n", end="", flush=True)


main()
