"""Generation after many prompts whose answers have different lengths: continuous batching against padded batches.

Needs a Python with torch 2.11 and transformers 5.23:
    bazel build -c opt //driver:lockstep
    OMP_NUM_THREADS=1 python benchmarks/generation_benchmark.py bazel-bin/driver/lockstep

96 prompts of 8 to 64 ids; 16 to 512 new ids, most of them few. A padded batch runs until its longest answer ends, as in
transformers. Printed are milliseconds of processor time on one thread, the least of TURNS (default 2), and the ratio to the padded
batches of transformers and of lockstep. SIZES=16,64 are the prompts at a time. The greedy ids must be the same in all.
"""

import json
import os
import pathlib
import random
import tempfile
import time

import peer
import torch
import transformers

TURNS = int(os.environ.get("TURNS", 2))
FOLDER = "LOCKSTEP_BENCHMARK_FOLDER"
SIZES = tuple(map(int, os.environ.get("SIZES", "16,64").split(",")))


def write_cases(folder):
    config = transformers.LlamaConfig(
        hidden_size=256, intermediate_size=704, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4,
        vocab_size=4096, tie_word_embeddings=True, eos_token_id=None, bos_token_id=None, initializer_range=0.1)
    torch.manual_seed(0)
    transformers.LlamaForCausalLM._from_config(config, dtype=torch.float32).save_pretrained(folder)
    draw = random.Random(1)
    prompts = [[draw.randrange(1, 4096) for _ in range(draw.randint(8, 64))] for _ in range(96)]
    limits = [round(16 * 32 ** (draw.random() ** 2)) for _ in prompts]
    limits[5] = 512
    cases = {"prompts": prompts, "limits": limits, "sizes": SIZES, "group": 16,
             "long": [draw.randrange(1, 4096) for _ in range(256)]}
    (folder / "cases.json").write_text(json.dumps(cases))
    print(f"{len(prompts)} prompts, {sum(limits)} new ids, {min(limits)} to {max(limits)}, median "
          f"{sorted(limits)[len(limits) // 2]}")


def padded(model, prompts, limits):
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    with torch.no_grad():
        return model.generate(ids, attention_mask=mask, max_new_tokens=max(limits), do_sample=False,
                              pad_token_id=0)[:, longest:].tolist()


def python_times():
    folder = pathlib.Path(os.environ[FOLDER])
    cases = json.loads((folder / "cases.json").read_text())
    model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    padded(model, cases["prompts"][:1], [4])
    times = {}
    for size in SIZES:
        start, total = time.process_time(), 0
        for first in range(0, len(cases["prompts"]), size):
            limits = cases["limits"][first : first + size]
            for ids, limit in zip(padded(model, cases["prompts"][first : first + size], limits), limits):
                total += sum(id_ * (k % 7 + 1) for k, id_ in enumerate(ids[:limit], 1))
        times[f"padded, {size} at a time"] = 1e3 * (time.process_time() - start)
        times[f"check: ids, padded, {size} at a time"] = total
    return times


def main():
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as temporary:
        os.environ[FOLDER] = temporary
        write_cases(pathlib.Path(temporary))
        best = peer.take_turns(__file__, TURNS, python_times)
    for size in SIZES:
        names = [f"{kind}, {size} at a time" for kind in ("padded", "ended ones leave", "continuous")]
        sums = {best["check: ids, " + name, "lua"] for name in names} | {best["check: ids, " + names[0], "python"]}
        if len(sums) != 1:
            raise SystemExit(f"{size} at a time: the ids differ: {sums}")
        peer_time, own = best[names[0], "python"], best[names[0], "lua"]
        print(f"transformers, {names[0]}: {peer_time:.0f} ms")
        for name in names:
            ms = best[name, "lua"]
            print(f"lockstep, {name}: {ms:.0f} ms; transformers / this {peer_time / ms:.2f}, padded / this {own / ms:.2f}")
    once, apart = best["group, one prompt", "lua"], best["group, as many prompts", "lua"]
    print(f"16 samples of 256 ids, 16 new: {once:.0f} ms; different prompts {apart:.0f} ms, {apart / once:.2f}")


if __name__ == "__main__":
    main()
