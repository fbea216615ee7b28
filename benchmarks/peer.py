"""A benchmark in Lua and the same in Python, in turns: what foo_benchmark.py shares with its like."""

import pathlib
import subprocess
import sys

import torch


def lua_times(script, program):
    output = subprocess.run([program, "--nproc", "1", str(script)], check=True, capture_output=True, text=True).stdout
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in output.splitlines())}


def take_turns(file, turns, python_times):
    """Runs the .lua file next to `file` and `python_times()`, each a name -> microseconds, `turns` times.

    The program is the command line's one argument. Returns the least times: {(name, "lua" or "python"): microseconds}.
    """
    file = pathlib.Path(file)
    if len(sys.argv) != 2:
        sys.exit(f"usage: python {file.name} PROGRAM, the built //driver:lockstep")
    torch.set_num_threads(1)
    best = {}
    for _ in range(turns):
        for which, times in (("lua", lua_times(file.with_suffix(".lua"), sys.argv[1])), ("python", python_times())):
            for name, value in times.items():
                key = (name, which)
                best[key] = min(best.get(key, float("inf")), value)
    return best
