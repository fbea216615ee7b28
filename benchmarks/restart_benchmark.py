"""Time from a SIGKILL of one of two ranks to the next step, by --restarts and by torchrun --max-restarts.

    python benchmarks/restart_benchmark.py bazel-bin/driver/lockstep [KILLS] [--torchrun]

Prints the median and the maximum of: until the launcher has reported the death, until the script runs again, and until
its first step is done. All times are of the clock that the machine's processes share.
"""

import argparse
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time

SCRIPT = pathlib.Path(__file__).with_suffix(".lua")


def measure(command, kills, says_death):
    """Runs the command; returns {"report": [...], "script": [...], "step": [...]}, seconds since each kill."""
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                           env={**os.environ, "OMP_NUM_THREADS": "1"})
    reports = []

    def read_errors():
        for line in run.stderr:
            if says_death and says_death in line:
                reports.append(time.monotonic())

    reader = threading.Thread(target=read_errors)
    reader.start()
    moments = {"begin": [], "step": [], "kill": []}
    for line in run.stdout:
        found = re.search(r"(begin|step|kill) ([0-9]+\.[0-9]+)$", line.strip())
        if found:
            moments[found[1]].append(float(found[2]))
    code = run.wait()
    reader.join()
    if code != 0 or len(moments["kill"]) != kills or len(moments["step"]) != kills + 1:
        sys.exit(f"{command[0]}: ended with {code} after {len(moments['kill'])} kills")
    since = {"script": moments["begin"][1:], "step": moments["step"][1:]}
    if says_death:
        since["report"] = reports
    return {what: [at - kill for at, kill in zip(times, moments["kill"])] for what, times in since.items()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("lockstep")
    parser.add_argument("kills", nargs="?", type=int, default=10)
    parser.add_argument("--torchrun", action="store_true", help="also by the torchrun of this Python's torch")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        def program(name):
            return [str(SCRIPT), "--run-dir", f"{folder}/{name}", "--set", f"kills={options.kills}"]
        runs = {"--restarts": ([options.lockstep, "--nproc", "2", "--restarts", str(options.kills), *program("ours")],
                               "was killed by SIGKILL")}
        if options.torchrun:
            runs["torchrun"] = ([sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python",
                                 "--nproc-per-node", "2", "--max-restarts", str(options.kills), os.path.abspath(options.lockstep), *program("torchrun")],
                                None)
        for name, (command, says_death) in runs.items():
            found = measure(command, options.kills, says_death)
            for what in ("report", "script", "step"):
                if what in found:
                    times = found[what]
                    print(f"{name:12} {what:8} median {statistics.median(times):.3f} s  most {max(times):.3f} s")


if __name__ == "__main__":
    main()
