"""Measures an operator call from Lua and from Python, on one libtorch, one thread, in one run.

Needs a Python with torch 2.11:
    bazel build -c opt //driver:lockstep
    python benchmarks/operators_benchmark.py bazel-bin/driver/lockstep

Both programs take turns, five times; printed is the least time of each in microseconds, and Lua / Python.
"""

import contextlib
import time

import peer
import torch

CALLS, ROUNDS, TURNS = 100_000, 3, 5


def measure(call):
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        best = min(best, time.perf_counter() - start)
    return 1e6 * best / CALLS


def python_times():
    a, b = torch.ones(4), torch.ones(4)
    m, n = torch.ones(4, 4), torch.ones(4, 4)
    times = {}
    for suffix, guard in ((", no grad", torch.no_grad()), (", grad", contextlib.nullcontext())):
        grad = suffix == ", grad"
        a.requires_grad_(grad)
        m.requires_grad_(grad)
        with guard:
            times["a + b" + suffix] = measure(lambda: a + b)
            times["a + 1" + suffix] = measure(lambda: a + 1)
            times["-a" + suffix] = measure(lambda: -a)
            times["a:relu()" + suffix] = measure(lambda: a.relu())
            times["m:matmul(n)" + suffix] = measure(lambda: m.matmul(n))
            times["torch.sum(m, {1}, true)" + suffix] = measure(lambda: torch.sum(m, (1,), True))
    return times


def main():
    best = peer.take_turns(__file__, TURNS, python_times)
    print(f"{'operator':34}{'Lua us':>9}{'Python us':>11}{'ratio':>8}")
    for name in dict.fromkeys(name for name, _ in best):
        lua, python = best[name, "lua"], best[name, "python"]
        print(f"{name:34}{lua:9.3f}{python:11.3f}{lua / python:8.2f}")


if __name__ == "__main__":
    main()
