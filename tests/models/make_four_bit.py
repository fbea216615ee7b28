"""Makes qwen3_nf4/, a tiny Qwen3 that bitsandbytes has in 4 bits, and what PEFT learns on it; and four_bit/, matrices.

    pip install torch==2.11.0 transformers==5.23.0 peft==0.21.2 accelerate==1.15.0 bitsandbytes==0.50.2
    python tests/models/make_four_bit.py

qwen3_nf4 is what save_pretrained writes after load_in_4bit: NF4 with double quantization, but layer 0's o_proj, which is
skipped. Its answers.safetensors holds the whole weights that bitsandbytes computes, logits, and a run of QLoRA: the
adapter before and after STEPS steps of AdamW, and the loss of each.

four_bit/matrices.safetensors: weights of several shapes and dtypes, and their forms in NF4 and FP4 with and without
double quantization. The magnitudes are rounded to 8 bits by bitsandbytes' default operator, as its kernels for GPUs do.
Its kernel for CPUs looks up a table instead, which is off by one in some places. four_bit/adamw8bit.safetensors is a run
of its AdamW8bit with the same operator.
"""

import json
import pathlib
import tempfile

import bitsandbytes
import bitsandbytes.functional as bnb
import peft
import safetensors.torch
import torch
import transformers
from bitsandbytes.backends.utils import CODE

HERE = pathlib.Path(__file__).parent
STEPS = 12
CONFIG = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-5, "max_position_embeddings": 40960,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "tie_word_embeddings": True,
}


def nearest(x, code, blocksize):
    """Rounds to the nearest of the 256 numbers, as the kernels for GPUs do. `code` is sorted."""
    flat = torch.nn.functional.pad(x.reshape(-1).float(), (0, -x.numel() % blocksize)).view(-1, blocksize)
    absmax = flat.abs().amax(1)
    scaled = (flat * (1.0 / absmax.clamp(min=1e-38)).view(-1, 1)).clamp(-1, 1)
    codes = torch.bucketize(scaled, (code[:-1] + code[1:]) / 2).to(torch.uint8)
    return codes.view(-1)[: x.numel()].view(x.shape), absmax


def quantize(weight, kind, double):
    """Returns the tensors that a folder would have, by the end of their names."""
    packed, absmax = torch.ops.bitsandbytes.quantize_4bit.default(weight, 64, kind, torch.uint8)
    dtype = str(weight.dtype).removeprefix("torch.")
    tensors = {"": packed, ".quant_map": CODE[kind].clone()}
    about = {"quant_type": kind, "blocksize": 64, "dtype": dtype, "shape": list(weight.shape)}
    if double:
        offset, code = absmax.mean(), bnb.create_dynamic_map()
        codes, nested = nearest(absmax - offset, code, 256)
        tensors |= {".absmax": codes, ".nested_absmax": nested, ".nested_quant_map": code}
        about |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset.item()}
        absmax = bnb.dequantize_blockwise(codes, absmax=nested, code=code, blocksize=256) + offset
    else:
        tensors[".absmax"] = absmax
    tensors[f".quant_state.bitsandbytes__{kind}"] = torch.tensor(list(json.dumps(about).encode()), dtype=torch.uint8)
    whole = torch.ops.bitsandbytes.dequantize_4bit.default(packed, absmax, 64, kind, weight.shape, weight.dtype)
    return tensors, whole


def write_matrices(folder):
    torch.manual_seed(3)
    tensors = {}
    for shape, dtype in (((24, 64), torch.float32), ((7, 30), torch.bfloat16), ((350, 48), torch.float16)):
        weight = (torch.randn(shape) * torch.randn(shape[0], 1).exp()).to(dtype)
        for kind in ("nf4", "fp4"):
            for double in (False, True):
                name = f"{shape[0]}.{kind}.{double}"
                parts, whole = quantize(weight, kind, double)
                tensors |= {name + end: part for end, part in parts.items()} | {"whole." + name: whole}
        tensors[f"weight.{shape[0]}"] = weight
    tensors["signed"], tensors["unsigned"] = bnb.create_dynamic_map(True), bnb.create_dynamic_map(False)
    safetensors.torch.save_file(tensors, folder / "matrices.safetensors")


def write_adamw8bit(folder):
    """A parameter of whole blocks, one with a last block that is not whole, and one too small for 8 bits."""
    default = torch.library.Library("bitsandbytes", "IMPL")
    default.impl("quantize_blockwise", nearest, "CPU", allow_override=True)
    torch.manual_seed(4)
    parameters = [torch.nn.Parameter(torch.randn(n)) for n in (4096, 4099, 300)]
    tensors = {f"before.{i}": p.detach().clone() for i, p in enumerate(parameters)}
    optimizer = bitsandbytes.optim.AdamW8bit(parameters, lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(3):
        for i, p in enumerate(parameters):
            p.grad = torch.randn(p.shape) * 10.0 ** torch.randint(-4, 2, (1,))
            tensors[f"grad.{i}.{step}"] = p.grad.clone()
        optimizer.step()
        for i, p in enumerate(parameters):
            tensors[f"after.{i}.{step}"] = p.detach().clone()
    for i, p in enumerate(parameters):
        for name in ("state1", "state2", "absmax1", "absmax2"):
            if name in optimizer.state[p]:
                tensors[f"{name}.{i}"] = optimizer.state[p][name]
    safetensors.torch.save_file(tensors, folder / "adamw8bit.safetensors")


def write_model(folder):
    torch.manual_seed(5)
    config = transformers.Qwen3Config(**CONFIG)
    model = transformers.Qwen3ForCausalLM(config)
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.2)
    how = transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float32, llm_int8_skip_modules=["model.layers.0.self_attn.o_proj", "lm_head"])
    with tempfile.TemporaryDirectory() as whole:
        model.save_pretrained(whole)
        model = transformers.AutoModelForCausalLM.from_pretrained(whole, quantization_config=how, dtype=torch.float32)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    tensors = {}
    for name, module in model.named_modules():
        if isinstance(module, bitsandbytes.nn.Linear4bit):
            tensors[f"whole.{name}.weight"] = bnb.dequantize_4bit(module.weight, module.weight.quant_state)
    ids = torch.randint(61, (1, 24))
    tensors |= {"input_ids": ids[0], "logits": model(ids).logits[0].detach()}

    torch.manual_seed(6)
    lora = peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    model = peft.get_peft_model(model, lora).train()
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}

    def keep(when):
        tensors.update({f"{when}.{name.replace('.default', '')}": p.detach().clone() for name, p in trained.items()})

    keep("before")
    optimizer, losses = torch.optim.AdamW(trained.values(), lr=1e-2, weight_decay=0.0), []
    for _ in range(STEPS):
        loss = model(input_ids=ids, labels=ids).loss
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    keep("after")
    tensors["losses"] = torch.tensor(losses)
    safetensors.torch.save_file(tensors, folder / "answers.safetensors")
    print(losses)


def main():
    torch.set_num_threads(1)
    for name in ("qwen3_nf4", "four_bit"):
        (HERE / name).mkdir(exist_ok=True)
    write_model(HERE / "qwen3_nf4")
    write_matrices(HERE / "four_bit")
    write_adamw8bit(HERE / "four_bit")


if __name__ == "__main__":
    main()
