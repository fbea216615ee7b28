"""Measures regions and offload from Lua and from Python, on one libtorch, one thread, in one run.

Needs a Python with torch 2.11:
    bazel build -c opt //driver:lockstep
    python benchmarks/checkpoint_benchmark.py bazel-bin/driver/lockstep

The peers are torch.utils.checkpoint (use_reentrant=False) and torch.autograd.graph.save_on_cpu. On the CPU the latter copies
nothing, where ours does; per saved tensor it is therefore compared with hooks that copy, too. Both programs take turns,
five times; printed is the least time of each in microseconds and Lua / Python; then what one saved tensor costs over a
plain graph.
"""

import time

import peer
import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

TURNS, OPERATORS = 5, 1000


def measure(times, name, rounds, call):
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    times[name] = 1e6 * best


def plainly(fn, *args):
    return fn(*args)


def region(fn, *args):
    return checkpoint(fn, *args, use_reentrant=False)


def offloading(fn, *args):
    with save_on_cpu():
        return checkpoint(fn, *args, use_reentrant=False)


def block(width):
    up = (torch.randn(width, 4 * width) * 0.02).requires_grad_()
    down = (torch.randn(4 * width, width) * 0.02).requires_grad_()
    return lambda x: x + torch.nn.functional.gelu(x.matmul(up)).matmul(down)


def step(blocks, x, call):
    for layer in blocks:
        x = call(layer, x)
    x.sum().backward()


def chain(x):
    for _ in range(OPERATORS):
        x = torch.tanh(x)
    return x


def saved_on_cpu(call):
    with save_on_cpu():
        result = call()
    return result


def copied(call):
    with saved_tensors_hooks(torch.clone, torch.clone):
        result = call()
    return result


def steps(times, name, rounds, width, tokens):
    blocks, x = [block(width) for _ in range(8)], torch.randn(tokens, width)
    for _ in range(3):
        step(blocks, x, region)
    measure(times, name + ", plain", rounds, lambda: step(blocks, x, plainly))
    measure(times, name + ", regions", rounds, lambda: step(blocks, x, region))
    measure(times, name + ", regions, inputs offloaded", rounds, lambda: step(blocks, x, offloading))
    measure(times, name + ", all saved tensors offloaded", rounds, lambda: saved_on_cpu(lambda: step(blocks, x, plainly)))


def python_times():
    times = {}
    steps(times, "8 x 32, 8 tokens", 200, 32, 8)
    steps(times, "8 x 256, 512 tokens", 25, 256, 512)
    x, large = torch.randn(4, requires_grad=True), torch.randn(1024, requires_grad=True)
    measure(times, "forward of 1000 tanh, plain", 50, lambda: chain(x))
    measure(times, "forward of 1000 tanh, region", 50, lambda: region(chain, x))
    measure(times, "step of 1000 tanh, plain", 50, lambda: chain(x).sum().backward())
    measure(times, "step of 1000 tanh, region", 50, lambda: region(chain, x).sum().backward())
    measure(times, "step of 1000 tanh of 4 KiB, plain", 50, lambda: chain(large).sum().backward())
    measure(times, "step of 1000 tanh of 4 KiB, offloaded", 50,
            lambda: copied(lambda: chain(large)).sum().backward())
    measure(times, "step of 1000 tanh of 4 KiB, save_on_cpu", 50,
            lambda: saved_on_cpu(lambda: chain(large)).sum().backward())
    return times


def main():
    best = peer.take_turns(__file__, TURNS, python_times)
    print(f"{'microseconds':46}{'Lua':>12}{'Python':>12}{'ratio':>8}")
    for name in dict.fromkeys(name for name, which in best if which == "lua"):
        lua, python = best[name, "lua"], best[name, "python"]
        print(f"{name:46}{lua:12.1f}{python:12.1f}{lua / python:8.2f}")
    print("\nover the plain graph, per saved tensor")
    copies = "step of 1000 tanh of 4 KiB"
    for title, ours, theirs, plain in (
            ("pack", "forward of 1000 tanh, region", "forward of 1000 tanh, region", "forward of 1000 tanh, plain"),
            ("pack, recompute, unpack", "step of 1000 tanh, region", "step of 1000 tanh, region",
             "step of 1000 tanh, plain"),
            ("copy 4 KiB out and back", copies + ", offloaded", copies + ", offloaded", copies + ", plain"),
            ("the same against save_on_cpu", copies + ", offloaded", copies + ", save_on_cpu", copies + ", plain")):
        lua = (best[ours, "lua"] - best[plain, "lua"]) / OPERATORS
        python = (best[theirs, "python"] - best[plain, "python"]) / OPERATORS
        print(f"{title:46}{lua:12.3f}{python:12.3f}{lua / python:8.2f}")


if __name__ == "__main__":
    main()
