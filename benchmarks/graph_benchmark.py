"""Measures a training step: lockstep, lockstep.graph, PyTorch and torch.compile, on one libtorch, in one run.

Needs a Python with torch 2.11, and for the sizes below a GPU:
    bazel build -c opt //driver:lockstep
    python benchmarks/graph_benchmark.py bazel-bin/driver/lockstep

A step is forward, backward and fused AdamW of a transformer of 12 layers, hidden 768, batch 8 x 1024, whose weights are
bfloat16. Both programs take turns; printed is the least time of each in milliseconds, and the ratio to PyTorch's. All
start from the same weights and must reach the same loss. Without a GPU, to see that it works:

    python benchmarks/graph_benchmark.py bazel-bin/driver/lockstep --layers 2 --hidden 32 --heads 2 --batch 1 \
      --tokens 16 --vocab 64 --dtype float32
"""

import argparse
import pathlib
import subprocess
import time

import benchmark_model
import torch
from torch.nn import functional as F

LOCKSTEP, GRAPH, EAGER, COMPILED = "lockstep", "lockstep.graph", "PyTorch", "torch.compile"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def training_step(size, wrap):
    model = benchmark_model.Model(size)
    benchmark_model.fill(model)
    model = model.to(device=DEVICE, dtype=getattr(torch, size.dtype))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    forward = wrap(model)

    def step(ids, labels):
        loss = F.cross_entropy(forward(ids).float().view(-1, size.vocab), labels.view(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def synchronize():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


class Contender:
    """A step of PyTorch: the loss after `size.steps` of them, then the time of one."""

    def __init__(self, size, wrap):
        self.size = size
        self.step = training_step(size, wrap)
        self.ids = torch.arange(size.batch * size.tokens, device=DEVICE).remainder(size.vocab)
        self.ids = self.ids.view(size.batch, size.tokens)
        self.labels = self.ids.roll((1,), (1,))
        for _ in range(size.steps):
            loss = self.step(self.ids, self.labels)
        self.loss = loss.item()

    def milliseconds(self):
        best = float("inf")
        for _ in range(self.size.rounds):
            synchronize()
            start = time.perf_counter()
            for _ in range(self.size.steps):
                self.step(self.ids, self.labels)
            synchronize()
            best = min(best, time.perf_counter() - start)
        return 1e3 * best / self.size.steps


def compiled(size):
    """The contender of torch.compile, or None, and why, where this machine cannot compile."""
    try:
        return Contender(size, lambda model: torch.compile(model, mode=size.compile_mode))
    except Exception as error:  # whatever its compilers raise
        reason = str(error).strip().split("\n")[0]
        print(f"torch.compile is left out: {type(error).__name__}: {reason}")
        return None


def lua_times(size):
    numbers = (size.layers, size.hidden, size.heads, size.batch, size.tokens, size.vocab, size.steps, size.rounds)
    command = [size.program, "--nproc", "1", str(pathlib.Path(__file__).with_suffix(".lua")), "--"]
    output = subprocess.run([*command, *map(str, numbers), size.dtype], check=True, capture_output=True, text=True)
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in output.stdout.splitlines())}


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program", help="the built //driver:lockstep")
    defaults = {"layers": 12, "hidden": 768, "heads": 12, "batch": 8, "tokens": 1024, "vocab": 32768}
    for name, value in {**defaults, "steps": 10, "rounds": 3, "turns": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"default: {value}")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--compile-mode", default="default", help="of torch.compile")
    return parser.parse_args()


def main():
    size = read_arguments()
    torch.set_num_threads(1)
    peers = {EAGER: Contender(size, lambda model: model), COMPILED: compiled(size)}
    peers = {name: peer for name, peer in peers.items() if peer}
    best, losses = {}, {name: peer.loss for name, peer in peers.items()}
    for _ in range(size.turns):
        for name, value in {**lua_times(size), **{name: peer.milliseconds() for name, peer in peers.items()}}.items():
            if name.startswith("loss, "):
                losses[name.removeprefix("loss, ")] = value
            else:
                best[name] = min(best.get(name, float("inf")), value)

    # A kernel that sums up in another order rounds bfloat16 weights otherwise, in every step.
    tolerance = 1e-4 if size.dtype == "float32" else 3e-2
    for name, loss in losses.items():
        if not abs(loss - losses[EAGER]) <= tolerance * abs(losses[EAGER]):
            raise SystemExit(f"after {size.steps} steps the loss of {name} is {loss}, but {losses[EAGER]} in {EAGER}")
    where = torch.cuda.get_device_name() if DEVICE == "cuda" else "the CPU, one thread, where a graph is a list of operators"
    print(f"{size.layers} layers of {size.hidden}, batch {size.batch} x {size.tokens}, {size.dtype}, on {where}")
    for name in (LOCKSTEP, GRAPH, EAGER, COMPILED):
        if name in best:
            print(f"{name}, ms {best[name]:.3f}")
            print(f"{name} / {EAGER} {best[name] / best[EAGER]:.3f}")


if __name__ == "__main__":
    main()
