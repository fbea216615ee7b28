#!/usr/bin/env python3
"""Trains the model of a run of scripts/pretrain.lua again in PyTorch, and compares the losses: pretrain_benchmark.py RUN

RUN is the folder of a run of pretrain_benchmark.lua with optimizer=adamw. transformers' Qwen3 begins with the same
weights and sees the same tokens in the same order, in a training loop in the manner of nanoGPT. Prints a table of the
loss against tokens, and the processor seconds of both. Needs torch and transformers.
"""

import argparse
import json
import math
import pathlib
import time

import torch
from safetensors.torch import load_file
from transformers import Qwen3Config, Qwen3ForCausalLM


def read_run(folder):
    config = json.loads((folder / "config.json").read_text())
    assert config["optimizer"] == "adamw", "run it with --set optimizer=adamw"
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = [one["loss"] for one in metrics if "loss" in one]
    return config, losses, load_file(folder / "tokens.safetensors")["tokens"]


def learning_rate(step, config):
    """Warm-up, then half a cosine down to a tenth."""
    warmup, total = min(config["warmup_steps"], config["steps"]), config["steps"]
    if step < warmup:
        return config["lr"] * (step + 1) / warmup
    progress = (step - warmup) / (total - warmup)
    return config["lr"] * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress)))


def train(folder, config, tokens):
    shape = json.loads((folder / "start" / "config.json").read_text())
    model = Qwen3ForCausalLM(Qwen3Config(**shape, attn_implementation="sdpa"))
    missing, unexpected = model.load_state_dict(load_file(folder / "initial.safetensors"), strict=False)
    assert set(missing) <= {"lm_head.weight"} and not unexpected, (missing, unexpected)
    model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(), betas=(0.9, 0.95), weight_decay=config["weight_decay"], fused=True)  # fmt: skip
    losses = []
    for step, rows in enumerate(tokens):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, config)
        micro_batches = rows.split(config["micro_batch"])
        loss_sum = 0.0
        for ids in micro_batches:
            logits = model(input_ids=ids).logits[:, :-1]
            loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.size(-1)), ids[:, 1:].reshape(-1))
            (loss / len(micro_batches)).backward()
            loss_sum += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config["max_norm"])
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss_sum / len(micro_batches))
    return losses


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=pathlib.Path)
    parser.add_argument("--rows", type=int, default=8, help="rows of the table")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    config, ours, tokens = read_run(arguments.run)
    started = time.process_time()
    theirs = train(arguments.run, config, tokens)
    print(f"PyTorch {torch.__version__}: {time.process_time() - started:.0f} processor seconds")
    per_step, window = tokens[0].numel(), max(1, len(ours) // arguments.rows)
    print("| tokens | Lockstep | PyTorch | difference |\n|---|---|---|---|")
    for last in range(window, len(ours) + 1, window):
        means = [sum(losses[last - window : last]) / window for losses in (ours, theirs)]
        print(f"| {last * per_step:,} | {means[0]:.4f} | {means[1]:.4f} | {means[0] - means[1]:+.4f} |")
    print(f"the first {min(10, len(ours))} steps differ by at most "
          f"{max(abs(a - b) for a, b in zip(ours[:10], theirs[:10])):.1e}")  # fmt: skip


if __name__ == "__main__":
    main()
