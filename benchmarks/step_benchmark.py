"""Measures a module call and a training step from Lua and from Python, on one libtorch, one thread, in one run.

Needs a Python with torch 2.11:
    bazel build -c opt //driver:lockstep
    python benchmarks/step_benchmark.py bazel-bin/driver/lockstep

A step is forward, backward and fused AdamW of a transformer of 6 layers. Both programs take turns, five times; printed
is the least processor time of each in microseconds, and Lua / Python. Other programs on the machine do not count in it. Both
start from the same weights and must reach the same loss. With LOCKSTEP_ATEN=1 the steps from Lua use no fused kernels. "In a
graph" is a step in lockstep.graph; its peer is Python's step as it is. "Six steps at first" is the time on the clock, of steps
that also record the graph. With STEP_BENCHMARK_COMPILE=1 the model is compiled by torch.compile, too, which needs a C++
compiler and takes minutes; the rows with "compiled" have its time in the place of Lua's.
"""

import os
import time
from types import SimpleNamespace

import benchmark_model
import peer
import torch
from torch import nn
from torch.nn import functional as F

LAYERS, VOCAB, HEADS, WARM_UP, TURNS = 6, 64, 4, 6, 5


def measure(calls, rounds, call):
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time()
        for _ in range(calls):
            call()
        best = min(best, time.process_time() - start)
    return 1e6 * best / calls


class Relu(nn.Module):
    def forward(self, x):
        return torch.relu(x)


def training_step(times, name, hidden, batch, tokens, calls, rounds):
    model = benchmark_model.Model(SimpleNamespace(vocab=VOCAB, hidden=hidden, layers=LAYERS, heads=HEADS))
    benchmark_model.fill(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    ids = torch.arange(batch * tokens).remainder(VOCAB).view(batch, tokens)
    labels = ids.roll((1,), (1,))

    def forward(model=model):
        return F.cross_entropy(model(ids).view(-1, VOCAB), labels.view(-1))

    def step(model=model):
        loss = forward(model)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    start = time.perf_counter()
    for _ in range(WARM_UP):
        loss = step().detach()
    times[f"{name}, six steps at first"] = 1e6 * (time.perf_counter() - start)
    times[name] = measure(calls, rounds, step)
    for which in (name, f"{name}, in a graph"):
        times[f"loss after six steps, {which}"] = loss.item()
        times[which] = times[name]
    times[f"{name}, in a graph, six steps at first"] = times[f"{name}, six steps at first"]
    times[f"{name}, forward"] = measure(calls, rounds, forward)
    forward().backward()
    times[f"{name}, optimizer"] = measure(calls, rounds, optimizer.step)
    if os.environ.get("STEP_BENCHMARK_COMPILE"):
        compiled = torch.compile(model)
        start = time.perf_counter()
        for _ in range(WARM_UP):
            step(compiled)
        times[f"{name}, compiled, six steps at first"] = 1e6 * (time.perf_counter() - start)
        times[f"{name}, compiled"] = measure(calls, rounds, lambda: step(compiled))


def python_times():
    times = {}
    relu, x = Relu(), torch.ones(4)
    with torch.no_grad():
        times["module around an operator"] = measure(200_000, 5, lambda: relu(x))
        times["the operator alone"] = measure(200_000, 5, lambda: torch.relu(x))
    training_step(times, "hidden 32, 1 x 16", 32, 1, 16, 50, 6)
    training_step(times, "hidden 128, 4 x 64", 128, 4, 64, 8, 4)
    training_step(times, "hidden 512, 2 x 256", 512, 2, 256, 1, 2)
    return times


def main():
    best = peer.take_turns(__file__, TURNS, python_times)
    for which in ("lua", "python"):
        alone = best["the operator alone", which]
        best["module call", which] = best["module around an operator", which] - alone
    print(f"{'':48}{'Lua us':>11}{'Python us':>11}{'ratio':>8}")
    for name in dict.fromkeys(name for name, _ in best):
        python = best[name.replace(", compiled", ""), "python"]
        lua = best.get((name, "lua")) or best[name, "python"]
        if name.startswith("loss"):
            if abs(lua - python) > 1e-4 * abs(python):
                raise SystemExit(f"{name}: {lua} from Lua, but {python} from Python")
            continue
        print(f"{name:48}{lua:11.3f}{python:11.3f}{lua / python:8.2f}")


if __name__ == "__main__":
    main()
