"""Checks the way back: PEFT loads the folders that lora.save wrote, and computes the same.

    pip install torch==2.11.0 peft==0.21.2 transformers==5.23.0 safetensors==0.8.0
    bazel-bin/driver/lockstep --nproc 1 tests/lora/save_ours.lua -- OURS
    python tests/lora/check_ours.py OURS
"""

import pathlib
import sys

import peft
import safetensors.torch
import torch

from tiny import Tiny, TinyMixture

TOLERANCE = 1e-5


def check(folder):
    expected = safetensors.torch.load_file(folder / "expected.safetensors")
    model, base = (TinyMixture(), "base_experts") if "experts" in folder.name else (Tiny(), "base")
    model.load_state_dict(safetensors.torch.load_file(pathlib.Path(__file__).parent / "fixtures" / (base + ".safetensors")))
    plain = model(expected["ids"])
    model = peft.PeftModel.from_pretrained(model, folder).eval()
    difference = (model(expected["ids"]) - expected["logits"]).abs().max().item()
    learned = (plain - expected["logits"]).abs().max().item()
    merged = model.merge_and_unload().state_dict()
    weights = max((merged[name] - expected["merged." + name]).abs().max().item() for name in merged)
    good = difference < TOLERANCE and weights < TOLERANCE and learned > 0.1
    print(f"{folder.name}: logits differ by {difference:.2g} (adapters change them by {learned:.2g}), merged weights by "
          f"{weights:.2g}{'' if good else '  WRONG'}")
    return good


def main(folder):
    assert peft.__version__ == "0.21.2", peft.__version__
    torch.set_num_threads(1)
    results = [check(path) for path in sorted(pathlib.Path(folder).iterdir())]
    sys.exit(0 if results and all(results) else 1)


if __name__ == "__main__":
    main(sys.argv[1])
