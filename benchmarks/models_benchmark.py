"""Training, packing, generation and loading of Qwen3 against transformers, on one libtorch, one thread, in one run.

Needs a Python with torch 2.11 and transformers 5.23:
    bazel build -c opt //driver:lockstep
    OMP_NUM_THREADS=1 python benchmarks/models_benchmark.py bazel-bin/driver/lockstep

Both programs load the same folders, which transformers wrote, and take turns, three times; printed is the least time of
each in milliseconds, and Lua / Python. It is the processor time of the process, so that other programs on the machine do
not count. Losses and generated ids must be the same. LOADED_BYTES=N sets the size of the weights that are loaded (default
1e9).
"""

import os
import pathlib
import tempfile
import time

import peer
import torch
import transformers

TURNS = 3
FOLDER = "LOCKSTEP_BENCHMARK_FOLDER"
LENGTHS = (512, 64, 96, 128, 32, 200, 80, 48)
SIZES = {
    "small": {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 4, "num_attention_heads": 4,
              "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 512},
    "large": {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 4, "num_attention_heads": 8,
              "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 4096},
}


def config_of(size, **more):
    return transformers.Qwen3Config(tie_word_embeddings=True, eos_token_id=None, bos_token_id=None, **SIZES[size], **more)


def write_folders(folder):
    torch.manual_seed(0)
    for size in SIZES:
        config = config_of(size, initializer_range=0.1)
        transformers.Qwen3ForCausalLM._from_config(config, dtype=torch.float32).save_pretrained(folder / size)
    hidden, bytes_ = 1024, float(os.environ.get("LOADED_BYTES", 1e9))
    layer_elements = 2 * hidden * 2048 + 2 * hidden * 1024 + 3 * hidden * 3072
    big = transformers.Qwen3Config(
        vocab_size=32000, hidden_size=hidden, intermediate_size=3072, num_attention_heads=16, num_key_value_heads=8,
        head_dim=128, tie_word_embeddings=True,
        num_hidden_layers=max(1, round((bytes_ / 2 - 32000 * hidden) / layer_elements)))
    transformers.Qwen3ForCausalLM._from_config(big, dtype=torch.bfloat16).save_pretrained(folder / "big")


def measure(calls, call):
    """Least milliseconds of `calls` calls, after one that does not count."""
    call()
    best = float("inf")
    for _ in range(calls):
        start = time.process_time()
        call()
        best = min(best, time.process_time() - start)
    return 1e3 * best


def load(folder, size):
    return transformers.Qwen3ForCausalLM.from_pretrained(folder / size, dtype=torch.float32)


def ids_of(tokens, vocabulary):
    return torch.arange(tokens).square().remainder(vocabulary - 1)


def training(times, folder, name, size, tokens, calls):
    model = load(folder, size).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0, fused=True)
    ids = ids_of(tokens, SIZES[size]["vocab_size"])[None]

    def step():
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    times[name] = measure(calls, step)
    times["check: loss, " + name] = step()


def packing(times, folder, calls):
    model = load(folder, "large").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0, fused=True)
    longest = max(LENGTHS)
    ids = torch.zeros(len(LENGTHS), longest, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, (length, part) in enumerate(zip(LENGTHS, ids_of(sum(LENGTHS), 4096).split(LENGTHS))):
        ids[row, :length], mask[row, :length] = part, 1
    labels = ids.masked_fill(mask == 0, -100)

    def step():
        loss = model(input_ids=ids, attention_mask=mask, labels=labels, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    name = "step of eight sequences"
    times[name] = measure(calls, step)
    times["check: loss, " + name] = step()


def generation(times, folder, size, prompts, calls):
    model = load(folder, size).eval()
    ids = ids_of(prompts * 32, SIZES[size]["vocab_size"]).view(prompts, 32)

    def generate():
        with torch.no_grad():
            return model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=128, do_sample=False,
                                  pad_token_id=0)[:, 32:]

    name = f"128 tokens, {size}, {prompts} prompts"
    times[name] = measure(calls, generate)
    times["check: ids, " + name] = float(generate().sum())


def loading(times, folder):
    path = next((folder / "big").glob("*.safetensors"))

    def read():
        with open(path, "rb", buffering=0) as file:
            buffer = bytearray(path.stat().st_size)
            file.readinto(buffer)

    times["load"] = measure(2, lambda: transformers.Qwen3ForCausalLM.from_pretrained(folder / "big"))
    times["load and read each page"] = times["load"]
    times["only: reading the file"] = measure(3, read)


def python_times():
    folder = pathlib.Path(os.environ[FOLDER])
    times = {}
    training(times, folder, "step, hidden 64, 64 tokens", "small", 64, 30)
    training(times, folder, "step, hidden 512, 512 tokens", "large", 512, 5)
    packing(times, folder, 2)
    generation(times, folder, "small", 1, 3)
    generation(times, folder, "large", 1, 2)
    generation(times, folder, "large", 4, 2)
    loading(times, folder)
    return times


def main():
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as temporary:
        os.environ[FOLDER] = temporary
        write_folders(pathlib.Path(temporary))
        best = peer.take_turns(__file__, TURNS, python_times)
    print(f"{'':38}{'Lua ms':>11}{'Python ms':>11}{'ratio':>8}")
    for name in dict.fromkeys(name for name, _ in best):
        lua, python = best.get((name, "lua")), best.get((name, "python"))
        if name.startswith("check"):
            if abs(lua - python) > 1e-3 * abs(python):
                raise SystemExit(f"{name}: {lua} from Lua, but {python} from Python")
        elif name.startswith("only"):
            print(f"{name:38}{'':11}{python:11.2f}")
        else:
            print(f"{name:38}{lua:11.2f}{python:11.2f}{lua / python:8.2f}")


if __name__ == "__main__":
    main()
