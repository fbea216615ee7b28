"""Compares DeepSpeed's and Liger's TiledMLP with mlp_benchmark, on the same libtorch:

    python benchmarks/mlp_benchmark_peer.py BINARY ULYSSES_SP LIGER [TOKENS HIDDEN INTERMEDIATE TILES ROUNDS]

BINARY: bazel-bin/tiled_mlp/mlp_benchmark. ULYSSES_SP: DeepSpeed's
deepspeed/runtime/sequence_parallel/ulysses_sp.py. LIGER: Liger-Kernel's src/liger_kernel/ops/tiled_mlp.py.
Of each file the one class is run as it stands there, its imports replaced by stubs. The binary runs in the
same minutes, and each program's ratios are to its own untiled MLP, whose turns alternate with the others'.
Memory is the growth of the process's peak resident size during one forward and backward, measured apart
from the time, with every tensor in pages of its own.
"""

import ast
import os
import statistics
import subprocess
import sys
import time
import types

import torch


def tiled_class(path, name):
    """The class of that name alone, out of a module whose imports this machine may lack."""
    with open(path) as file:
        tree = ast.parse(file.read())
    chosen = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    namespace = {"torch": torch, "ensure_contiguous": lambda fn: fn, "List": list, "Optional": types.SimpleNamespace}
    annotations_off = ast.parse("from __future__ import annotations").body
    exec(compile(ast.Module(annotations_off + chosen, []), path, "exec"), namespace)
    return namespace[name]


def contenders(paths, tokens, hidden, wide, tiles):
    torch.manual_seed(1)
    x = torch.randn(1, tokens, hidden, requires_grad=True)
    shapes = ((wide, hidden), (wide, hidden), (hidden, wide))
    weights = [torch.nn.Parameter(torch.randn(o, i) / i ** 0.5) for o, i in shapes]
    dy = torch.randn(1, tokens, hidden)

    def body(_, rows):
        gate, up, down = weights
        linear, silu = torch.nn.functional.linear, torch.nn.functional.silu
        return linear(silu(linear(rows, gate)) * linear(rows, up), down)

    def step(forward):
        forward().backward(dy)
        gradients = [tensor.grad for tensor in [x, *weights]]
        for tensor in [x, *weights]:
            tensor.grad = None
        return gradients

    deepspeed, liger = tiled_class(paths[0], "TiledMLP"), tiled_class(paths[1], "LigerTiledMLPFunction")
    return {
        "untiled": lambda: step(lambda: body(None, x)),
        "DeepSpeed TiledMLP": lambda: step(lambda: deepspeed.apply(body, None, x, tiles, weights)),
        "Liger TiledMLP": lambda: step(lambda: liger.apply(body, None, x, tiles, weights)),
    }


def status_kib(field):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(field + ":"))


def print_memory(run):
    """Measures the third pass, in a separate process."""
    for _ in range(2):
        run()
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = status_kib("VmRSS")
    run()
    print((status_kib("VmHWM") - before) / 1024)


def main():
    args = [a for a in sys.argv[1:] if not a.startswith("--only=")]
    only = [a[len("--only="):] for a in sys.argv[1:] if a.startswith("--only=")]
    torch.set_num_threads(1)
    binary, paths = args[0], args[1:3]
    sizes = [int(a) for a in args[3:]] or [4096, 1024, 2816, 4, 5]
    runs = contenders(paths, *sizes[:4])
    if only:
        return print_memory(runs[only[0]])
    subprocess.run([binary, *map(str, sizes)], check=True)
    expected = runs["untiled"]()
    seconds = {name: [] for name in runs}
    for name, run in runs.items():
        for ours, theirs in zip(run(), expected):
            assert torch.allclose(ours, theirs, rtol=1e-3, atol=1e-3), name
    for _ in range(sizes[4]):
        for name, run in runs.items():
            start = time.process_time()
            run()
            seconds[name].append(time.process_time() - start)
    environment = dict(os.environ, MALLOC_MMAP_THRESHOLD_="65536", MALLOC_TRIM_THRESHOLD_="65536")
    mebibytes = {}
    for name in runs:
        child = subprocess.run([sys.executable, *sys.argv, "--only=" + name], env=environment, check=True,
                               capture_output=True, text=True)
        mebibytes[name] = float(child.stdout)
    for name, times in seconds.items():
        ratio = statistics.median(t / u for t, u in zip(times, seconds["untiled"]))
        print(f"{name:22} {statistics.median(times):8.3f} s  time {ratio:5.3f} of untiled  {mebibytes[name]:8.1f} MiB,"
              f" {mebibytes[name] / mebibytes['untiled']:5.3f} of untiled")


if __name__ == "__main__":
    main()
