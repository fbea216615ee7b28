"""Goodput of a run that faults strike, by cause: with --restarts, with snapshots in memory, and in plain PyTorch.

    bazel build -c opt //driver:lockstep
    python benchmarks/goodput/goodput.py bazel-bin/driver/lockstep --faults kill=30 --peer

--peer also runs train_peer.py with torchrun, which needs this Python's torch to be the libtorch of the build.

--faults: "all=20" strikes with kill, stop, socket, disk and slow in turn; "kill=30,stop=2" with so many of each. Steps
and ranks are drawn from --seed. The run is first undisturbed. Prints:

  wall       seconds from the start to the end, start-up included
  goodput    undisturbed wall / wall
  detected   from the fault to the first line about it on stderr (a slow rank: never, without --evict-slow)
  restarted  from the fault to the next step that is completed
  again      steps that were done before and are done again, of one fault
"""

import argparse
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).parent
KINDS = ("kill", "stop", "socket", "disk", "slow")


def draw(spec, steps, seed):
    """Faults in rising steps, by start of the run: a slow rank restarts nothing, so its start has another fault."""
    kinds = []
    for part in spec.split(","):
        kind, count = part.split("=")
        kinds += [KINDS[i % len(KINDS)] if kind == "all" else kind for i in range(int(count))]
    chooser = random.Random(seed)
    chooser.shuffle(kinds)
    at = sorted(chooser.sample(range(5, steps - 5), len(kinds)))
    text = ""
    for kind, step in zip(kinds, at):
        text += f"{kind}@{step}@{chooser.randrange(2)}" + ("+" if kind == "slow" else ",")
    return text + "none"


class Run:
    """What one program did: moments of its steps and faults, on the clock that all processes share."""

    def __init__(self, command):
        self.steps, self.faults, self.complaints, self.bits, self.tail = [], [], [], set(), []
        begin = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env={**os.environ, "OMP_NUM_THREADS": "1"})
        reader = threading.Thread(target=self.read_errors, args=(process.stderr,))
        reader.start()
        for line in process.stdout:
            self.tail = self.tail[-30:] + [line]
            if found := re.search(r"\bstep (\d+) (\d+\.\d+)$", line):
                self.steps.append((int(found[1]), float(found[2])))
            elif found := re.search(r"\bfault (\w+) (\d+) (\d+\.\d+)$", line):
                self.faults.append((found[1], float(found[3])))
            elif found := re.search(r"final bits of rank \d+: (.*)", line):
                self.bits.add(found[1])
        code = process.wait()
        reader.join()
        self.wall = time.monotonic() - begin
        if code != 0:
            sys.exit(f"{command[:6]} ended with {code}:\n{''.join(self.tail)}")

    def read_errors(self, stream):
        for line in stream:
            self.tail = self.tail[-30:] + [line]
            if re.search(r"warning|Failed to initialize NumPy|cpu = _conversion|^\s*$", line, re.IGNORECASE):
                continue
            if line.startswith("lockstep: ") or "rror" in line or "ignal" in line:
                self.complaints.append(time.monotonic())

    def of_fault(self, number):
        """Seconds until it was detected and until the next step, and the steps done again."""
        at = self.faults[number][1]
        until = self.faults[number + 1][1] if number + 1 < len(self.faults) else float("inf")
        detected = next((moment - at for moment in self.complaints if at < moment < until), None)
        before = [step for step, moment in self.steps if moment <= at]
        after = [(step, moment) for step, moment in self.steps if moment > at]
        # A rank may complete its step while the other one is struck.
        restart = next((i for i, (step, _) in enumerate(after) if i > 0 and step <= after[i - 1][0]
                        or i == 0 and before and step <= before[-1]), None)
        if restart is None:
            return detected, None, 0
        last = after[restart - 1][0] if restart > 0 else before[-1]
        return detected, after[restart][1] - at, last - after[restart][0] + 1


def show(name, undisturbed, run):
    bits = "same bits" if run.bits == undisturbed.bits and len(run.bits) == 1 else "OTHER BITS"
    print(f"{name:22} undisturbed {undisturbed.wall:7.1f} s   wall {run.wall:7.1f} s   "
          f"{run.wall / undisturbed.wall:.2f} times   goodput {100 * undisturbed.wall / run.wall:.0f} %   {bits}")
    for kind in KINDS:
        found = [run.of_fault(i) for i, fault in enumerate(run.faults) if fault[0] == kind]
        if not found:
            continue
        parts = []
        for what, values in (("detected", [f[0] for f in found]), ("restarted", [f[1] for f in found])):
            values = [value for value in values if value is not None]
            parts.append(f"{what} {statistics.median(values):6.2f} s (most {max(values):.2f})" if values
                         else f"{what} never")
        again = sum(f[2] for f in found) / len(found)
        print(f"  {kind:8} {len(found):3}   {'   '.join(parts)}   {again:.1f} steps again")
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    parser.add_argument("lockstep")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--faults", default="kill=30")
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--timeout", type=int, default=5)
    parser.add_argument("--memory-every", type=int, default=2)
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--only", default="", help="of the programs, those with this in their names")
    parser.add_argument("--seed", type=int, default=39)
    o = parser.parse_args()
    faults = draw(o.faults, o.steps, o.seed)
    restarts = str(2 * faults.count(",") + 1)
    with tempfile.TemporaryDirectory() as folder:

        def ours(name, given, extra):
            return Run([o.lockstep, "--nproc", "2", "--restarts", restarts, "--timeout", str(o.timeout), "--run-dir",
                        f"{folder}/{name}", str(HERE / "train.lua"), "--set", f"faults={given}", "--set",
                        f"steps={o.steps}", "--set", f"every={o.every}", "--set", f"width={o.width}", "--set",
                        f"rows={o.rows}", *extra])

        def torchrun(name, given, extra):
            os.makedirs(f"{folder}/{name}")
            return Run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                        "--max-restarts", restarts, str(HERE / "train_peer.py"), "--folder", f"{folder}/{name}",
                        "--faults", given, "--steps", str(o.steps), "--every", str(o.every), "--width", str(o.width),
                        "--rows", str(o.rows), "--timeout", str(o.timeout), *extra])

        memory = ["--set", f"memory_every={o.memory_every}"]
        programs = [("lockstep, async", ours, []), ("lockstep, memory", ours, memory)]
        if o.peer:
            programs.append(("torchrun, dcp.async", torchrun, []))
        if o.only:
            programs = [program for program in programs if o.only in program[0]]
        print(f"{o.steps} steps, saved every {o.every}; {faults}", flush=True)
        for name, run, extra in programs:
            undisturbed = run(f"{name} undisturbed", "none", extra)
            gaps = [b[1] - a[1] for a, b in zip(undisturbed.steps, undisturbed.steps[1:])]
            print(f"{name:22} {1000 * statistics.median(gaps):.1f} ms a step", flush=True)
            show(name, undisturbed, run(f"{name} disturbed", faults, extra))


if __name__ == "__main__":
    main()
