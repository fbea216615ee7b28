"""Goodput of a run that faults strike, by cause: with --restarts, with snapshots in memory, and in plain PyTorch.

    bazel build -c opt //driver:lockstep
    python benchmarks/goodput/goodput.py bazel-bin/driver/lockstep --faults kill=30 --peer

--peer also runs train_peer.py with torchrun, which needs this Python's torch to be the libtorch of the build.

--faults: "all=20" strikes with kill, stop, socket, disk and slow in turn; "kill=30,stop=2" with so many of each. Steps
and ranks are drawn from --seed. The run is first undisturbed. Prints:

  wall       seconds from the start to the end, start-up included
  cpu        seconds of a core that the program and its ranks took: does not depend on what else the machine does
  goodput    undisturbed wall / wall
  detected   from the fault to the first line about it on stderr (a slow rank: never, without --evict-slow)
  restarted  from the fault to the next step that is completed
  again      steps that were done before and are done again, of one fault

and, of one restart, the median milliseconds from one moment to the next: the fault, the line that says that the ranks
are started again, the first line of the script, the model and run:state, the end of run:resume, the first step's end.

Then what is left behind: processes, files of /dev/shm, keepers' sockets, temporary files, and parts of states. And what
the launcher holds after the first second and before the end: open files, children that have ended, memory. A soak:

    python benchmarks/goodput/goodput.py bazel-bin/driver/lockstep --only memory --steps 2400 --faults all=200 --width 32 \
      --rows 16 --every 4 --timeout 4
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
MARK = "GOODPUT_FOLDER"  # in the environment of all that a run starts
KINDS = ("kill", "stop", "socket", "disk", "slow")


def draw(spec, steps, every, seed):
    """Faults in rising steps, by start of the run: a slow rank restarts nothing, so its start has another fault."""
    kinds = []
    for part in spec.split(","):
        kind, count = part.split("=")
        kinds += [KINDS[i % len(KINDS)] if kind == "all" else kind for i in range(int(count))]
    chooser = random.Random(seed)
    chooser.shuffle(kinds)
    if "disk" in kinds:  # fails at the next save, maybe in a later step than the next fault's: each has a part for itself
        part = steps // len(kinds)
        if part < every + 4:
            sys.exit(f"{len(kinds)} faults need at least {len(kinds) * (every + 4)} --steps, a state every {every}")
        at = [part * i + chooser.randrange(part - every - 3) for i in range(len(kinds))]
    else:
        at = sorted(chooser.sample(range(5, steps - 5), len(kinds)))
    text = ""
    for kind, step in zip(kinds, at):
        text += f"{kind}@{step}@{chooser.randrange(2)}" + ("+" if kind == "slow" else ",")
    return text + "none"


def has_mark(pid, folder):
    try:
        return f"{MARK}={folder}".encode() in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


class Run:
    """What one program did: moments of its steps and faults, on the clock that all processes share."""

    def __init__(self, command, folder):
        self.steps, self.faults, self.complaints, self.bits, self.tail = [], [], [], set(), []
        self.phases, self.restarts = {}, []
        self.pids, self.held = [], []
        begin = time.monotonic()
        temporary = pathlib.Path(f"{folder}-temporary")
        temporary.mkdir()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={
            **os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(temporary), MARK: folder})
        threading.Thread(target=self.watch, args=(process.pid,), daemon=True).start()
        reader = threading.Thread(target=self.read_errors, args=(process.stderr,))
        reader.start()
        for line in process.stdout:
            self.tail = self.tail[-30:] + [line]
            if found := re.search(r"\bstep (\d+) of start (\d+) (\d+\.\d+)$", line):
                self.steps.append((int(found[1]), int(found[2]), float(found[3])))
            elif found := re.search(r"\bfault (\w+) \d+ of start (\d+) (\d+\.\d+)$", line):
                self.faults.append((found[1], int(found[2]), float(found[3])))
            elif found := re.search(r"\bphase (\w+) 0 of start (\d+) (\d+\.\d+)$", line):
                self.phases[int(found[2]), found[1]] = float(found[3])
            elif found := re.search(r"final bits of rank \d+: (.*)", line):
                self.bits.add(found[1])
            elif found := re.search(r"\bI am \d+ pid (\d+)$", line):
                self.pids.append(found[1])
        _, status, usage = os.wait4(process.pid, 0)
        code = process.returncode = os.waitstatus_to_exitcode(status)
        self.cpu = usage.ru_utime + usage.ru_stime
        reader.join()
        self.wall = time.monotonic() - begin
        if code != 0:
            sys.exit(f"{command[:6]} ended with {code}:\n{''.join(self.tail)}")
        self.left = self.left_behind(pathlib.Path(folder), temporary)

    def watch(self, pid):
        """Notes each second how many files the launcher has open, its children that have ended, and its MiB."""
        while os.path.exists(f"/proc/{pid}"):
            time.sleep(1)
            try:
                children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
                zombies = sum(") Z " in pathlib.Path(f"/proc/{child}/stat").read_text() for child in children)
                pages = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])
                self.held.append((len(os.listdir(f"/proc/{pid}/fd")), zombies, pages // 256))
            except OSError:
                pass  # it has ended, or a child has: the next look is a second later

    def left_behind(self, folder, temporary):
        """What is there two seconds after the end, by kind: a keeper ends by itself."""
        found = {}
        for wait in (0, 0.1, 0.5, 1.4):
            time.sleep(wait)
            identity = folder / "keep.id"
            name = "lockstep-keep-" + identity.read_text().strip() if identity.exists() else "lockstep-keep-none"
            names = os.listdir("/dev/shm")
            found = {
                "processes": [p for p in os.listdir("/proc") if p.isdigit() and has_mark(p, str(folder))],
                "shared memory": [n for n in names if "lockstep" in n or set(re.split(r"\D+", n)) & set(self.pids)],
                "sockets": [line for line in pathlib.Path("/proc/net/unix").read_text().split("\n") if name in line],
                "temporary files": [str(path) for path in temporary.rglob("*")],
                "parts of states": [str(path) for path in folder.rglob("*.lockstep-part")],
            }
            if not any(found.values()):
                break
        return found

    def read_errors(self, stream):
        for line in stream:
            self.tail = self.tail[-30:] + [line]
            if re.search(r"warning|Failed to initialize NumPy|cpu = _conversion|^\s*$", line, re.IGNORECASE):
                continue
            if line.startswith("lockstep: ") or "rror" in line or "ignal" in line:
                self.complaints.append(time.monotonic())
            if re.search(r"; restart \d+ of ", line):
                self.restarts.append(time.monotonic())

    def breakdown(self, kind):
        """Medians in milliseconds from each moment of a restart to the next; empty without phases (torchrun)."""
        rows = []
        for what, start, at in self.faults:
            first = next((moment for _, of, moment in self.steps if of == start + 1), None)
            if what == kind != "slow" and (start + 1, "script") in self.phases and first is not None and start < len(self.restarts):
                moments = [at, self.restarts[start]]
                moments += [self.phases[start + 1, name] for name in ("script", "state", "resumed")] + [first]
                rows.append([1000 * (b - a) for a, b in zip(moments, moments[1:])])
        return [statistics.median(column) for column in zip(*rows)]

    def of_fault(self, number):
        """Seconds until it was detected and until the next step, and the steps done again."""
        _, start, at = self.faults[number]
        until = self.faults[number + 1][2] if number + 1 < len(self.faults) else float("inf")
        detected = next((moment - at for moment in self.complaints if at < moment < until), None)
        next_step = next(((step, moment) for step, of, moment in self.steps if of == start + 1), None)
        if next_step is None or self.faults[number][0] == "slow":  # it is slow until the next fault
            return detected, None, 0
        last = max((step for step, of, _ in self.steps if of <= start), default=-1)
        return detected, next_step[1] - at, max(0, last - next_step[0] + 1)


def show(name, undisturbed, run):
    bits = "same bits" if run.bits == undisturbed.bits and len(run.bits) == 1 else "OTHER BITS"
    print(f"{name:22} undisturbed {undisturbed.wall:7.1f} s   wall {run.wall:7.1f} s   "
          f"{run.wall / undisturbed.wall:.2f} times   goodput {100 * undisturbed.wall / run.wall:.0f} %   {bits}")
    print(f"{'':22} undisturbed {undisturbed.cpu:7.1f} s   cpu  {run.cpu:7.1f} s   {run.cpu / undisturbed.cpu:.2f} times")
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
        if parts := run.breakdown(kind):
            print("               ended {:.0f} ms, started {:.0f}, state {:.0f}, resumed {:.0f}, step {:.0f}".format(*parts))
    left = ", ".join(f"{len(what)} {kind}" for kind, what in run.left.items())
    print(f"  left behind: {left}")
    for what in run.left.values():
        for one in what[:5]:
            print("   ", one)
    if run.held:
        first, last = run.held[0], run.held[-1]
        print(f"  the launcher: {first[0]} to {last[0]} open files, {first[1]} to {last[1]} ended children, "
              f"{first[2]} to {last[2]} MiB")
    print(f"  {len(run.faults)} faults struck, {len(run.restarts)} restarts", flush=True)


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
    faults = draw(o.faults, o.steps, o.every, o.seed)
    restarts = str(2 * faults.count(",") + 1)
    with tempfile.TemporaryDirectory() as folder:

        def ours(name, given, extra):
            return Run([o.lockstep, "--nproc", "2", "--restarts", restarts, "--timeout", str(o.timeout), "--run-dir",
                        f"{folder}/{name}", str(HERE / "train.lua"), "--set", f"faults={given}", "--set",
                        f"steps={o.steps}", "--set", f"every={o.every}", "--set", f"width={o.width}", "--set",
                        f"rows={o.rows}", *extra], f"{folder}/{name}")

        def torchrun(name, given, extra):
            os.makedirs(f"{folder}/{name}")
            return Run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                        "--max-restarts", restarts, str(HERE / "train_peer.py"), "--folder", f"{folder}/{name}",
                        "--faults", given, "--steps", str(o.steps), "--every", str(o.every), "--width", str(o.width),
                        "--rows", str(o.rows), "--timeout", str(o.timeout), *extra],
                       f"{folder}/{name}")

        memory = ["--set", f"memory_every={o.memory_every}"]
        programs = [("lockstep, async", ours, []), ("lockstep, memory", ours, memory)]
        if o.peer:
            programs.append(("torchrun, dcp.async", torchrun, []))
        if o.only:
            programs = [program for program in programs if o.only in program[0]]
        print(f"{o.steps} steps, saved every {o.every}; {faults}", flush=True)
        leaves = []
        for name, run, extra in programs:
            undisturbed = run(f"{name} undisturbed", "none", extra)
            gaps = [b[2] - a[2] for a, b in zip(undisturbed.steps, undisturbed.steps[1:])]
            print(f"{name:22} {1000 * statistics.median(gaps):.1f} ms a step", flush=True)
            disturbed = run(f"{name} disturbed", faults, extra)
            show(name, undisturbed, disturbed)
            leaves += [name] if run is ours and any(disturbed.left.values()) else []
        if leaves:
            sys.exit(f"left something behind: {', '.join(leaves)}")


if __name__ == "__main__":
    main()
