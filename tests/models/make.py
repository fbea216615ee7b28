"""Makes the folders here: tiny models with random weights, and what transformers computes with them.

    pip install torch==2.11.0 transformers==5.23.0 safetensors==0.8.0
    python tests/models/make.py [NAME ...]

Each folder holds config.json, the weights as transformers or an older version of it wrote them, and
answers.safetensors: packed input_ids, seq_lens, position_ids and loss_mask; logits, the summed loss and its
gradient for each parameter; log-probabilities and entropies; and 64 greedy ids after each prompt.

Every parameter is random, norms and biases too, because defaults hide mistakes. No two sizes of a weight are equal.
"""

import json
import pathlib
import sys
import tempfile

import safetensors.torch
import torch
import transformers

HERE = pathlib.Path(__file__).parent
VERSIONS = {"torch": "2.11.0", "transformers": "5.23.0", "safetensors": "0.8.0"}
LENGTHS = (9, 13, 6)
STARTS = (0, 40, 31000)  # of the position ids: the last one is a long context

COMMON = {
    "vocab_size": 61, "hidden_size": 20, "intermediate_size": 36, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-5, "max_position_embeddings": 40960,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}

# Per folder: the class, what its config adds, and how it is written: "v4" is the form of transformers 4, "shards" are
# two files with an index, "packed" and "transposed" are other forms of experts.
FOLDERS = {
    "llama": ("Llama", {
        "hidden_size": 18,
        "attention_bias": True, "mlp_bias": True,
        "rope_parameters": {"rope_type": "llama3", "rope_theta": 5000.0, "factor": 8.0, "low_freq_factor": 1.0,
                            "high_freq_factor": 4.0, "original_max_position_embeddings": 64}}, ("v4",)),
    "llama_tied": ("Llama", {
        "hidden_size": 24, "head_dim": 10, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}}, ()),
    "qwen2": ("Qwen2", {
        "hidden_size": 24, "head_dim": None, "tie_word_embeddings": True, "use_sliding_window": True,
        "sliding_window": 5, "max_window_layers": 1}, ("v4",)),
    "qwen3": ("Qwen3", {"tie_word_embeddings": True, "rope_parameters": {"rope_theta": 1e6}}, ()),
    "qwen3_yarn": ("Qwen3", {
        "attention_bias": True,
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0,
                            "original_max_position_embeddings": 128}}, ("v4", "shards")),
    "mistral": ("Mistral", {"sliding_window": 5}, ("v4",)),
    "ministral": ("Ministral", {"sliding_window": 4, "layer_types": ["full_attention", "sliding_attention"]}, ()),
    "smollm3": ("SmolLM3", {
        "hidden_size": 18, "head_dim": 8, "num_hidden_layers": 3, "no_rope_layers": [1, 0, 0],
        "use_sliding_window": True, "sliding_window": 6,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "tie_word_embeddings": True}, ("v4",)),
    "granite": ("Granite", {
        "attention_bias": True, "embedding_multiplier": 3.0, "residual_multiplier": 0.7, "attention_multiplier": 0.21,
        "logits_scaling": 1.7, "tie_word_embeddings": True}, ()),
    "gemma3": ("Gemma3Text", {
        "num_hidden_layers": 3, "sliding_window": 5, "query_pre_attn_scalar": 11, "hidden_size": 18,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {"full_attention": {"rope_type": "linear", "rope_theta": 50000.0, "factor": 4.0},
                            "sliding_attention": {"rope_type": "default", "rope_theta": 300.0}}}, ()),
    "gemma3_v4": ("Gemma3Text", {
        "num_hidden_layers": 3, "sliding_window": 6, "query_pre_attn_scalar": 8, "hidden_size": 24,
        "sliding_window_pattern": 2,
        "rope_parameters": {"full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}}, ("v4",)),
    "olmo2": ("Olmo2", {"hidden_size": 24, "head_dim": None}, ()),
    "olmo3": ("Olmo3", {
        "hidden_size": 24, "head_dim": None, "attention_bias": True, "num_hidden_layers": 4, "sliding_window": 5,
        "rope_parameters": {"full_attention": {"rope_type": "yarn", "rope_theta": 5e5, "factor": 8.0,
                                               "attention_factor": 1.3, "original_max_position_embeddings": 256},
                            "sliding_attention": {"rope_type": "default", "rope_theta": 5e5}}}, ("v4",)),
    "phi3": ("Phi3", {"hidden_size": 24, "head_dim": None, "sliding_window": 7}, ("v4",)),
    "phi3_longrope": ("Phi3", {
        "hidden_size": 48, "head_dim": None, "max_position_embeddings": 96, "original_max_position_embeddings": 11,
        "rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.75,
                            "short_factor": [1.0, 1.1, 1.4], "long_factor": [1.5, 2.5, 6.0]}}, ("v4",)),
    "llama_dynamic": ("Llama", {
        "hidden_size": 24, "max_position_embeddings": 11,
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 3.0}}, ()),
    "gpt_oss": ("GptOss", {
        "num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 12, "sliding_window": 6,
        "num_hidden_layers": 3, "swiglu_limit": 1.5, "output_router_logits": True, "router_aux_loss_coef": 0.1,
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 8.0, "beta_fast": 32.0,
                            "beta_slow": 1.0, "truncate": False, "original_max_position_embeddings": 512}}, ("v4",)),
    "deepseek_v3": ("DeepseekV3", {
        "num_hidden_layers": 3, "first_k_dense_replace": 1, "num_attention_heads": 3, "num_key_value_heads": 3,
        "head_dim": None, "hidden_size": 24, "moe_intermediate_size": 12, "n_shared_experts": 2, "n_routed_experts": 9,
        "num_experts_per_tok": 3, "n_group": 3, "topk_group": 2, "routed_scaling_factor": 1.3, "q_lora_rank": 14,
        "kv_lora_rank": 10, "qk_rope_head_dim": 6, "qk_nope_head_dim": 8, "v_head_dim": 11, "num_mtp_layers": 0,
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "beta_fast": 32, "beta_slow": 1,
                            "mscale": 1.0, "mscale_all_dim": 0.7, "original_max_position_embeddings": 512}}, ("v4",)),
    "deepseek_v3_plain": ("DeepseekV3", {
        "num_hidden_layers": 2, "first_k_dense_replace": 0, "num_attention_heads": 3, "num_key_value_heads": 3,
        "head_dim": None, "hidden_size": 24, "moe_intermediate_size": 10, "n_routed_experts": 4, "attention_bias": True,
        "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "norm_topk_prob": False, "q_lora_rank": None,
        "kv_lora_rank": 10, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 13, "num_mtp_layers": 0,
        "rope_interleave": False, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, ()),
    "mixtral": ("Mixtral", {
        "num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 12, "sliding_window": 6,
        "output_router_logits": True, "router_aux_loss_coef": 0.1}, ()),
    "qwen3_moe": ("Qwen3Moe", {
        "num_hidden_layers": 3, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
        "norm_topk_prob": True, "mlp_only_layers": [1], "output_router_logits": True,
        "router_aux_loss_coef": 0.1}, ()),
    "qwen3_next": ("Qwen3Next", {
        "num_hidden_layers": 3, "hidden_size": 20, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 16,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"], "intermediate_size": 22,
        "linear_conv_kernel_dim": 3, "linear_key_head_dim": 6, "linear_value_head_dim": 10, "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
        "shared_expert_intermediate_size": 14, "mlp_only_layers": [1], "output_router_logits": True,
        "router_aux_loss_coef": 0.1,
        "rope_parameters": {"rope_theta": 1e4, "rope_type": "default", "partial_rotary_factor": 0.25}}, ()),
    "qwen3_moe_packed": ("Qwen3Moe", {
        "num_experts": 4, "num_experts_per_tok": 3, "moe_intermediate_size": 10, "hidden_size": 18,
        "decoder_sparse_step": 2}, ("v4", "transposed")),
}


