"""Functions that the Python programs of gpu_check share: the twin of timing.lua."""

import sys
import time

import torch

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cpu"
IS_SMALL = sys.argv[2:3] == ["small"]
torch.set_num_threads(1)


def size(full, small):
    return small if IS_SMALL else full


def synchronize():
    if DEVICE != "cpu":
        torch.cuda.synchronize()


def report(name, value):
    print(f"{name} {value:.6g}")


def seconds(calls, rounds, call):
    """The least seconds of one call, of `rounds` rounds of `calls` calls, after one round of warm-up."""
    best = float("inf")
    for turn in range(rounds + 1):
        synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        synchronize()
        if turn:
            best = min(best, (time.perf_counter() - start) / calls)
    return best
