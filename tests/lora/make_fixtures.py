"""Writes fixtures/: adapters as PEFT saves them, and what PEFT computes with them, for tests in Lua.

    pip install torch==2.11.0 peft==0.21.2 transformers==5.23.0 safetensors==0.8.0
    python tests/lora/make_fixtures.py tests/lora/fixtures

Each case is a folder with adapter_config.json, adapter_model.safetensors and expected.safetensors: logits in
evaluation, the gradients of every trained parameter in training (dropout under the seed 7) by PEFT's own keys, and the
weights after merging. The test is driver/lualib/lockstep/lora/lora_peft_test.lua.

The folders random_* have random configurations, most of them with patterns of ranks and alphas whose names overlap, and
the logits in evaluation alone. The folders tied_* are of tests/models/llama_tied, whose head is its embedding.
"""

import json
import pathlib
import random
import sys
import warnings

import peft
import safetensors.torch
import torch
import transformers

from tiny import Tiny, TinyMixture, VOCABULARY

assert torch.__version__.startswith("2.11.0"), torch.__version__
assert peft.__version__ == "0.21.2", peft.__version__
assert transformers.__version__ == "5.23.0", transformers.__version__
torch.set_num_threads(1)

ATTENTION = ["q_proj", "v_proj"]

CASES = {
    "plain": {"r": 3, "lora_alpha": 6, "target_modules": ATTENTION},
    "rslora": {"r": 4, "lora_alpha": 5, "target_modules": ["o_proj"], "use_rslora": True},
    "dropout": {"r": 2, "lora_alpha": 2, "target_modules": ATTENTION, "lora_dropout": 0.25},
    "dora": {"r": 3, "lora_alpha": 6, "target_modules": ATTENTION + ["o_proj"], "use_dora": True},
    "dora_dropout": {"r": 3, "lora_alpha": 6, "target_modules": ATTENTION, "use_dora": True, "lora_dropout": 0.25},
    "whole": {"r": 2, "lora_alpha": 8, "target_modules": ATTENTION, "modules_to_save": ["lm_head", "embed_tokens"]},
    "patterns": {"r": 2, "lora_alpha": 3, "target_modules": ATTENTION, "rank_pattern": {"q_proj": 4},
                 "alpha_pattern": {"layers.1.v_proj": 7}},
    "regex": {"r": 2, "lora_alpha": 4, "target_modules": r"layers\.1\.[qo]_proj"},
    "experts": {"r": 2, "lora_alpha": 3, "target_modules": ["q_proj"],
                "target_parameters": ["experts.gate_up_proj", "experts.down_proj"]},
    "one_of_experts": {"r": 2, "lora_alpha": 3, "target_modules": ["q_proj"], "target_parameters": ["down_proj"]},
    "bfloat16": {"r": 3, "lora_alpha": 6, "target_modules": ATTENTION},
    "bfloat16_dora": {"r": 3, "lora_alpha": 6, "target_modules": ATTENTION, "use_dora": True},
}


RANDOM = 16  # configurations of each model

# Names of patterns: each matches by its end, as a regular expression.
NAMES = {
    "random": ["q_proj", "0.q_proj", "layers.0.q_proj", "v_proj", "layers.1.v_proj", "1.o_proj", "o_proj", "layers.0.o.proj",
               "^layers.1.q_proj", "^q_proj", r"layers\.0\.v_proj"],
    "random_experts": ["q_proj", "^q_proj", "gate_up_proj", "experts.gate_up_proj", "down_proj", "experts.down.proj", "experts",
                       "^experts.down_proj"],
}


TIED = {"tied_head": ["lm_head"], "tied_embedding": ["embed_tokens"], "tied_both": ["embed_tokens", "lm_head"]}


def random_pattern(source, names):
    chosen = source.sample(names, source.randint(0, 5))
    return {name: source.randint(1, 7) for name in chosen}


def random_options(kind, source):
    """Returns a configuration of LoRA for a model."""
    options = {"r": source.randint(1, 5), "lora_alpha": source.choice([1, 3, 8]), "use_rslora": source.random() < 0.3,
               "rank_pattern": random_pattern(source, NAMES[kind]), "alpha_pattern": random_pattern(source, NAMES[kind])}
    if kind == "random_experts":
        parameters = source.choice([["experts.gate_up_proj", "experts.down_proj"], ["gate_up_proj"], ["experts.down_proj"]])
        return {**options, "target_modules": ["q_proj"], "target_parameters": parameters}
    options["use_dora"] = source.random() < 0.3
    options["lora_dropout"] = source.choice([0, 0.1])
    options["target_modules"] = source.choice([["q_proj", "v_proj"], ["q_proj", "o_proj", "v_proj"], ["layers.0.v_proj", "q_proj"],
                                               r"layers\.\d\.[qv]_proj", r".*_proj"])
    if isinstance(options["target_modules"], list):
        more = source.choice([{}, {}, {"modules_to_save": ["lm_head"]}, {"exclude_modules": ["layers.1.q_proj"]},
                              {"layers_to_transform": [1], "layers_pattern": "layers"}])
        options.update(more)
    return options


