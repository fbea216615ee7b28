"""Writes fixtures/layers.safetensors: what torchao's float8 layers compute, for tests in Lua.

    pip install torch==2.11.0 torchao==0.18.0 safetensors==0.8.0
    python tests/float8/make_fixtures.py tests/float8/fixtures

For each dtype there are an input, a weight, a bias and the gradient of the result; for each recipe the result and the
gradients of torchao.float8.convert_to_float8_training. Its products are emulated: float32 products of the same float8
numbers. The test is driver/lualib/lockstep/float8/float8_test.lua.
"""

import dataclasses
import pathlib
import sys

import safetensors.torch
import torch
import torchao
from torchao.float8 import Float8LinearConfig, convert_to_float8_training

assert torch.__version__.startswith("2.11.0"), torch.__version__
assert torchao.__version__.startswith("0.18.0"), torchao.__version__
torch.set_num_threads(1)

TOKENS, INPUTS, OUTPUTS = 24, 32, 48
RECIPES = ["tensorwise", "rowwise", "rowwise_with_gw_hp"]


def spread(rows, columns, dtype):
    """Numbers whose rows and columns have different sizes, so that scales matter."""
    return (torch.randn(rows, columns) * torch.randn(rows, 1).exp() * torch.randn(columns).exp()).to(dtype)


def main(folder):
    tensors = {}
    for dtype in [torch.float32, torch.bfloat16]:
        torch.manual_seed(1)
        name = str(dtype).split(".")[1]
        inputs = {"x": spread(TOKENS, INPUTS, dtype), "weight": spread(OUTPUTS, INPUTS, dtype),
                  "bias": torch.randn(OUTPUTS).to(dtype), "dy": spread(TOKENS, OUTPUTS, dtype)}
        tensors.update({f"{name}.{key}": value for key, value in inputs.items()})
        for recipe in RECIPES:
            model = torch.nn.Sequential(torch.nn.Linear(INPUTS, OUTPUTS, dtype=dtype))
            model[0].load_state_dict({"weight": inputs["weight"], "bias": inputs["bias"]})
            config = dataclasses.replace(Float8LinearConfig.from_recipe_name(recipe), emulate=True)
            convert_to_float8_training(model, config=config)
            x = inputs["x"].clone().requires_grad_()
            y = model(x)
            y.backward(inputs["dy"])
            results = {"y": y.detach(), "dx": x.grad, "dweight": model[0].weight.grad, "dbias": model[0].bias.grad}
            tensors.update({f"{name}.{recipe}.{key}": value for key, value in results.items()})
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    tensors = {key: value.contiguous() for key, value in tensors.items()}
    safetensors.torch.save_file(tensors, str(pathlib.Path(folder) / "layers.safetensors"))


if __name__ == "__main__":
    main(sys.argv[1])
