"""Runs every check that needs a GPU, most informative first, and prints one table.

    python3 check.py            all of them, in at most 8 minutes
    python3 check.py --list     the items, without running them

Needs a Python with torch 2.11 for CUDA 13 and one GPU; neither Bazel nor a network. Without a GPU the programs run
small on the CPU, to see that they work, and the items that only a GPU can answer say "not run".
"""

import argparse
import glob
import os
import pathlib
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
BUDGET_S = 480  # for all items together
FAILED, NOT_RUN, PASSED = "FAIL", "not run", "pass"


class Bound:
    """The expectation of one figure: a range for the value, or for its ratio to the peer's value of the same name."""

    def __init__(self, name, low=0.0, high=float("inf"), is_ratio=False, on_cpu=False):
        self.name, self.low, self.high, self.is_ratio = name, low, high, is_ratio
        self.on_cpu = on_cpu  # whether the figure is judged without a GPU, too: it is a result, not a speed

    def __str__(self):
        if self.low == self.high:
            return f"{self.low:g}"
        if self.high == float("inf"):
            return f">= {self.low:g}"
        if self.low == 0:
            return f"<= {self.high:g}"
        return f"{self.low:g} to {self.high:g}"


class Item:
    """One program, its peer in Python if it has one, and the bounds on what they print."""

    def __init__(self, title, command, bounds=(), peer=None, seconds=60, needs_gpu=False):
        self.title, self.command, self.bounds, self.peer = title, command, bounds, peer
        self.seconds, self.needs_gpu = seconds, needs_gpu


def lua(script, *arguments):
    return [str(HERE / "lockstep/bin/lockstep"), "--nproc", "1", "--run-dir", "{scratch}/run", str(HERE / script),
            "--", *(arguments or ("{device}", "{size}"))]


def python(script, *arguments):
    return [sys.executable, str(HERE / script), *(arguments or ("{device}", "{size}"))]


def gtest(name):
    return [str(HERE / "tests" / name), "--gtest_brief=1"]


def graph(*sizes):
    return python("graph_benchmark.py", str(HERE / "lockstep/bin/lockstep"), "--steps", "10", "--rounds", "2",
                  "--turns", "1", *sizes)


def items():
    return [
        Item("ceilings", lua("ceilings.lua"), peer=python("ceilings.py"), bounds=[
            Bound("copy, GB/s", 0.97, 1.03, is_ratio=True), Bound("matmul, TFLOP/s", 0.97, 1.03, is_ratio=True)]),
        Item("operators and gradients", lua("operators.lua"), bounds=[Bound("relative error", high=1e-2, on_cpu=True)]),
        Item("CUDA library test", gtest("cuda_library_test"), needs_gpu=True),
        Item("checkpoint on a GPU", gtest("checkpoint_gpu_test"), needs_gpu=True),
        Item("tiled_mlp on a GPU", gtest("tiled_mlp_gpu_test"), needs_gpu=True),
        Item("kernels on a GPU", gtest("kernels_gpu_test"), needs_gpu=True),
        Item("float8 on a GPU", gtest("float8_gpu_test"), needs_gpu=True),
        Item("attention", lua("run_test.lua", str(HERE / "attention_gpu_test.lua")), needs_gpu=True),
        Item("collectives through NCCL", lua("run_test.lua", str(HERE / "collectives_gpu_test.lua")), needs_gpu=True),
        Item("graphs, streams, events", lua("run_test.lua", str(HERE / "graph_gpu_test.lua")), needs_gpu=True),
        Item("out of memory in backward", lua("run_test.lua", str(HERE / "memory_gpu_test.lua")), needs_gpu=True),
        Item("AdamW in bfloat16", lua("adamw.lua"), bounds=[
            Bound("moved, bfloat16 / float32", 0.95, 1.05, on_cpu=True)]),
        Item("fused kernels", lua("kernels.lua"), bounds=[
            Bound("RMSNorm, time / ATen", high=1.0), Bound("add + RMSNorm, time / ATen", high=0.6),
            Bound("SwiGLU, time / ATen", high=0.5), Bound("rotation, time / ATen", high=0.2),
            Bound("AdamW, time / ATen", high=0.6), Bound("AdamW, speed / copy", low=0.8)]),
        Item("float8 layers", lua("float8.lua"), bounds=[
            Bound("tensorwise, error / CPU", high=1e-2, on_cpu=True), Bound("rowwise, error / CPU", high=1e-2, on_cpu=True),
            Bound("tensorwise, time / bfloat16", high=0.93), Bound("rowwise, time / bfloat16", high=1.0),
            Bound("cast, speed / copy", low=0.5)]),
        Item("host time of operators", lua("tiny_operators.lua"), peer=python("tiny_operators.py"), bounds=[
            Bound("1,000 additions, ms", high=0.7, is_ratio=True), Bound("with backward, ms", high=0.9, is_ratio=True)]),
        Item("124M, 8 x 1024", graph("--batch", "8", "--tokens", "1024"), seconds=150, bounds=[
            Bound("lockstep / PyTorch", high=1.0), Bound("lockstep.graph / PyTorch", high=0.97)], needs_gpu=True),
        Item("124M, 1 x 256", graph("--batch", "1", "--tokens", "256"), seconds=120, bounds=[
            Bound("lockstep.graph / PyTorch", high=0.5)], needs_gpu=True),
        Item("regions with offload", lua("checkpoint.lua"), bounds=[
            Bound("gradients that differ", 0, 0, on_cpu=True), Bound("time with offload / without", high=1.05)]),
        Item("samples on a copy stream", lua("loader.lua"), bounds=[
            Bound("samples that differ", 0, 0, on_cpu=True), Bound("time with the copy stream / without", high=1.0)]),
        Item("fully sharded, one rank", lua("fully_shard.lua"), peer=python("fully_shard.py"), bounds=[
            Bound("step, time / plain", high=1.02), Bound("MiB reserved after the first step", 0, 0),
            Bound("host time of sharding, us a layer", high=0.1, is_ratio=True)]),
        Item("tiled MLP and loss", lua("tiled.lua"), seconds=90, bounds=[
            Bound("tiled MLP, any function, time", high=1.36), Bound("tiled MLP, dense, time", high=1.25),
            Bound("tiled loss, time", high=1.3), Bound("tiled loss, memory", high=0.1)]),
    ]


