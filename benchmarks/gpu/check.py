"""Decides whether Lockstep trains as fast as torch.compile on this machine's GPU, and whether its results are right.

    python3 check.py          everything, the most important first, in at most 8 minutes
    python3 check.py --cpu    the same code in a tiny form, without a GPU: speeds say nothing then
    python3 check.py --list   the items, without running them

Needs one GPU, and a Python with the torch that the archive is for: 2.11, or the one that it was packed with. Each row is
printed when it is known, with what to do next where it misses. Ctrl-C prints the table so far.
"""

import argparse
import glob
import json
import os
import pathlib
import sys
import time

import traces
from items import COMPILED, EAGER, items
from process import Interrupted, Process, stop_at_signals

HERE = pathlib.Path(__file__).absolute().parent
OURS = "lockstep"
FAILED, MISSED, NOT_RUN, PASSED, INFO = "FAILED", "MISS", "not run", "pass", "info"
# Dense bfloat16 TFLOP/s of data sheets, for MFU. The first name that the device's name holds counts.
PEAKS = {"H100 PCIe": 756, "H100 NVL": 835, "H100": 989, "H200 NVL": 835, "H200": 989, "GH200": 989, "B200": 2250, "A100": 312, "L40S": 362,
         "RTX 4090": 165, "RTX 5090": 210}  # fmt: skip


