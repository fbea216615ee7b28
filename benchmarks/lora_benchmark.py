"""A step of LoRA on a Llama of 135M parameters against transformers and PEFT, on one libtorch, one thread, in one run.

Needs a Python with torch 2.11, transformers 5.23, peft 0.21 and, for few bits, accelerate 1.15 and bitsandbytes 0.50:
    bazel build -c opt //driver:lockstep
    OMP_NUM_THREADS=1 python benchmarks/lora_benchmark.py bazel-bin/driver/lockstep

"4 bits" is QLoRA: both load the folder that bitsandbytes wrote, NF4 with double quantization. "8 bits" is LLM.int8. BITS=16, BITS=4 or
BITS=8 runs one kind alone. DROPOUT=0.1 gives adapters dropout, and DORA=1 makes them DoRA's.

The shape is SmolLM2-135M's: 30 layers, hidden 576, 49,152 ids. A step is forward, backward and AdamW over 256 tokens, r = 16 on all
linear layers. Each measurement is a process of its own, which gives the least milliseconds of processor time of a step, and MiB of the
process at its highest. The programs take turns, three times. Printed are the medians of the turns, and Lua / Python. Losses of the third
step must agree.
"""

import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import torch

TURNS, STEPS, TOKENS = int(os.environ.get("TURNS", 3)), 6, 256
CONFIG = dict(vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
              num_key_value_heads=3, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None)
# Losses of bfloat16 differ with the order of sums.
TOLERANCES = {"float32": 1e-5, "bfloat16": 1e-2}
BITS = [int(bits) for bits in os.environ.get("BITS", "16 4 8").split()]
DROPOUT, DORA = float(os.environ.get("DROPOUT", 0)), os.environ.get("DORA") == "1"


def write_model(folder):
    import peft
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(**CONFIG)
    model = transformers.LlamaForCausalLM._from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    adapted = peft.get_peft_model(model, peft.LoraConfig(
        r=16, lora_alpha=32, target_modules="all-linear", lora_dropout=DROPOUT, use_dora=DORA))
    adapted.save_pretrained(f"{folder}/adapter")
    for bits, dtype in ((bits, dtype) for bits in BITS if bits != 16 for dtype in TOLERANCES):
        how = transformers.BitsAndBytesConfig(load_in_8bit=True) if bits == 8 else transformers.BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype)
        model = transformers.LlamaForCausalLM.from_pretrained(folder, quantization_config=how, dtype=getattr(torch, dtype))
        model.save_pretrained(f"{folder}/{dtype}_{bits}")


def peak_mib():
    """VmHWM of this process, in MiB."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024


def python_side(folder, adapter, dtype):
    import peft
    import transformers

    torch.set_num_threads(1)
    model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).train()
    model = peft.PeftModel.from_pretrained(model, adapter, is_trainable=True)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3, weight_decay=0.0, fused=True)
    ids = torch.arange(TOKENS).square().remainder(49151)[None]
    best = float("inf")
    for step in range(STEPS):
        start = time.process_time()
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss = loss.item()
        if step > 0:
            best = min(best, time.process_time() - start)
        if step == 2:
            third = loss
    print(f"result {1e3 * best:.3f} {peak_mib():.1f} {third:.9g}")


def run(command):
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    line = next(line for line in output.splitlines() if line.startswith("result "))
    return [float(value) for value in line.split()[1:]]


def main():
    if len(sys.argv) == 5:
        return python_side(*sys.argv[2:])
    if len(sys.argv) != 2:
        sys.exit("usage: python lora_benchmark.py PROGRAM, the built //driver:lockstep")
    here = pathlib.Path(__file__)
    print(f"{'':30}{'Lua':>10}{'Python':>10}{'ratio':>8}")
    with tempfile.TemporaryDirectory() as folder:
        write_model(folder)
        adapter = os.environ["LOCKSTEP_BENCHMARK_ADAPTER"] = f"{folder}/adapter"
        for bits, dtype in ((bits, dtype) for bits in BITS for dtype in TOLERANCES):
            base = os.environ["LOCKSTEP_BENCHMARK_FOLDER"] = folder if bits == 16 else f"{folder}/{dtype}_{bits}"
            os.environ["LOCKSTEP_BENCHMARK_DTYPE"] = dtype
            lua, python = [], []
            for _ in range(TURNS):
                lua.append(run([sys.argv[1], "--nproc", "1", str(here.with_suffix(".lua"))]))
                python.append(run([sys.executable, str(here), "--peer", base, adapter, dtype]))
            case = dtype + (f", {bits} bits" if bits != 16 else "")
            if DROPOUT == 0 and abs(lua[0][2] - python[0][2]) > TOLERANCES[dtype] * abs(python[0][2]):
                sys.exit(f"{case}: the third step's loss is {lua[0][2]} from Lua, but {python[0][2]} from Python")
            for column, name in enumerate(("step, ms", "process, MiB")):
                ours, theirs = (statistics.median(result[column] for result in side) for side in (lua, python))
                print(f"{case + ', ' + name:30}{ours:10.1f}{theirs:10.1f}{ours / theirs:8.2f}", flush=True)


if __name__ == "__main__":
    main()
