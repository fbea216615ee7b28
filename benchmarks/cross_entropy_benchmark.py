"""nn.cross_entropy, forward and backward, against torch.nn.functional.cross_entropy, on one libtorch, one thread, in one run.

Needs a Python with torch 2.11:
    bazel build -c opt //driver:lockstep
    OMP_NUM_THREADS=1 python benchmarks/cross_entropy_benchmark.py bazel-bin/driver/lockstep

"chain" is Lockstep with nn.use_fused(false), which calls ATen's log_softmax and nll_loss as PyTorch does. "tiled" is
tiled_mlp.cross_entropy of hidden states of 64 numbers; PyTorch has none. Each measurement is a process
of its own, which gives the least milliseconds of processor time of five calls, and MiB by which the process grew at its highest. The
gradient of the logits is among them. The programs take turns, three times. Printed are the medians of the turns, and fused / PyTorch.
Losses and norms of the gradients must agree.
"""

import os
import pathlib
import statistics
import subprocess
import sys
import time

import torch

TURNS, ROUNDS = int(os.environ.get("TURNS", 3)), 5
SHAPES = ((2048, 32000), (512, 151936))
TILED = (2048, 151936)
TOLERANCES = {"float32": 1e-5, "bfloat16": 1e-2}  # PyTorch rounds a mean in bfloat16


def peak_mib():
    """VmHWM of this process, in MiB."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024


def python_side(dtype, rows, classes, _, rounds):
    torch.set_num_threads(1)
    rows, classes = int(rows), int(classes)
    logits = torch.empty(rows, classes, dtype=getattr(torch, dtype))
    for row in range(rows):
        logits[row] = (torch.arange(classes, dtype=torch.float32) + row * 31).mul_(0.7).sin_().mul_(4)
    logits.requires_grad_(True)
    labels = torch.arange(rows).square() % classes
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    before, best = peak_mib(), float("inf")
    for _ in range(int(rounds)):
        logits.grad = None
        start = time.process_time()
        loss = torch.nn.functional.cross_entropy(logits, labels)
        loss.backward()
        best = min(best, time.process_time() - start)
    print(f"result {1e3 * best:.3f} {peak_mib() - before:.1f} {loss.item():.9g} {logits.grad.float().norm().item():.9g}")


def run(command):
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    line = next(line for line in output.splitlines() if line.startswith("result "))
    return [float(value) for value in line.split()[1:]]


def measure(program, dtype, rows, classes, *hows):
    """The medians of the turns by column, one for each of `hows`."""
    here, sides = pathlib.Path(__file__), {how: [] for how in hows}
    for _ in range(TURNS):
        for how, results in sides.items():
            case = [dtype, str(rows), str(classes), how, str(ROUNDS)]
            os.environ["LOCKSTEP_BENCHMARK_CASE"] = " ".join(case)
            lua = [program, "--nproc", "1", str(here.with_suffix(".lua"))]
            results.append(run([sys.executable, str(here), "--peer", *case] if how == "python" else lua))
    for how, results in sides.items():
        for i, figure in ((2, "loss"), (3, "norm of the gradient")):
            expected = sides[hows[-1]][0][i]
            if abs(results[0][i] - expected) > TOLERANCES[dtype] * abs(expected):
                sys.exit(f"{dtype} [{rows}, {classes}]: {figure} of {how} is {results[0][i]}, of {hows[-1]} {expected}")
    return [[statistics.median(result[column] for result in side) for side in sides.values()] for column in (0, 1)]


def main():
    if len(sys.argv) == 7:
        return python_side(*sys.argv[2:])
    if len(sys.argv) != 2:
        sys.exit("usage: python cross_entropy_benchmark.py PROGRAM, the built //driver:lockstep")
    print(f"{'':36}{'fused':>9}{'chain':>9}{'PyTorch':>9}{'/ chain':>9}{'/ PyTorch':>10}")
    for dtype in TOLERANCES:
        for rows, classes in SHAPES:
            medians = measure(sys.argv[1], dtype, rows, classes, "fused", "chain", "python")
            for figure, (fused, chain, theirs) in zip(("ms", "MiB"), medians):
                print(f"{f'{dtype} [{rows}, {classes}], {figure}':36}{fused:9.1f}{chain:9.1f}{theirs:9.1f}"
                      f"{fused / chain:9.2f}{fused / theirs:10.2f}", flush=True)
        rows, classes = TILED
        for figure, (fused, chain) in zip(("ms", "MiB"), measure(sys.argv[1], dtype, rows, classes, "fused_tiled", "chain_tiled")):
            print(f"{f'{dtype} [{rows}, {classes}] tiled, {figure}':36}{fused:9.1f}{chain:9.1f}{'':9}{fused / chain:9.2f}", flush=True)


if __name__ == "__main__":
    main()
