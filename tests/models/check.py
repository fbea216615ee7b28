"""Loads what lockstep saved with transformers, and compares logits and greedy ids.

    python tests/models/check.py DRIVER [FOLDER]        # DRIVER: bazel-bin/driver/lockstep, or a wrapper of it

Needs what make.py needs. Runs write_back.lua, which writes into FOLDER (default: a temporary one), then prints a line
for each saved model, and exits with 1 if one differs.
"""

import pathlib
import subprocess
import sys
import tempfile

import safetensors.torch
import torch
import transformers

import make

HERE = pathlib.Path(__file__).parent
TOLERANCE = 5e-5


def check(folder, name):
    """Returns the largest difference of logits, and whether 64 greedy ids after each prompt are the same."""
    ours = safetensors.torch.load_file(folder / f"{name}.safetensors")
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder / name, output_loading_info=True, experts_implementation="eager")
    problems = {key: value for key, value in info.items() if value}
    if problems:
        raise SystemExit(f"{name}: from_pretrained reports {problems}")
    with torch.no_grad():
        logits = model(ours["input_ids"][None]).logits[0]
        prompts = (ours["input_ids"], torch.tensor([2, 7, 1]))
        generated = torch.stack([
            model.generate(p[None], max_new_tokens=64, do_sample=False, eos_token_id=None, pad_token_id=0)[0, len(p) :]
            for p in prompts])
    return (logits - ours["logits"]).abs().max().item(), torch.equal(generated, ours["generated"])


def main(driver, out):
    make.check_versions()
    command = [driver, "--nproc", "1", "--run-dir", str(out / "run"), str(HERE / "write_back.lua"), str(out)]
    subprocess.run(command, check=True, cwd=HERE.parent.parent)
    failed = False
    for name in (out / "names.txt").read_text().split():
        difference, same_ids = check(out, name)
        failed |= difference > TOLERANCE or not same_ids
        print(f"{name:28} logits differ by {difference:.2g}, greedy ids {'are the same' if same_ids else 'DIFFER'}")
    return int(failed)


if __name__ == "__main__":
    transformers.utils.logging.set_verbosity_error()
    if len(sys.argv) > 2:
        sys.exit(main(sys.argv[1], pathlib.Path(sys.argv[2]).absolute()))
    with tempfile.TemporaryDirectory() as temporary:
        sys.exit(main(sys.argv[1], pathlib.Path(temporary)))
