"""Makes qwen3_nf4/, qwen3_qlora/ and qwen3_int8/, a tiny Qwen3 that bitsandbytes has in 4 and 8 bits, and what PEFT learns
on it; and four_bit/, matrices.

    pip install torch==2.11.0 transformers==5.23.0 peft==0.21.2 accelerate==1.15.0 bitsandbytes==0.50.2
    python tests/models/make_four_bit.py

qwen3_nf4 is what save_pretrained writes after load_in_4bit: NF4 with double quantization, but layer 0's o_proj, which is
skipped. Its answers.safetensors holds the whole weights that bitsandbytes computes, logits, and a run of QLoRA: the
adapter before and after STEPS steps of AdamW, and the loss of each.

qwen3_qlora is the model of qwen3/ in NF4 without double quantization, qwen3_int8 the same in LLM.int8. What PEFT learns
in the cases of CASES is in qwen3_qlora/answers.safetensors: losses and the gradients of the first step; for some also the
bytes in 4 bits, layer 1 with the first adapter merged, and the last adapter; for LLM.int8 the logits without an adapter,
where bitsandbytes rounds inputs to 8 bits, too. On CPUs it does not in training. Tensors of several modules are one
vector, in the order of their names.

four_bit/matrices.safetensors: weights of several shapes and dtypes, and their forms in NF4 and FP4 with and without
double quantization. The magnitudes are rounded to 8 bits by bitsandbytes' default operator, as its kernels for GPUs do.
Its kernel for CPUs looks up a table instead, which is off by one in some places. Whole weights are those of its default
operator, too: its kernel for CPUs with AVX-512 takes magnitudes of other blocks where the length of rows is a multiple of
16 and not of 64.

four_bit/adamw8bit.safetensors is a run of its AdamW8bit with the same operators.
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
from bitsandbytes.backends.default.ops import _dequantize_4bit_compute
from bitsandbytes.backends.utils import CODE

HERE = pathlib.Path(__file__).parent
STEPS = 12
CONFIG = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-5, "max_position_embeddings": 40960,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "tie_word_embeddings": True,
}
# `dtype`: of the model; `compute`: in which layers in 4 bits multiply. Without a choice of `compute` transformers takes
# float32. "prepared" is a bfloat16 model after prepare_model_for_kbit_training, which makes all but these layers float32.
CASES = {
    "single": {"double": False, "dtype": torch.float32, "compute": torch.float32},
    "double": {"double": True, "dtype": torch.float32, "compute": torch.float32},
    "bfloat16": {"double": True, "dtype": torch.bfloat16, "compute": torch.bfloat16},
    "wide": {"double": True, "dtype": torch.bfloat16, "compute": None},
    "prepared": {"double": True, "dtype": torch.bfloat16, "compute": torch.bfloat16},
    "int8": {"dtype": torch.float32},
    "int8_bfloat16": {"dtype": torch.bfloat16},
}
FOLDERS = {"single": "qwen3_qlora", "int8": "qwen3_int8"}


def nearest(x, code, blocksize):
    """Rounds to the nearest of the 256 numbers, as the kernels for GPUs do. `code` is sorted."""
    flat = torch.nn.functional.pad(x.reshape(-1).float(), (0, -x.numel() % blocksize)).view(-1, blocksize)
    absmax = flat.abs().amax(1)
    scaled = (flat * (1.0 / absmax.clamp(min=1e-38)).view(-1, 1)).clamp(-1, 1)
    codes = torch.bucketize(scaled, (code[:-1] + code[1:]) / 2).to(torch.uint8)
    return codes.view(-1)[: x.numel()].view(x.shape), absmax


# The kernels' values of fp4. Those of the default operator are decimal numbers near them.
VALUES = {"nf4": CODE["nf4"], "fp4": torch.tensor([0, 0.0625, 8, 12, 4, 6, 2, 3, -0.0, -0.0625, -8, -12, -4, -6, -2, -3]) / 12}


def dequantize(packed, absmax, blocksize, quant_type, shape, dtype):
    """The default operator, as it is without torch.compile."""
    return _dequantize_4bit_compute.__wrapped__(packed.reshape(-1), absmax, VALUES[quant_type], blocksize, shape, dtype)


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


def flat(tensors):
    """One vector of tensors by name, in the order of the names."""
    return torch.cat([tensors[name].detach().reshape(-1) for name in sorted(tensors)])


def learn(case, tensors):
    """Quantizes the model of qwen3/ and trains an adapter on it. Adds what comes out to `tensors`."""
    dtype, is_int8 = CASES[case]["dtype"], case.startswith("int8")
    how = transformers.BitsAndBytesConfig(load_in_8bit=True) if is_int8 else transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=CASES[case]["double"],
        bnb_4bit_compute_dtype=CASES[case]["compute"])
    model = transformers.AutoModelForCausalLM.from_pretrained(HERE / "qwen3", quantization_config=how, dtype=dtype)
    if case in ("single", "int8"):
        folder = HERE / FOLDERS[case]
        model.save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
    states = {name: module.weight.quant_state for name, module in model.named_modules()
              if isinstance(module, bitsandbytes.nn.Linear4bit)}
    if case in ("double", "bfloat16"):
        tensors["absmax." + case] = flat({name: state.absmax for name, state in states.items()})
        tensors["nested_absmax." + case] = flat({name: state.state2.absmax for name, state in states.items()})
        tensors["packed." + case] = flat({name: model.get_submodule(name).weight for name in states})
    if case == "prepared":
        model = peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)

    ids = tensors["input_ids"][None]
    if case == "int8":
        with torch.no_grad():
            tensors["logits.int8"] = model(ids).logits[0]
    model = peft.get_peft_model(model, peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear")).train()
    adapter = {name: p for name, p in model.named_parameters() if p.requires_grad}
    torch.manual_seed(7)
    with torch.no_grad():
        for name in sorted(adapter):
            adapter[name].normal_(std=0.1)
    tensors["before"] = flat(adapter)
    if case in ("single", "bfloat16"):  # PEFT's merge adds these two, and rounds the sum to 4 bits again
        tensors["merged." + case] = flat({
            name: (bnb.dequantize_4bit(m.weight, m.weight.quant_state) + m.get_delta_weight("default"))
            for name, m in model.named_modules() if name.startswith("base_model.model.model.layers.1.")
            and isinstance(m, peft.tuners.lora.bnb.Linear4bit)}).to(dtype)
    losses, optimizer = [], torch.optim.AdamW(adapter.values(), lr=1e-2, weight_decay=0.01)
    for step in range(STEPS):
        loss = model(input_ids=ids, labels=ids).loss
        losses.append(loss.item())
        loss.backward()
        if step == 0:
            tensors["grad." + case] = flat({name: p.grad for name, p in adapter.items()}).to(dtype)
        optimizer.step()
        optimizer.zero_grad()
    tensors["losses." + case] = torch.tensor(losses, dtype=torch.float64)
    print(case, losses)
    if case == "single":
        tensors["after.single"] = flat(adapter)


def write_qlora(folder):
    tensors = {"input_ids": torch.arange(24).square().mul(7).remainder(61)}
    for case in CASES:
        learn(case, tensors)
    safetensors.torch.save_file(tensors, folder / "answers.safetensors")


def main():
    torch.set_num_threads(1)
    default = torch.library.Library("bitsandbytes", "IMPL")
    default.impl("quantize_blockwise", nearest, "CPU", allow_override=True)
    default.impl("dequantize_4bit", dequantize, "CPU", allow_override=True)
    for name in ("qwen3_nf4", "four_bit", *FOLDERS.values()):
        (HERE / name).mkdir(exist_ok=True)
    write_model(HERE / "qwen3_nf4")
    write_qlora(HERE / FOLDERS["single"])
    write_matrices(HERE / "four_bit")
    write_adamw8bit(HERE / "four_bit")


if __name__ == "__main__":
    main()
