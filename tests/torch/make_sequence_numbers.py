"""Writes sequence_numbers.safetensors: what PyTorch's recurrent layers and transformers compute, for tests in Lua.

    pip install torch==2.11.0 numpy safetensors==0.8.0
    python tests/torch/make_sequence_numbers.py tests/torch/sequence_numbers.safetensors

The tests are recurrent_test.lua and transformer_test.lua in driver/lualib/lockstep/nn/sequences. Cases are random; the
file's metadata has them as JSON. Each begins with torch.manual_seed, so that first values and inputs need not be
stored: the same calls in Lua draw the same numbers.
"""

import json
import random
import sys

import safetensors.torch
import torch
from torch import nn

assert torch.__version__.startswith("2.11.0"), torch.__version__
torch.set_num_threads(1)
RECURRENT_CASES, TRANSFORMER_CASES = 40, 64
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


def random_mask(choose, generator, shape):
    """Booleans or numbers. The first key stays in sight, so that no result is NaN."""
    hidden = torch.rand(shape, generator=generator) < 0.4
    hidden[..., 0] = False
    if choose.random() < 0.5:
        return hidden
    return torch.randn(shape, generator=generator).masked_fill(hidden, -torch.inf)


class Call:
    """The options of one call: a mask of time and keys, padding, or causal attention."""

    def __init__(self, choose, seed, batch, heads):
        self.choose, self.batch, self.heads = choose, batch, heads
        self.generator = torch.Generator().manual_seed(seed)
        self.options, self.of_lua = {}, {}

    def masks(self, mask, padding, causal, time, keys):
        choose = self.choose
        is_batched = self.batch is not None
        if padding and choose.random() < 0.4:
            shape = [self.batch, keys] if is_batched else [keys]
            self.add(padding, random_mask(choose, self.generator, shape))
        kind = choose.choice(["none", "mask", "mask", "mask of each head", "causal", "causal"])
        if kind == "causal" and time == keys:
            # PyTorch wants the mask as well.
            self.options[mask] = nn.Transformer.generate_square_subsequent_mask(time)
            self.options[causal] = self.of_lua[causal] = True
            if choose.random() < 0.3:
                self.of_lua[mask] = "a tensor"
        elif kind == "mask of each head":
            self.add(mask, random_mask(choose, self.generator, [(self.batch or 1) * self.heads, time, keys]))
        elif kind != "none":
            self.add(mask, random_mask(choose, self.generator, [time, keys]))

    def add(self, name, mask):
        self.options[name], self.of_lua[name] = mask, "a tensor"


def attention_options(choose):
    options = {"bias": choose.random() < 0.7, "dropout": choose.choice([0, 0.3]),
               "batch_first": choose.random() < 0.5, "add_bias_kv": choose.random() < 0.3,
               "add_zero_attn": choose.random() < 0.3}
    if choose.random() < 0.4:
        options["kdim"], options["vdim"] = choose.randint(1, 5), choose.randint(1, 5)
    return options


def layer_options(choose):
    return {"dim_feedforward": choose.randint(1, 6), "dropout": choose.choice([0, 0.3]),
            "activation": choose.choice(["relu", "gelu"]), "layer_norm_eps": choose.choice([1e-5, 1e-2]),
            "batch_first": choose.random() < 0.5, "norm_first": choose.random() < 0.5, "bias": choose.random() < 0.7}


def transformer(numbers, seed):
    choose = random.Random(seed)
    heads = choose.randint(1, 3)
    size = heads * choose.randint(1, 3)
    kinds = ["MultiheadAttention"] * 3 + ["TransformerEncoderLayer", "TransformerDecoderLayer", "TransformerEncoder",
                                          "TransformerDecoder", "Transformer"]
    kind = kinds[seed % len(kinds)]
    is_attention = kind == "MultiheadAttention"
    options = attention_options(choose) if is_attention else layer_options(choose)
    batch = choose.choice([None, 1, 2, 3])
    time = choose.randint(1, 4)
    keys = time if choose.random() < 0.5 else choose.randint(1, 4)
    case = {"kind": kind, "size": size, "heads": heads, "options": options, "train": choose.random() < 0.7,
            "seed": seed}
    if kind == "Transformer":
        options["num_encoder_layers"], options["num_decoder_layers"] = choose.randint(1, 2), choose.randint(1, 2)

    def shape(tokens, width=size):
        sizes = [tokens] if batch is None else [batch, tokens] if options["batch_first"] else [tokens, batch]
        return [*sizes, width]

    call = Call(choose, seed, batch, heads)
    if is_attention:
        case["is_self"] = "kdim" not in options and choose.random() < 0.5
        if case["is_self"]:
            keys = time
        call.masks("attn_mask", "key_padding_mask", "is_causal", time, keys)
        for name in ("need_weights", "average_attn_weights"):
            call.options[name] = call.of_lua[name] = choose.random() < 0.6
        if options["add_bias_kv"] or options["add_zero_attn"]:
            # Without weights PyTorch's causal attention does not see the keys that were added; with weights it does.
            call.options["need_weights"] = call.of_lua["need_weights"] = True
        case["inputs"] = [shape(time)]
        if not case["is_self"]:
            case["inputs"] += [shape(keys, options.get("kdim", size)), shape(keys, options.get("vdim", size))]
    elif "Encoder" in kind:
        call.masks("src_mask" if "Layer" in kind else "mask", "src_key_padding_mask", "is_causal", time, time)
        case["inputs"] = [shape(time)]
    else:
        call.masks("tgt_mask", "tgt_key_padding_mask", "tgt_is_causal", time, time)
        call.masks("memory_mask", "memory_key_padding_mask", "memory_is_causal", time, keys)
        case["inputs"] = [shape(time), shape(keys)]
        if kind == "Transformer":
            case["inputs"].reverse()
            call.masks("src_mask", "src_key_padding_mask", "src_is_causal", keys, keys)
    case["call"] = call.of_lua
    for name, value in call.of_lua.items():
        if value == "a tensor":
            numbers[f"transformer.{seed}.call.{name}"] = call.options[name]

    torch.manual_seed(seed)
    if kind in ("TransformerEncoder", "TransformerDecoder"):
        case["num_layers"], case["norm"] = choose.randint(1, 3), choose.random() < 0.5
        layer = getattr(nn, kind + "Layer")(size, heads, **options)
        module = getattr(nn, kind)(layer, case["num_layers"], norm=nn.LayerNorm(size) if case["norm"] else None)
    else:
        module = getattr(nn, kind)(size, heads, **options)
    module.train(case["train"])
    inputs = [torch.randn(sizes).requires_grad_() for sizes in case["inputs"]]
    torch.manual_seed(FORWARD_SEED + seed)
    outputs = module(*(inputs * 3 if case.get("is_self") else inputs), **call.options)
    outputs = [y for y in outputs if y is not None] if is_attention else [outputs]
    assert all(y.isfinite().all() for y in outputs)
    keep(numbers, f"transformer.{seed}", module, inputs, outputs)
    return case


def main(path):
    numbers = {}
    cases = {"recurrent": [recurrent(numbers, seed) for seed in range(RECURRENT_CASES)],
             "transformer": [transformer(numbers, seed) for seed in range(TRANSFORMER_CASES)]}
    safetensors.torch.save_file({name: tensor.contiguous() for name, tensor in numbers.items()}, path,
                                {"cases": json.dumps(cases)})


if __name__ == "__main__":
    main(sys.argv[1])
