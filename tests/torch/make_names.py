"""Writes names.json: the names in torch.nn, torch.nn.Module, torch.nn.init and torch.optim.

    pip install torch==2.11.0
    python tests/torch/make_names.py tests/torch/names.json

docs/pages_test.lua holds by it that docs/pytorch.md lists what Lockstep lacks.
"""

import json
import sys

import torch
from torch import nn

assert torch.__version__.startswith("2.11.0"), torch.__version__


def classes(module, base):
    return [name for name in dir(module) if isinstance(getattr(module, name), type)
            and issubclass(getattr(module, name), base)]


def main(path):
    names = {
        "nn": classes(nn, nn.Module),
        "nn.Module": [name for name in dir(nn.Module) if not name.startswith("_")],
        "nn.init": [name for name in dir(nn.init) if name.endswith("_") and not name.startswith("_")],
        "optim": classes(torch.optim, torch.optim.Optimizer),
    }
    with open(path, "w") as file:
        json.dump(names, file, indent=1, sort_keys=True)
        file.write("\n")


if __name__ == "__main__":
    main(sys.argv[1])