def loss_of(logits):
    weights = torch.arange(logits.numel(), dtype=torch.float32).reshape(logits.shape).cos()
    return (logits.float() * weights).sum()


def disk_key(name):
    return name.replace(".default", "").replace(".modules_to_save", "").replace("lora_magnitude_vector.weight",
                                                                              "lora_magnitude_vector")


def model_of(case):
    return TinyMixture() if "experts" in case else Tiny()


def adapted(folder, model, options):
    """Returns the model with adapters that are written into the folder."""
    model = peft.get_peft_model(model, peft.LoraConfig(**options))
    torch.manual_seed(11)
    with torch.no_grad():
        # lora_B is 0 at first, and would hide lora_A.
        for p in model.parameters():
            if p.requires_grad:
                p.add_(torch.randn_like(p) * 0.3)
    model.save_pretrained(folder)
    (folder / "README.md").unlink()
    return model


def write_random(folder, kind, number, ids, base):
    model, again = model_of(kind), model_of(kind)
    model.load_state_dict(base)
    again.load_state_dict(base)
    options = random_options(kind, random.Random(f"{kind} {number}"))
    torch.manual_seed(number)
    model = adapted(folder, model, options).eval()
    # PEFT sorts the keys, and then reads other ranks and alphas than it has written.
    path = folder / "adapter_config.json"
    config = json.loads(path.read_text())
    config.update({key: options[key] for key in ("rank_pattern", "alpha_pattern")})
    if isinstance(config["target_modules"], list):
        config["target_modules"].sort()
    path.write_text(json.dumps(config, indent=2) + "\n")
    again = peft.PeftModel.from_pretrained(again, folder).eval()
    with torch.no_grad():
        assert torch.equal(model(ids), again(ids))
        safetensors.torch.save_file({"ids": ids, "logits": model(ids)}, folder / "expected.safetensors")


def write_tied(folder, names, keeps_tie, ids):
    """Without ensure_weight_tying PEFT trains a head of its own."""
    model = transformers.AutoModelForCausalLM.from_pretrained(pathlib.Path(__file__).parent.parent / "models" / "llama_tied")
    model.name_or_path = None  # no path of this machine in the folder
    torch.manual_seed(12)
    model = adapted(folder, model, {"r": 2, "lora_alpha": 3, "target_modules": ["q_proj"], "modules_to_save": list(names),
                                    "ensure_weight_tying": keeps_tie})
    logits = model(ids[None]).logits[0]
    loss_of(logits).backward()
    expected = {"ids": ids, "logits": logits.detach()}
    for name, p in model.named_parameters():
        if p.grad is not None:
            expected["grad." + disk_key(name)] = p.grad
    safetensors.torch.save_file(expected, folder / "expected.safetensors")


def write_case(folder, case, options, ids, base):
    model = model_of(case)
    model.load_state_dict(base)
    if case.startswith("bfloat16"):
        model = model.bfloat16()
    model = adapted(folder, model, options)
    expected = {"ids": ids}
    model.eval()
    with torch.no_grad():
        expected["logits"] = model(ids)
        with model.disable_adapter():
            expected["disabled"] = model(ids)
    model.train()
    torch.manual_seed(7)
    logits = model(ids)
    expected["train"] = logits.detach()
    loss_of(logits).backward()
    for name, p in model.named_parameters():
        if p.grad is not None:
            expected["grad." + disk_key(name)] = p.grad
    merged = model.merge_and_unload()
    for name, tensor in merged.state_dict().items():
        expected["merged." + name] = tensor
    safetensors.torch.save_file({k: v.contiguous().clone() for k, v in expected.items()},
                                folder / "expected.safetensors")


def main(folder):
    folder = pathlib.Path(folder)
    folder.mkdir(exist_ok=True)
    bases = {}
    for case, name in {"plain": "base.safetensors", "experts": "base_experts.safetensors"}.items():
        torch.manual_seed(5)
        model = model_of(case)
        with torch.no_grad():
            for p in model.parameters():
                p.normal_(0, 0.5)
        bases[type(model)] = model.state_dict()
        safetensors.torch.save_file(model.state_dict(), folder / name)
    torch.manual_seed(6)
    ids = torch.randint(VOCABULARY, (7,))
    for case, options in CASES.items():
        write_case(folder / case, case, options, ids, bases[type(model_of(case))])
    warnings.filterwarnings("ignore", "The following .*_pattern keys did not match")
    for case, names in TIED.items():
        write_tied(folder / case, names, False, ids)
        write_tied(folder / f"{case}_kept", names, True, ids)
    for kind in NAMES:
        for number in range(RANDOM):
            write_random(folder / f"{kind}_{number:02}", kind, number, ids, bases[type(model_of(kind))])


if __name__ == "__main__":
    main(sys.argv[1])
