"""Writes sequence_numbers.safetensors: what PyTorch's recurrent layers and transformers compute, for tests in Lua.

    pip install torch==2.11.0 numpy safetensors==0.8.0
    python tests/torch/make_sequence_numbers.py tests/torch/sequence_numbers.safetensors

The tests are recurrent_test.lua and transformer_test.lua in driver/lualib/lockstep/nn. Cases are random; the file's
metadata has them as JSON. Each begins with torch.manual_seed, so that first values and inputs need not be stored: the
same calls in Lua draw the same numbers.
"""

import json
import random
import sys

import safetensors.torch
import torch
from torch import nn

assert torch.__version__.startswith("2.11.0"), torch.__version__
torch.set_num_threads(1)
RECURRENT_CASES, TRANSFORMER_CASES = 40, 60
# Seeds of the state and of dropout, after the case's own.
STATE_SEED, FORWARD_SEED = 1000, 2000


def weighted(tensor):
    return (tensor * torch.arange(tensor.numel(), dtype=tensor.dtype).reshape(tensor.shape).cos()).sum()


def keep(numbers, name, module, inputs, outputs):
    """Stores results, gradients of inputs, and of each parameter a sum of its values and one of its gradient."""
    sum(weighted(y) for y in outputs).backward()
    for i, y in enumerate(outputs):
        numbers[f"{name}.y{i}"] = y.detach()
    for i, x in enumerate(inputs):
        numbers[f"{name}.x{i}_grad"] = x.grad
    for key, p in module.named_parameters():
        grad = torch.zeros_like(p) if p.grad is None else p.grad
        numbers[f"{name}.{key}"] = torch.stack([weighted(p.detach()), weighted(grad)])


def recurrent(numbers, seed):
    choose = random.Random(seed)
    kind = choose.choice(["LSTM", "LSTM", "GRU", "RNN"])
    hidden = choose.randint(2, 4)
    options = {"num_layers": choose.randint(1, 3), "bias": choose.random() < 0.7,
               "batch_first": choose.random() < 0.5, "bidirectional": choose.random() < 0.5}
    options["dropout"] = choose.choice([0, 0.4]) if options["num_layers"] > 1 else 0
    if kind == "LSTM" and choose.random() < 0.5:
        options["proj_size"] = choose.randint(1, hidden - 1)
    if kind == "RNN":
        options["nonlinearity"] = choose.choice(["tanh", "relu"])
    case = {"kind": kind, "input_size": choose.randint(1, 4), "hidden_size": hidden, "options": options,
            "train": choose.random() < 0.7, "state": choose.random() < 0.5, "seed": seed}
    layout = choose.choice(["batch", "batch", "single", "packed", "packed"])
    time, batch = choose.randint(1, 5), choose.randint(1, 3)
    if layout == "packed":
        case["lengths"] = [choose.randint(1, time) for _ in range(batch)]
        case["lengths"][choose.randrange(batch)] = time
        case["enforce_sorted"] = choose.random() < 0.4
        if case["enforce_sorted"]:
            case["lengths"].sort(reverse=True)
    sizes = [time] if layout == "single" else [batch, time] if options["batch_first"] else [time, batch]
    case["x"] = [*sizes, case["input_size"]]
    rows = options["num_layers"] * (2 if options["bidirectional"] else 1)
    middle = [] if layout == "single" else [batch]
    case["states"] = [[rows, *middle, options.get("proj_size", hidden)]]
    if kind == "LSTM":
        case["states"].append([rows, *middle, hidden])

    torch.manual_seed(seed)
    module = getattr(nn, kind)(case["input_size"], hidden, **options).train(case["train"])
    x = torch.randn(case["x"]).requires_grad_()
    torch.manual_seed(STATE_SEED + seed)
    states = [torch.randn(size).requires_grad_() for size in case["states"]] if case["state"] else []
    state = None if not states else states[0] if kind != "LSTM" else tuple(states)
    torch.manual_seed(FORWARD_SEED + seed)
    if layout == "packed":
        order = {"batch_first": options["batch_first"]}
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor(case["lengths"]),
                                                   enforce_sorted=case["enforce_sorted"], **order)
        y, last = module(packed, state)
        y, lengths = nn.utils.rnn.pad_packed_sequence(y, padding_value=0.5, **order)
        assert lengths.tolist() == case["lengths"]
    else:
        y, last = module(x, state)
    keep(numbers, f"recurrent.{seed}", module, [x, *states], [y, *(last if kind == "LSTM" else [last])])
    return case


def main(path):
    numbers = {}
    cases = {"recurrent": [recurrent(numbers, seed) for seed in range(RECURRENT_CASES)]}
    safetensors.torch.save_file({name: tensor.contiguous() for name, tensor in numbers.items()}, path,
                                {"cases": json.dumps(cases)})


if __name__ == "__main__":
    main(sys.argv[1])
