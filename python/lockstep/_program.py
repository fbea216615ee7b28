"""Starts the program `lockstep` of the wheel with the torch of this Python. Private to this package."""

import importlib.util
import os
import pathlib
import runpy
import sys

_PROGRAM = pathlib.Path(__file__).parent / "_program"


def main() -> None:
    """Replaces this process by the program. LIBTORCH, or the torch that this Python would import, is its libtorch."""
    environment = dict(os.environ)
    if not environment.get("LIBTORCH"):
        # Finding the package does not import it, which would take seconds.
        found = importlib.util.find_spec("torch")
        if found and found.submodule_search_locations:
            environment["LIBTORCH"] = found.submodule_search_locations[0]
        environment.setdefault("PYTHON", sys.executable)
    program = str(_PROGRAM / "bin" / "lockstep")
    os.execve(program, [program, *sys.argv[1:]], environment)


def to_wandb() -> None:
    """Runs tools/to_wandb."""
    runpy.run_path(str(_PROGRAM / "tools" / "to_wandb"), run_name="__main__")
