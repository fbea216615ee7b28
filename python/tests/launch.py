"""Runs a program on several ranks with the real torchrun, for tests."""

import os
import pathlib
import re
import subprocess
import sys

FOLDER = pathlib.Path(__file__).parent


def torchrun(ranks, program, *arguments, timeout=240):
    """Returns the exit code of torchrun, the codes of ranks that failed, and what all of them wrote."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={ranks}",
        str(FOLDER / "rank.py"),
        str(FOLDER / program),
        *arguments,
    ]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    codes = [int(code) for code in re.findall(r"exitcode\s*: (-?\d+)", done.stdout)]
    return done.returncode, codes, done.stdout