def figures(output):
    """The last "name value" of each name; lines that begin with # are remarks."""
    found = {}
    for line in output.splitlines():
        name, _, value = line.strip().rpartition(" ")
        try:
            found[name.strip()] = float(value)
        except ValueError:
            continue
    return found


class Checker:
    """Runs items and keeps the rows of the table: item, figure, value, peer's value, ratio, expected, verdict."""

    def __init__(self, has_gpu, environment, scratch):
        self.has_gpu, self.environment, self.scratch = has_gpu, environment, scratch
        self.rows, self.deadline = [], time.monotonic() + BUDGET_S

    def run(self, item):
        if item.needs_gpu and not self.has_gpu:
            return self.add(item.title, verdict=NOT_RUN, expected="no GPU here")
        left = self.deadline - time.monotonic()
        if left < 5:
            return self.add(item.title, verdict=NOT_RUN, expected=f"the {BUDGET_S} s are used up")
        ours, problem = self.output(item.command, min(item.seconds, left))
        theirs = None
        if not problem and item.peer:
            theirs, problem = self.output(item.peer, min(item.seconds, self.deadline - time.monotonic()))
        if problem:
            return self.add(item.title, verdict=FAILED, expected=problem)
        if not item.bounds:
            return self.add(item.title, verdict=PASSED)
        for bound in item.bounds:
            self.judge(item.title, bound, ours.get(bound.name), theirs and theirs.get(bound.name))

    def judge(self, title, bound, value, peer):
        ratio = value / peer if value is not None and peer else None
        judged = ratio if bound.is_ratio else value
        # Speeds at a CPU's small sizes say nothing of a GPU.
        if not self.has_gpu and not (bound.on_cpu and judged is not None):
            verdict = NOT_RUN
        else:
            verdict = PASSED if judged is not None and bound.low <= judged <= bound.high else FAILED
        self.add(title, bound.name, value, peer, ratio, str(bound), verdict)

    def output(self, command, seconds):
        """Returns the figures that the command printed, and the problem or ""."""
        values = {"device": "cuda:0" if self.has_gpu else "cpu", "size": "full" if self.has_gpu else "small",
                  "scratch": self.scratch}
        command = [part.format(**values) if part.startswith("{") else part for part in command]
        try:
            done = subprocess.run(command, cwd=HERE, env=self.environment, capture_output=True, text=True,
                                  timeout=seconds, check=False)
        except subprocess.TimeoutExpired:
            return {}, f"took more than {seconds:.0f} s"
        except OSError as error:
            return {}, str(error)
        if done.returncode != 0:
            print(f"--- {' '.join(command)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}", file=sys.stderr)
            return {}, f"exit code {done.returncode}"
        return figures(done.stdout), ""

    def add(self, title, figure="", value=None, peer=None, ratio=None, expected="", verdict=""):
        row = [title, figure, *(f"{v:.4g}" if v is not None else "" for v in (value, peer, ratio)), expected, verdict]
        self.rows.append(row)
        print(f"[{verdict}] " + "  ".join(part for part in row[:-1] if part), flush=True)


def environment_for(torch_root):
    """The variables that let the packed programs find libtorch and CUDA's libraries."""
    libraries = [str(torch_root / "lib"), *glob.glob(str(torch_root.parent / "nvidia/*/lib"))]

    def extend(name, folders):
        return {name: os.pathsep.join([*folders, *filter(None, [os.environ.get(name)])])}

    return {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1",
            **extend("PYTHONPATH", [str(HERE)]), **extend("LD_LIBRARY_PATH", libraries)}


def table(rows):
    lines = ["| item | figure | value | peer | ratio | expected | |", "|---|---|---|---|---|---|---|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--list", action="store_true", help="names the items and runs none")
    if parser.parse_args().list:
        for item in items():
            print(f"{item.title}: {', '.join(f'{b.name} {b}' for b in item.bounds) or 'passes'}")
        return 0
    import torch  # after the arguments: it takes seconds

    if not torch.__version__.startswith("2.11."):
        sys.exit(f"gpu_check needs torch 2.11, and {sys.executable} has {torch.__version__}")
    has_gpu = torch.cuda.is_available()
    started = time.monotonic()
    scratch = str(HERE / "scratch")
    checker = Checker(has_gpu, environment_for(pathlib.Path(torch.__file__).parent), scratch)
    for item in items():
        checker.run(item)
    where = torch.cuda.get_device_name() if has_gpu else "the CPU, small sizes: no GPU"
    print(f"\n{where}, torch {torch.__version__}, {time.monotonic() - started:.0f} s\n\n{table(checker.rows)}")
    failed = sum(row[-1] == FAILED for row in checker.rows)
    print(f"\n{len(checker.rows)} rows, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
