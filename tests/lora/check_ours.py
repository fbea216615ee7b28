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
import transformers

from tiny import Tiny, TinyMixture

TOLERANCE = 1e-5


def base_model(folder):
    tests = pathlib.Path(__file__).parent
    if folder.name.startswith("models."):
        return transformers.AutoModelForCausalLM.from_pretrained(tests.parent / "models" / folder.name[len("models."):],
                                                                 dtype=torch.float32)
    model, base = (TinyMixture(), "base_experts") if "experts" in folder.name else (Tiny(), "base")
    model.load_state_dict(safetensors.torch.load_file(tests / "fixtures" / f"{base}.safetensors"))
    return model


def check(folder):
    expected = safetensors.torch.load_file(folder / "expected.safetensors")
    model = base_model(folder).eval()
    is_tiny = isinstance(model, (Tiny, TinyMixture))
    run = (lambda m: m(expected["ids"])) if is_tiny else (lambda m: m(expected["ids"][None]).logits[0])
    with torch.no_grad():
        plain = run(model)
        adapted = peft.PeftModel.from_pretrained(model, folder).eval()
        difference = (run(adapted) - expected["logits"]).abs().max().item()
        merged = adapted.merge_and_unload()
        if is_tiny:
            state = merged.state_dict()
            weights = max((state[name] - expected["merged." + name]).abs().max().item() for name in state)
        else:  # the folder that models.save wrote after lora.merge
            ours = transformers.AutoModelForCausalLM.from_pretrained(folder / "merged", dtype=torch.float32).eval()
            weights = (run(ours) - expected["logits"]).abs().max().item()
    learned = (plain - expected["logits"]).abs().max().item()
    tolerance = TOLERANCE * max(1, expected["logits"].abs().max().item())
    good = difference < tolerance and weights < tolerance and learned > 0.1
    print(f"{folder.name}: logits differ by {difference:.2g} (adapters change them by {learned:.2g}), merged by "
          f"{weights:.2g}{'' if good else '  WRONG'}")
    return good


def main(folder):
    assert peft.__version__ == "0.21.2", peft.__version__
    torch.set_num_threads(1)
    results = [check(path) for path in sorted(pathlib.Path(folder).iterdir())]
    sys.exit(0 if results and all(results) else 1)


if __name__ == "__main__":
    main(sys.argv[1])
