"""Writes numbers.safetensors: what PyTorch's optimizers, initialisers and layers compute, for tests in Lua.

    pip install torch==2.11.0 numpy safetensors==0.8.0
    python tests/torch/make_numbers.py tests/torch/numbers.safetensors

The tests are driver/lualib/lockstep/optim/optim_torch_test.lua and driver/lualib/lockstep/nn/nn_torch_test.lua.
"""

import sys

import safetensors.torch
import torch
from torch import nn

assert torch.__version__.startswith("2.11.0"), torch.__version__
torch.set_num_threads(1)

STEPS = 20
TALL, WIDE = (6, 4), (3, 7)

# Name: optimizer and options. Muon's two precisions are computed by exact_muon below.
OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "sgd_momentum": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1}),
    "sgd_nesterov": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.8, "nesterov": True}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    "adafactor": (torch.optim.Adafactor, {"lr": 0.05}),
    "adafactor_decay": (torch.optim.Adafactor, {"lr": 0.1, "beta2_decay": -0.5, "d": 1.5, "weight_decay": 0.1,
                                                "eps": (1e-6, 1e-2)}),
    "muon": (torch.optim.Muon, {"lr": 0.02}),
    "muon_rms": (torch.optim.Muon, {"lr": 0.01, "weight_decay": 0.3, "momentum": 0.8, "nesterov": False,
                                    "adjust_lr_fn": "match_rms_adamw", "ns_steps": 3}),
}


def optimizers(numbers):
    generator = torch.Generator().manual_seed(1)
    shapes = {"tall": TALL, "wide": WIDE}
    for shape_name, shape in shapes.items():
        numbers[f"optim.start.{shape_name}"] = torch.randn(shape, generator=generator)
        numbers[f"optim.grads.{shape_name}"] = torch.randn((STEPS, *shape), generator=generator)

    def run(optimizer_class, options):
        params = {name: numbers[f"optim.start.{name}"].clone().requires_grad_() for name in shapes}
        optimizer = optimizer_class(list(params.values()), **options)
        for step in range(STEPS):
            for name, p in params.items():
                p.grad = numbers[f"optim.grads.{name}"][step].clone()
            for group in optimizer.param_groups:
                group["lr"] = options["lr"] * (1 - step / 40)
            optimizer.step()
        return params

    def keep(case, params):
        for name, p in params.items():
            numbers[f"optim.end.{case}.{name}"] = p.detach()

    for case, (optimizer_class, options) in OPTIMIZERS.items():
        if optimizer_class is not torch.optim.Muon:
            keep(case, run(optimizer_class, options))
            continue
        keep(case + ".bfloat16", run(optimizer_class, options))
        # The same algorithm without rounding to bfloat16, so that every machine computes these numbers.
        rounding, torch.Tensor.bfloat16 = torch.Tensor.bfloat16, torch.Tensor.clone
        keep(case + ".float32", run(optimizer_class, options))
        torch.Tensor.bfloat16 = rounding


def initial_values(numbers):
    init = nn.init
    cases = {
        "normal": lambda t: init.normal_(t, mean=0.5, std=0.02),
        "uniform": lambda t: init.uniform_(t, a=-2, b=3),
        "trunc_normal": lambda t: init.trunc_normal_(t, mean=0.1, std=0.5, a=-0.6, b=0.9),
        "xavier_uniform": lambda t: init.xavier_uniform_(t, gain=1.5),
        "xavier_normal": init.xavier_normal_,
        "kaiming_uniform": lambda t: init.kaiming_uniform_(t, a=5**0.5),
        "kaiming_normal": lambda t: init.kaiming_normal_(t, mode="fan_out", nonlinearity="relu"),
        "orthogonal": lambda t: init.orthogonal_(t, gain=2),
    }
    for name, fill in cases.items():
        for shape_name, shape in {"matrix": (6, 4), "kernel": (3, 2, 3, 3)}.items():
            torch.manual_seed(3)
            numbers[f"init.{name}.{shape_name}"] = fill(torch.empty(shape))


def layer(numbers, name, module, x, seed=5):
    """Weights, output and gradients of a layer on an input."""
    torch.manual_seed(seed)
    for p in module.parameters():
        nn.init.normal_(p)
    x = x.clone().requires_grad_()
    y = module(x)
    weights = torch.arange(y.numel(), dtype=torch.float32).reshape(y.shape).cos()
    (y * weights).sum().backward()
    numbers[f"layer.{name}.x"] = x.detach()
    numbers[f"layer.{name}.y"] = y.detach()
    numbers[f"layer.{name}.x_grad"] = x.grad
    for key, p in module.named_parameters():
        numbers[f"layer.{name}.{key}"] = p.detach()
        numbers[f"layer.{name}.{key}_grad"] = p.grad


def layers(numbers):
    torch.manual_seed(4)
    line, image, video = torch.randn(2, 4, 9), torch.randn(2, 4, 7, 6), torch.randn(2, 3, 4, 5, 6)
    layer(numbers, "conv1d", nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2), line)
    layer(numbers, "conv2d", nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)), image)
    layer(numbers, "conv2d_same", nn.Conv2d(4, 2, (4, 3), padding="same", bias=False), image)
    layer(numbers, "conv2d_reflect", nn.Conv2d(4, 2, 3, padding=(2, 1), padding_mode="reflect"), image)
    layer(numbers, "conv2d_circular", nn.Conv2d(4, 2, (4, 3), padding="same", padding_mode="circular"), image)
    layer(numbers, "conv3d", nn.Conv3d(3, 5, (2, 3, 3), stride=(2, 1, 1), bias=False), video)
    layer(numbers, "group_norm", nn.GroupNorm(2, 4, eps=1e-3), image)
    layer(numbers, "group_norm_plain", nn.GroupNorm(3, 3, affine=False), video)
    x = torch.linspace(-7, 7, 30).reshape(5, 6)
    activations = {
        "ReLU": nn.ReLU(), "ReLU6": nn.ReLU6(), "LeakyReLU": nn.LeakyReLU(0.2), "ELU": nn.ELU(0.5),
        "CELU": nn.CELU(0.5), "SELU": nn.SELU(), "GELU": nn.GELU(), "GELU_tanh": nn.GELU("tanh"), "SiLU": nn.SiLU(),
        "Mish": nn.Mish(), "Sigmoid": nn.Sigmoid(), "LogSigmoid": nn.LogSigmoid(), "Tanh": nn.Tanh(),
        "Tanhshrink": nn.Tanhshrink(), "Softplus": nn.Softplus(2, 5), "Softsign": nn.Softsign(),
        "Softshrink": nn.Softshrink(0.7), "Hardshrink": nn.Hardshrink(0.7), "Hardtanh": nn.Hardtanh(-2, 3),
        "Hardsigmoid": nn.Hardsigmoid(), "Hardswish": nn.Hardswish(), "GLU": nn.GLU(0 + 1),
        "Softmax": nn.Softmax(0), "LogSoftmax": nn.LogSoftmax(-1), "PReLU": nn.PReLU(6),
    }
    for name, module in activations.items():
        layer(numbers, name, module, x)


def main(path):
    numbers = {}
    optimizers(numbers)
    initial_values(numbers)
    layers(numbers)
    safetensors.torch.save_file({name: tensor.contiguous() for name, tensor in numbers.items()}, path)


if __name__ == "__main__":
    main(sys.argv[1])