class Checker:
    """Runs items, and keeps the rows of the table."""

    def __init__(self, options, device, gib):
        self.options, self.device, self.gib, self.is_tiny = options, device, gib, options.cpu
        self.place = ("cpu", "tiny") if options.cpu else ("cuda:0", "full")
        self.environment = environment(options.cpu)
        self.deadline = time.monotonic() + options.budget
        self.rows = []

    def left(self):
        return self.deadline - time.monotonic()

    def is_late(self):
        """Whether no program can give a figure any more."""
        return self.left() < (0 if self.is_tiny else 10)

    def run(self, item):
        if item.is_test and self.is_tiny:
            return self.add(item.title, expected="needs a GPU", verdict=NOT_RUN)
        if item.gib > self.gib and not self.is_tiny:
            return self.add(item.title, expected=f"needs {item.gib} GiB", verdict=NOT_RUN)
        if self.is_late():
            return self.add(item.title, expected="the time is used up", verdict=NOT_RUN)
        print(f"{item.title}, {self.left():.0f} s left", flush=True)
        found = {OURS: self.measure(item, OURS)}
        if found[OURS].problem or item.is_test:
            is_cut = found[OURS].problem and self.is_late()
            verdict = NOT_RUN if is_cut else FAILED if found[OURS].problem else PASSED
            self.add(item.title, expected="the time is used up" if is_cut else found[OURS].problem, verdict=verdict,
                     then="the lines above are the end of its output")  # fmt: skip
        waiting = [row for row in item.rows if row.is_ratio]
        for row in item.rows:
            if not row.is_ratio:
                self.judge(item, row, found)
        for who in item.peers if found[OURS].figures else ():
            if who == COMPILED and self.is_tiny and not self.options.compile:
                continue
            if who != item.peers[0] and not (waiting or item.has_trace):
                break  # judged already, and the time is short
            if self.is_late():
                break
            found[who] = self.measure(item, who)
            for row in [row for row in waiting if row.figure in found[who].figures]:
                waiting.remove(row)
                self.judge(item, row, found, who)
            for row in self.rows:  # judged before this peer answered
                if row["item"] == item.title and row["figure"] in found[who].figures:
                    row["values"][who] = found[who].figures[row["figure"]]
        for row in waiting:
            self.judge(item, row, found)
        if item.has_trace:
            self.explain(item, found)

    def measure(self, item, who):
        trace = str(self.trace_of(item, who)) if item.has_trace else ""
        end = min(self.deadline, time.monotonic() + item.seconds)
        arguments = item.arguments
        if who != OURS:
            import peers

            place = peers.Place(*self.place)
            process = Process(lambda: getattr(peers, item.peer)(place, who == COMPILED, trace, *arguments), end, label=who)
        else:
            if item.is_test:
                script, arguments = "run_test.lua", [str(HERE / item.program)]
            else:
                script, arguments = item.program, [*self.place, trace, *arguments]
            if item.program == "families.lua":
                arguments.insert(3, str(self.options.models))
            command = [str(self.options.program), "--nproc", "1", "--run-dir", f"{self.options.scratch}/run-{time.time_ns()}",
                       str(HERE / script), "--", *arguments]  # fmt: skip
            if not item.program.endswith(".lua"):
                command = [str(HERE / "tests" / item.program), "--gtest_brief=1"]
            process = Process(command, end, self.environment, HERE, who)
        if process.problem:
            print(f"    {who}: {process.problem}", *process.lines[-12:], sep="\n    | ", flush=True)
        return process

    def trace_of(self, item, who):
        return self.options.scratch / f"{item.arguments[0]}-{who}.json"

    def judge(self, item, row, found, peer=None):
        values = {who: process.figures.get(row.figure) for who, process in found.items()}
        ours, theirs = values[OURS], values.get(peer)
        ratio = ours / theirs if row.is_ratio and ours is not None and theirs else None
        judged, low, high, expected = ratio if row.is_ratio else ours, row.low, row.high, str(row)
        if row.is_ratio and self.is_tiny:
            low, high, expected = 1 - 1e-5, 1 + 1e-5, "1 within 1e-5"
        if ours is None and found[OURS].problem:
            verdict, expected = NOT_RUN, "the time is used up" if self.is_late() else "the program failed"
        elif self.is_tiny and not row.is_result:
            verdict, expected = NOT_RUN, "needs a GPU"
        elif judged is None:
            verdict, expected = FAILED, "no peer has this figure" if row.is_ratio else "no such figure"
            if self.is_late():
                verdict, expected = NOT_RUN, "the time is used up"
        elif not (row.on_gpu or self.is_tiny):
            verdict, expected = INFO, ""
        else:
            verdict = PASSED if low <= judged <= high else MISSED
            if peer and peer != item.peers[0] and not self.is_tiny:
                expected += f" of {peer}, as {item.peers[0]} failed"
        self.add(item.title, row.figure, values, ratio, expected, verdict, row.next)

    def explain(self, item, found):
        """MFU and time by kernel, which nothing judges."""
        peak = next((tflops for name, tflops in PEAKS.items() if name in self.device), None)
        if peak or self.is_tiny:
            flops = flops_per_token(item.arguments[0], self.is_tiny) / (1e12 * (peak or 1))
            self.add(item.title, "MFU", {who: process.figures["tokens/s"] * flops for who, process in found.items()
                                         if "tokens/s" in process.figures},
                     expected=f"of {peak or 1} TFLOP/s", verdict=INFO)  # fmt: skip
        paths = {who: self.trace_of(item, who) for who in found}
        paths[OURS] = paths[OURS].with_name(f"{paths[OURS].stem}-rank0.json")
        try:
            print("    " + "\n    ".join(traces.summary(paths, not self.is_tiny)), flush=True)
        except (OSError, ValueError, KeyError) as error:
            print(f"    no time by kernel: {error!r}", flush=True)

    def add(self, item, figure="", values=None, ratio=None, expected="", verdict="", then=""):
        values = {who: value for who, value in (values or {}).items() if value is not None}
        self.rows.append({"item": item, "figure": figure, "values": values, "ratio": f"{ratio:.3f}" if ratio is not None else "",
                          "expected": expected, "verdict": verdict})  # fmt: skip
        told = [f"{who} {number(value)}" for who, value in values.items()] + ([f"ratio {ratio:.3f}"] if ratio else [])
        told = ", ".join(told)
        print(f"[{verdict}]", ": ".join(filter(None, (item, figure, told))), f"({expected})" if expected else "", flush=True)
        if verdict in (MISSED, FAILED) and then:
            print(f"    next: {then}", flush=True)

    def table(self):
        lines = ["| item | figure | lockstep | torch.compile | eager | ratio | expected | |", "|---|---|---|---|---|---|---|---|"]
        for row in self.rows:
            cells = [number(row["values"][who]) if who in row["values"] else "" for who in (OURS, COMPILED, EAGER)]
            cells = [row["item"], row["figure"], *cells, row["ratio"], row["expected"], row["verdict"]]
            lines.append(f"| {' | '.join(cells)} |")
        return "\n".join(lines)


