"""The peer of qlora_benchmark.lua: transformers, PEFT and bitsandbytes. Without STEPS makes the model's folder.

    python benchmarks/qlora_benchmark.py FOLDER [STEPS [whole]]
"""

import pathlib
import sys
import time

import peft
import torch
import transformers

TOKENS = 256


def make(folder):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None, dtype=torch.bfloat16)
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def memory_mib():
    status = pathlib.Path("/proc/self/status").read_text()
    return [int(status.split(name + ":")[1].split()[0]) / 1024 for name in ("VmRSS", "VmHWM")]


def main(folder, steps, kind):
    torch.set_num_threads(1)
    begin = time.process_time()
    how = None
    if kind != "whole":
        how = transformers.BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, quantization_config=how)
    model = peft.get_peft_model(model, peft.LoraConfig(r=16, lora_alpha=32, target_modules="all-linear",
                                                       task_type="CAUSAL_LM")).train()
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    with torch.no_grad():
        for name, p in trained.items():
            p.data = p.data.float()
            if "lora_A" in name:
                p.copy_((torch.arange(p.numel(), dtype=torch.float32) * 0.7).sin().view(p.shape) * 0.02)
    print(f"load_s {time.process_time() - begin:.2f}")
    print(f"model_mib {sum(t.numel() * t.element_size() for t in model.state_dict().values()) / 2**20:.1f}")
    print(f"rss_loaded_mib {memory_mib()[0]:.0f}")
    ids = (torch.arange(TOKENS) * 7919).remainder(model.config.vocab_size)[None]
    optimizer = torch.optim.AdamW(trained.values(), lr=1e-3, weight_decay=0.0)
    for step in range(1, steps + 1):
        start = time.process_time()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} loss {loss.item():.4f} cpu_s {time.process_time() - start:.2f}")
    print(f"peak_mib {memory_mib()[1]:.0f}")


if __name__ == "__main__":
    if len(sys.argv) == 2:
        make(sys.argv[1])
    else:
        main(sys.argv[1], int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "")
