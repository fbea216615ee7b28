"""Lockstep's libraries for trainers in Python.

    import lockstep

    plan = lockstep.batching.plan(tokens, kinds, ranks=8, seq_len=4096)   # micro-batches of one kind on all ranks
    for batch, real in lockstep.sharding.lockstep(loader): ...            # all ranks leave the loop at the same step
    lockstep.watch(timeout=120)                                           # names the ranks and lines of a hang

The modules are loaded when they are first used: batching and mimo need no torch; sharding, state, watch and nn do.
"""

import importlib
from typing import Any

from lockstep._core import version as __version__

_MODULES = ("batching", "mimo", "nn", "sharding", "state")
_FUNCTIONS = {"watch": "_watch"}  # by name, the module that has it

__all__ = ["__version__", *_MODULES, *_FUNCTIONS]


def __getattr__(name: str) -> Any:
    try:
        if name in _MODULES:
            return importlib.import_module(f"lockstep.{name}")
        if name in _FUNCTIONS:
            return getattr(importlib.import_module(f"lockstep.{_FUNCTIONS[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name == "torch":
            raise ImportError(
                f"lockstep.{name} needs torch, which this Python does not have: pip install torch"
            ) from error
        raise
    raise AttributeError(f"module 'lockstep' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
