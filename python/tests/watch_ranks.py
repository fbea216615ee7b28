"""What watch_test.py runs on two ranks: watch_ranks.py CASE WATCH, where WATCH is exit, report or none."""

import datetime
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

import lockstep

TIMEOUT_S = 4


class Stuck(torch.utils.data.Dataset):
    """A dataset whose second sample never comes."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        if index == 1:
            time.sleep(600)
        return torch.ones(2)


def model():
    from torch.distributed.fsdp import fully_shard

    layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    for layer in layers:
        fully_shard(layer)
    return fully_shard(layers)


def all_reduce(rank):
    dist.all_reduce(torch.ones(3))
    if rank == 1:
        time.sleep(600)  # the line that hangs
    dist.all_reduce(torch.ones(4))


def backward(rank):
    net = model()
    for step in range(3):
        loss = net(torch.ones(2, 4)).sum()
        if rank == 1 and step == 1:
            dist.barrier()  # the line that hangs
        loss.backward()


def ddp(rank):
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    for step in range(3):
        loss = net(torch.ones(2, 4)).sum()
        if rank == 1 and step == 1:
            time.sleep(600)  # the line that hangs
        loss.backward()


def data(rank):
    for _ in torch.utils.data.DataLoader(Stuck() if rank == 1 else [1, 2], num_workers=1, batch_size=1):
        dist.all_reduce(torch.ones(1))


def stopped(rank):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(torch.ones(1))


def agreement(rank):
    for _ in lockstep.sharding.lockstep(range(3)):
        if rank == 1:
            time.sleep(600)  # the line that hangs


def computes(rank):
    """Rank 1 works, in Python and in C++, for longer than the limit. Rank 0 waits for it, and later works alone."""
    for work in (lambda: sum(range(1000)), lambda: torch.linalg.svd(torch.rand(500, 500))):
        end = time.monotonic() + 2 * TIMEOUT_S
        while rank == 1 and time.monotonic() < end:
            work()
    dist.barrier()
    dist.destroy_process_group()
    time.sleep((1 - rank) * 2.5 * TIMEOUT_S)
    print(f"rank {rank} has ended well")


def recovers(rank):
    for _ in range(2):
        time.sleep(rank * 3.5 * TIMEOUT_S)
        dist.barrier()
    print(f"rank {rank} has ended well")
    dist.destroy_process_group()


if __name__ == "__main__":
    # Without the watch this timeout, 30 minutes by default, ends the run.
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=8 if sys.argv[2] == "none" else 200))
    if sys.argv[2] != "none":
        lockstep.watch(timeout=TIMEOUT_S, on_hang=sys.argv[2])
    globals()[sys.argv[1]](dist.get_rank())