def check_versions():
    for name, version in VERSIONS.items():
        found = __import__(name).__version__.split("+")[0]
        if found != version:
            sys.exit(f"{name} is {found}; the fixtures are made with {version}")


def build(kind, options):
    """Returns a model whose parameters are all random."""
    config_options = {**COMMON, **options}
    if config_options["head_dim"] is None:
        del config_options["head_dim"]
    config = getattr(transformers, kind + "Config")(**config_options)
    kind = kind.removesuffix("Text")
    config.architectures = [kind + "ForCausalLM"]
    config.dtype = "float32"
    config._experts_implementation = "eager"  # the other one wants weights in multiples of 16 bytes
    model = getattr(transformers, kind + "ForCausalLM")._from_config(config, dtype=torch.float32)
    return randomize(model, kind).eval()


def randomize(model, kind):
    """Gives all parameters random values."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                is_zero_centred = kind == "Gemma3" or kind == "Qwen3Next" and "linear_attn" not in name
                parameter.copy_((not is_zero_centred) + 0.3 * noise)
            elif name.endswith(("bias", "sinks", "A_log")):
                parameter.copy_(0.3 * noise)
            else:
                parameter.copy_(noise * 1.2 / parameter.shape[-1] ** 0.5)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(0.3 * torch.randn(buffer.shape, generator=generator))
    return model


def as_version_4(config):
    """Returns a config.json in the form that transformers 4 wrote."""
    rope = config.pop("rope_parameters", None) or {}
    if "full_attention" in rope:  # layers with a window have frequencies of their own
        windowed, rope = rope["sliding_attention"], rope["full_attention"]
        if config["model_type"] == "gemma3_text":
            config["rope_local_base_freq"] = windowed["rope_theta"]
            config["sliding_window_pattern"] = config.pop("_sliding_window_pattern")
            del config["layer_types"]
    config["rope_theta"] = rope.pop("rope_theta", 10000.0)
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        config["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    config["rope_scaling"] = rope if rope.get("rope_type", "default") != "default" else None
    config["torch_dtype"] = config.pop("dtype")
    if "num_local_experts" in config:
        config["num_experts"] = config.pop("num_local_experts")
    config["transformers_version"] = "4.51.0"
    return config


def pack_experts(state, transposed):
    """Joins the experts of each layer in two tensors."""
    layers = {}
    for name in [n for n in state if ".experts." in n]:
        prefix, rest = name.split(".experts.")
        index, which = rest.split(".")[:2]
        layers.setdefault(prefix, {}).setdefault(which, {})[int(index)] = state.pop(name)
    for prefix, parts in layers.items():
        stacked = {w: torch.stack([t for _, t in sorted(ts.items())]) for w, ts in parts.items()}
        packed = {"gate_up_proj": torch.cat([stacked["gate_proj"], stacked["up_proj"]], 1),
                  "down_proj": stacked["down_proj"]}
        for which, tensor in packed.items():
            tensor = tensor.transpose(1, 2) if transposed else tensor
            state[f"{prefix}.experts.{which}"] = tensor.contiguous()
    return state


def write(folder, model, forms):
    model.save_pretrained(folder)
    for name in ("generation_config.json",):
        (folder / name).unlink(missing_ok=True)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    if "v4" in forms:
        config = as_version_4(config)
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    weights = folder / "model.safetensors"
    state = safetensors.torch.load_file(weights)
    if "packed" in forms or "transposed" in forms:
        state = pack_experts(state, "transposed" in forms)
        safetensors.torch.save_file(state, weights, {"format": "pt"})
    if "shards" in forms:
        weights.unlink()
        names = sorted(state)
        parts = (names[: len(names) // 2], names[len(names) // 2 :])
        index = {"metadata": {"total_size": sum(t.nbytes for t in state.values())}, "weight_map": {}}
        for i, part in enumerate(parts, 1):
            file = f"model-{i:05d}-of-00002.safetensors"
            safetensors.torch.save_file({n: state[n] for n in part}, folder / file)
            index["weight_map"].update({n: file for n in part})
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def forget(model):
    """Frequencies of "dynamic" depend on earlier sequences, too: makes them anew."""
    if (model.config.rope_parameters or {}).get("rope_type") == "dynamic":
        model.model.rotary_emb = type(model.model.rotary_emb)(model.config)


def answers(model):
    """What transformers computes, one sequence at a time."""
    generator = torch.Generator().manual_seed(11)
    total = sum(LENGTHS)
    ids = torch.randint(0, COMMON["vocab_size"], (total,), generator=generator)
    mask = torch.rand(total, generator=generator) < 0.7
    positions = torch.cat([start + torch.arange(n) for start, n in zip(STARTS, LENGTHS)])
    logits, routers = [], []
    for part, position in zip(ids.split(LENGTHS), positions.split(LENGTHS)):
        forget(model)
        # A mask of ones: without one transformers would look for packed rows in the position ids.
        output = model(input_ids=part[None], position_ids=position[None], attention_mask=torch.ones_like(part)[None])
        logits.append(output.logits[0])
        routers.append(getattr(output, "router_logits", None))
    loss, log_probs, entropies, count = 0, [], [], 0
    for part, counted, row in zip(ids.split(LENGTHS), mask.split(LENGTHS), logits):
        distribution = torch.log_softmax(row.float(), -1)
        own = distribution[:-1].gather(-1, part[1:, None])[:, 0]
        entropy = -(distribution.exp() * distribution).sum(-1)[:-1]
        log_probs += [torch.zeros(1), own]
        entropies += [torch.zeros(1), entropy]
        loss = loss - own[counted[1:]].sum()
        count += int(counted[1:].sum())
    result = {"input_ids": ids, "position_ids": positions, "loss_mask": mask, "seq_lens": torch.tensor(LENGTHS),
              "logits": torch.cat(logits), "count": torch.tensor(count), "log_probs": torch.cat(log_probs),
              "entropy": torch.cat(entropies)}
    if getattr(model.config, "output_router_logits", False):
        module = sys.modules[type(model).__module__]
        layers = tuple(torch.cat(layer) for layer in zip(*routers))
        balance = module.load_balancing_loss_func(layers, model.num_experts, model.num_experts_per_tok)
        loss = loss + model.router_aux_loss_coef * balance * count
    loss.backward()
    result["loss"] = loss
    for name, parameter in model.named_parameters():
        result["gradient." + name] = parameter.grad
    prompts = (ids[: LENGTHS[0]], ids[LENGTHS[0] : LENGTHS[0] + LENGTHS[1]], ids[-3:])
    generated = []
    for p in prompts:
        forget(model)
        with torch.no_grad():
            generated.append(model.generate(p[None], max_new_tokens=64, do_sample=False)[0, len(p) :])
    result["generated"] = torch.stack(generated)
    return {name: tensor.detach().contiguous() for name, tensor in result.items()}


def quantize_experts(state, generator):
    """Replaces the experts of gpt-oss by random blocks of MXFP4, and returns the values that transformers makes of them."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    values = {}
    for name in [n for n in state if n.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, columns, rows = state.pop(name).shape
        blocks = torch.randint(0, 256, (experts, rows, columns // 32, 16), dtype=torch.uint8, generator=generator)
        scales = torch.randint(122, 126, (experts, rows, columns // 32), dtype=torch.uint8, generator=generator)
        state[name + "_blocks"], state[name + "_scales"] = blocks, scales
        values[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    return values


def quantize_blocks(state, size):
    """Replaces matrices by FP8 with a factor for each block, and returns their values."""
    values = {}
    for name in [n for n in state if n.endswith("proj.weight")]:
        rows, columns = state[name].shape
        factors = torch.empty(-(-rows // size[0]), -(-columns // size[1]))
        weight, value = torch.empty(rows, columns, dtype=torch.float8_e4m3fn), torch.empty(rows, columns)
        for i in range(factors.shape[0]):
            for j in range(factors.shape[1]):
                block = (slice(i * size[0], (i + 1) * size[0]), slice(j * size[1], (j + 1) * size[1]))
                factors[i, j] = state[name][block].abs().max() / 448
                weight[block] = (state[name][block] / factors[i, j]).to(torch.float8_e4m3fn)
                value[block] = weight[block].float() * factors[i, j]
        state[name], state[name + "_scale_inv"], values[name] = weight, factors, value
    return values


# Per folder with quantized weights: the class, what its config adds, quantization_config, and what replaces weights.
QUANTIZED = {
    "gpt_oss_mxfp4": ("GptOss", {
        "num_local_experts": 3, "num_experts_per_tok": 2, "hidden_size": 64, "intermediate_size": 32,
        "sliding_window": 6},
        {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]},
        lambda state: quantize_experts(state, torch.Generator().manual_seed(3))),
    "deepseek_v3_fp8": ("DeepseekV3", {
        "first_k_dense_replace": 1, "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": None,
        "hidden_size": 20, "moe_intermediate_size": 12, "n_routed_experts": 6, "num_experts_per_tok": 2, "n_group": 3,
        "topk_group": 2, "q_lora_rank": 14, "kv_lora_rank": 10, "qk_rope_head_dim": 6, "qk_nope_head_dim": 8,
        "v_head_dim": 11, "num_mtp_layers": 0},
        {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [8, 16]},
        lambda state: quantize_blocks(state, (8, 16))),
}


def quantized(folder, kind, options, how, replace):
    """Writes quantized weights, and the logits and greedy ids of a model that has their values."""
    model = build(kind, options)
    write(folder, model, ())
    path = folder / "model.safetensors"
    state = safetensors.torch.load_file(path)
    values = replace(state)
    safetensors.torch.save_file(state, path, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = how
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    with tempfile.TemporaryDirectory() as temporary:
        plain = {n: t for n, t in {**state, **values}.items() if not n.endswith(("_blocks", "_scales", "_scale_inv"))}
        safetensors.torch.save_file(plain, pathlib.Path(temporary) / "model.safetensors", {"format": "pt"})
        model.config.save_pretrained(temporary)
        whole = type(model).from_pretrained(temporary, experts_implementation="eager").eval()
    all_answers = answers(whole)
    kept = ("input_ids", "position_ids", "loss_mask", "seq_lens", "logits", "generated")
    return {name: all_answers[name] for name in kept}


ROTARY = {
    "default": {"dim": 128, "rope_theta": 1e6},
    "linear": {"dim": 64, "rope_theta": 1e4, "rope_type": "linear", "factor": 4.0},
    "llama3": {"dim": 128, "rope_theta": 5e5, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
    "yarn": {"dim": 128, "rope_theta": 1e6, "rope_type": "yarn", "factor": 4.0,
             "original_max_position_embeddings": 32768},
    "yarn_scales": {"dim": 64, "rope_theta": 1e4, "rope_type": "yarn", "factor": 40.0, "mscale": 1.0,
                    "mscale_all_dim": 0.8, "beta_fast": 16, "beta_slow": 2, "truncate": False,
                    "original_max_position_embeddings": 4096},
}


# Per folder with a head for sequence classification: the family, and what its config adds.
CLASSIFIERS = {
    "llama_classifier": ("Llama", {"num_labels": 3, "hidden_size": 18}),
    "qwen3_reward": ("Qwen3", {"num_labels": 1, "tie_word_embeddings": True}),
    "gemma3_reward": ("Gemma3Text", {"num_labels": 1, "sliding_window": 5, "hidden_size": 18}),
}


def classifier(folder, kind, options):
    """Writes a model that scores sequences, and its scores, a loss of pairs as TRL computes it, and the gradients."""
    config = getattr(transformers, kind + "Config")(**{**COMMON, **options})
    config.dtype = "float32"
    name = kind + "ForSequenceClassification"
    module = sys.modules[getattr(transformers, kind.removesuffix("Text") + "ForCausalLM").__module__]
    model = getattr(module, name)._from_config(config, dtype=torch.float32)
    randomize(model, kind.removesuffix("Text"))
    model.config.architectures = [name]
    write(folder, model, ())
    generator = torch.Generator().manual_seed(12)
    lengths = (9, 4, 7, 1)
    ids = torch.randint(0, COMMON["vocab_size"], (sum(lengths),), generator=generator)
    logits = torch.cat([model(input_ids=part[None]).logits for part in ids.split(lengths)])
    rewards, margin = logits[:, 0].view(2, 2), torch.tensor([0.3, 0.1])
    losses = -torch.nn.functional.logsigmoid(rewards[:, 0] - rewards[:, 1] - margin) + 0.05 * rewards.sum(-1) ** 2
    losses.sum().backward()
    result = {"input_ids": ids, "seq_lens": torch.tensor(lengths), "logits": logits, "loss": losses.sum(), "margin": margin}
    for name, parameter in model.named_parameters():
        result["gradient." + name] = parameter.grad
    return {name: tensor.detach().contiguous() for name, tensor in result.items()}


def rotary():
    """Frequencies, cosines and sines, far into long contexts too."""
    positions = torch.tensor([0, 1, 77, 4095, 32767, 131071])
    result = {"position_ids": positions}
    for name, options in ROTARY.items():
        options = dict(options)
        dim = options.pop("dim")
        config = transformers.LlamaConfig(hidden_size=dim, num_attention_heads=1, head_dim=dim,
                                          max_position_embeddings=131072, rope_parameters=options)
        module = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
        cos, sin = module(torch.zeros(1), positions[None])
        result[name + ".frequencies"] = module.inv_freq
        result[name + ".cos"], result[name + ".sin"] = cos[0].clone(), sin[0].clone()
    folder = HERE / "rotary"
    folder.mkdir(exist_ok=True)
    safetensors.torch.save_file(result, folder / "answers.safetensors", {"cases": json.dumps(ROTARY)})


def main(names):
    check_versions()
    if not names or "rotary" in names:
        rotary()
    for name, (kind, options, forms) in FOLDERS.items():
        if names and name not in names:
            continue
        folder = HERE / name
        folder.mkdir(exist_ok=True)
        model = build(kind, options)
        write(folder, model, forms)
        safetensors.torch.save_file(answers(model), folder / "answers.safetensors")
        print(name, sum(f.stat().st_size for f in folder.iterdir()), "bytes")
    for name, case in QUANTIZED.items():
        if names and name not in names:
            continue
        folder = HERE / name
        folder.mkdir(exist_ok=True)
        safetensors.torch.save_file(quantized(folder, *case), folder / "answers.safetensors")
    for name, case in CLASSIFIERS.items():
        if names and name not in names:
            continue
        folder = HERE / name
        folder.mkdir(exist_ok=True)
        safetensors.torch.save_file(classifier(folder, *case), folder / "answers.safetensors")


if __name__ == "__main__":
    main(sys.argv[1:])