def number(value):
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def flops_per_token(name, is_tiny):
    """Forward and backward of matrix products and of causal attention."""
    shape = json.loads((HERE / "shapes.json").read_text())["tiny" if is_tiny else name]
    c = shape["model"]
    heads = c["num_attention_heads"] * c["head_dim"]
    layer = c["hidden_size"] * (2 * heads + 2 * c["num_key_value_heads"] * c["head_dim"] + 3 * c["intermediate_size"])
    return 6 * (c["num_hidden_layers"] * (layer + heads * shape["tokens"]) + c["hidden_size"] * c["vocab_size"])


def environment(is_tiny):
    """The variables that let our programs find libtorch and CUDA's libraries."""
    import torch

    root = pathlib.Path(os.environ.get("LIBTORCH") or pathlib.Path(torch.__file__).parent)
    root = root / "torch" if (root / "torch" / "lib").is_dir() else root
    libraries = [str(root / "lib"), *glob.glob(str(root.parent / "nvidia/*/lib"))]
    lists = {"LD_LIBRARY_PATH": libraries, "PYTHONPATH": [str(root.parent)]}
    found = {name: os.pathsep.join(filter(None, [*folders, os.environ.get(name)])) for name, folders in lists.items()}
    return {**os.environ, **found, "PYTHON": sys.executable, **({"OMP_NUM_THREADS": "1"} if is_tiny else {})}


def families_in(folder):
    """The folders that have transformers' logits, count of tokens and gradients."""
    for path in sorted(folder.glob("*/answers.safetensors")):
        with path.open("rb") as file:
            names = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        if {"logits", "count"} <= names.keys() and any(name.startswith("gradient.") for name in names):
            yield path.parent.name


def read_options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--list", action="store_true", help="names the items and runs none")
    parser.add_argument("--cpu", action="store_true", help="the tiny form, on the CPU")
    parser.add_argument("--compile", action="store_true", help="torch.compile on the CPU, too, which takes minutes")
    parser.add_argument("--only", default="", help="items whose title has this text")
    parser.add_argument("--budget", type=float, default=480, help="seconds for everything")
    for name, default in (("program", "lockstep/bin/lockstep"), ("models", "models"), ("scratch", "scratch")):
        parser.add_argument(f"--{name}", default=HERE / default, type=lambda path: pathlib.Path(path).absolute())
    return parser.parse_args()


def start(options):
    """Returns a checker for this machine, or ends with what is missing."""
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")  # Lockstep's default, for the peers
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)  # of a job that this check runs in: each of its programs is a run of its own
    import torch  # takes seconds; children are forked with it

    import peers

    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 11):
        sys.exit(f"check.py needs torch 2.11 or newer, and {sys.executable} has {torch.__version__}")
    options.scratch.mkdir(parents=True, exist_ok=True)
    facts = Process(peers.facts, time.monotonic() + 60)  # in a child, because no fork may follow a use of CUDA
    device = next((line for line in facts.lines if line.startswith("device ")), "")
    if not options.cpu and not device:
        sys.exit("torch finds no GPU; --cpu tries everything in a tiny form\n" + "\n".join(facts.lines[-5:]))
    checker = Checker(options, device, facts.figures.get("GiB", 0))
    version = Process([str(options.program), "--version"], time.monotonic() + 30, checker.environment)
    said = " ".join(version.lines).strip()
    if version.problem or "does not fit" in said:
        sys.exit(f"{said} {version.problem}\nSet LIBTORCH to a torch that fits. Or pack for this one, where FOLDER is the target "
                 "of pip install --target FOLDER: LIBTORCH=FOLDER ./gpu_check")  # fmt: skip
    print(f"{device or 'the CPU, tiny'}, torch {torch.__version__}, Python {sys.version.split()[0]}; {said}", flush=True)
    return checker


def main():
    options, began, ended = read_options(), time.monotonic(), ""
    chosen = [item for item in items(tuple(families_in(options.models))) if options.only in item.title]
    if options.list:
        for item in chosen:
            print(f"{item.title}:", "; ".join(f"{row.figure} {row}" for row in item.rows) or "passes")
        return 0
    checker = start(options)
    stop_at_signals()
    try:
        for item in chosen:
            checker.run(item)
    except Interrupted as error:
        ended = f", ended by {error}"
    verdicts = [row["verdict"] for row in checker.rows]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in (PASSED, MISSED, FAILED, NOT_RUN))
    print(f"\n{checker.table()}\n\n{time.monotonic() - began:.0f} s{ended}: {counts}", flush=True)
    return 1 if ended or {MISSED, FAILED} & set(verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
