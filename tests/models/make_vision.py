"""Makes the folders of models with pictures: tiny, random weights, and what transformers computes with them.

    pip install torch==2.11.0 transformers==5.23.0 safetensors==0.8.0
    python tests/models/make_vision.py [NAME ...]

Each folder holds config.json, the weights and answers.safetensors: three packed sequences with two pictures of
different grids, text alone, and a video and a picture; their position ids, logits, summed loss and its gradient for each
parameter; greedy ids after each sequence; and the patches' order of attention is part of it all. Parameters are
random, norms and biases too, and no two sizes of a weight are equal.
"""

import itertools
import json
import sys

import make
import safetensors.torch
import torch
import transformers

TEXT, START, END, IMAGE, VIDEO, VOCABULARY = 50, 55, 56, 57, 58, 61
IDS = {"image_token_id": IMAGE, "video_token_id": VIDEO, "vision_start_token_id": START, "vision_end_token_id": END}
TOKENS = {"vocab_size": VOCABULARY, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
          "max_position_embeddings": 40960}
# {t, h, w} in patches; two by two patches are a token.
IMAGES, VIDEOS = ([1, 4, 6], [1, 8, 4], [1, 6, 2]), ([3, 4, 4],)
PATCH = 3 * 2 * 3 * 3

FOLDERS = {
    "qwen3_vl": ("Qwen3VL", {
        "text_config": {**TOKENS, "hidden_size": 20, "intermediate_size": 36, "num_hidden_layers": 3,
                        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-5,
                        "attention_bias": True,
                        "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0, "mrope_section": [4, 2, 2],
                                            "mrope_interleaved": True}},
        "vision_config": {"depth": 4, "hidden_size": 24, "intermediate_size": 28, "num_heads": 2, "patch_size": 3,
                          "out_hidden_size": 20, "num_position_embeddings": 25, "deepstack_visual_indexes": [0, 2]},
        "tie_word_embeddings": True}, ()),
    "qwen3_vl_moe": ("Qwen3VLMoe", {
        "text_config": {**TOKENS, "hidden_size": 20, "intermediate_size": 36, "num_hidden_layers": 2,
                        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-5,
                        "moe_intermediate_size": 12, "num_experts": 5, "num_experts_per_tok": 2, "mlp_only_layers": [1],
                        "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0, "mrope_section": [4, 2, 2],
                                            "mrope_interleaved": True}},
        "vision_config": {"depth": 2, "hidden_size": 8, "intermediate_size": 28, "num_heads": 2, "patch_size": 3,
                          "out_hidden_size": 20, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]}}, ("transposed",)),
    "qwen2_5_vl": ("Qwen2_5_VL", {
        "text_config": {**TOKENS, "hidden_size": 48, "intermediate_size": 36, "num_hidden_layers": 2,
                        "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
                        "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0, "mrope_section": [1, 3, 2]}},
        "vision_config": {"depth": 3, "hidden_size": 24, "intermediate_size": 28, "num_heads": 2, "patch_size": 3,
                          "out_hidden_size": 48, "window_size": 12, "fullatt_block_indexes": [1],
                          "tokens_per_second": 2}}, ("v4",)),
}


def build(kind, options):
    config = getattr(transformers, kind + "Config")(**IDS, **options)
    config.architectures = [kind + "ForConditionalGeneration"]
    config.dtype = "float32"
    config.text_config._experts_implementation = "eager"  # the other one wants weights in multiples of 16 bytes
    model = getattr(transformers, kind + "ForConditionalGeneration")._from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name or "ln_q" in name:
                parameter.copy_((0.3 * noise) if name.endswith("bias") else 1 + 0.3 * noise)
            elif name.endswith("bias"):
                parameter.copy_(0.3 * noise)
            else:
                parameter.copy_(noise * 1.2 / parameter[0].numel() ** 0.5)
    return model.eval()


def as_version_4(config):
    """The text's settings beside the others, as Qwen2.5-VL was published."""
    text = config.pop("text_config")
    rope = text.pop("rope_parameters")
    for key in ("dtype", "model_type", "layer_types"):
        text.pop(key, None)
    config.update(text)
    config["rope_theta"] = rope["rope_theta"]
    config["rope_scaling"] = {"type": "mrope", "mrope_section": rope["mrope_section"]}
    config["torch_dtype"] = config.pop("dtype")
    vision = config["vision_config"]
    vision.pop("rope_parameters", None)
    vision["in_chans"], vision["spatial_patch_size"] = vision.pop("in_channels"), vision["patch_size"]
    config["transformers_version"] = "4.49.0"
    return config


def sequences(splits_frames):
    """Ids of three sequences, and how many pictures and videos each has."""
    generator = torch.Generator().manual_seed(11)
    text = lambda n: torch.randint(0, TEXT, (n,), generator=generator).tolist()
    tokens = lambda grid: grid[0] * grid[1] * grid[2] // 4
    picture = lambda i: [START] + [IMAGE] * tokens(IMAGES[i]) + [END]
    t, h, w = VIDEOS[0]
    frames = [h * w // 4] * t if splits_frames else [t * h * w // 4]
    video = sum((text(2) + [START] + [VIDEO] * n + [END] for n in frames), [])
    return [(text(3) + picture(0) + text(2) + picture(1) + text(3), 2, 0), (text(9), 0, 0),
            (text(2) + video + text(1) + picture(2) + text(4), 1, 1)]


def rope_index(model):
    """Returns get_rope_index for one sequence of Qwen2.5-VL, with text after a video where Qwen has it.

    It begins behind the video's largest position, as in transformers up to 5.2. Version 5.23 begins it max(h, w) behind
    the video's first, but generates from the largest: that is another position than the full pass has."""

    def get(input_ids, mm_token_type_ids, image_grid_thw=None, video_grid_thw=None, second_per_grid_ts=None, **_):
        grids = {1: iter([] if image_grid_thw is None else image_grid_thw),
                 2: iter([] if video_grid_thw is None else video_grid_thw)}
        seconds = iter([] if second_per_grid_ts is None else second_per_grid_ts)
        parts, start = [], 0
        for kind, group in itertools.groupby(mm_token_type_ids[0].tolist()):
            if kind == 0:
                parts.append(start + torch.arange(len(list(group))).expand(3, -1))
            else:
                interval = model.config.vision_config.tokens_per_second * next(seconds) if kind == 2 else 1
                parts.append(model.model.get_vision_position_ids(start, next(grids[kind]), 1, 2, interval))
            start = parts[-1].max() + 1
        positions = torch.cat(parts, 1)
        return positions[:, None], torch.tensor([[start - positions.shape[1]]])

    return get


def answers(model, splits_frames):
    generator = torch.Generator().manual_seed(13)
    pixels = lambda grids: [torch.randn(t * h * w, PATCH, generator=generator) for t, h, w in grids]
    image_pixels, video_pixels = pixels(IMAGES), pixels(VIDEOS)
    result = {"pixel_values": torch.cat(image_pixels), "image_grid_thw": torch.tensor(IMAGES),
              "pixel_values_videos": torch.cat(video_pixels), "video_grid_thw": torch.tensor(VIDEOS)}
    if not splits_frames:
        model.model.get_rope_index = rope_index(model)
    ids, masks, logits, positions, generated, loss, count = [], [], [], [], [], 0, 0
    image = video = 0
    for part, images, videos in sequences(splits_frames):
        row = torch.tensor(part)
        inputs = {"input_ids": row[None], "attention_mask": torch.ones_like(row)[None],
                  "mm_token_type_ids": ((row == IMAGE) + 2 * (row == VIDEO)).int()[None]}
        grids = {}
        if images:
            inputs["pixel_values"] = torch.cat(image_pixels[image : image + images])
            grids["image_grid_thw"] = torch.tensor(IMAGES[image : image + images])
        if videos:
            inputs["pixel_values_videos"] = torch.cat(video_pixels[video : video + videos])
            grids["video_grid_thw"] = torch.tensor(VIDEOS[video : video + videos])
            if not splits_frames:
                grids["second_per_grid_ts"] = torch.tensor([0.8])
                result["second_per_grid_ts"] = grids["second_per_grid_ts"]
        image, video = image + images, video + videos
        output = model(**inputs, **grids).logits[0]
        position, _ = model.model.get_rope_index(row[None], inputs["mm_token_type_ids"], **grids)
        with torch.no_grad():
            generated.append(model.generate(**inputs, **grids, max_new_tokens=24, do_sample=False)[0, len(row) :])
        mask = torch.rand(len(row), generator=generator) < 0.7
        own = torch.log_softmax(output.float(), -1)[:-1].gather(-1, row[1:, None])[:, 0]
        loss, count = loss - own[mask[1:]].sum(), count + int(mask[1:].sum())
        for whole, piece in ((ids, row), (masks, mask), (logits, output), (positions, position[:, 0])):
            whole.append(piece)
    loss.backward()
    result.update({"input_ids": torch.cat(ids), "loss_mask": torch.cat(masks), "logits": torch.cat(logits),
                   "position_ids": torch.cat(positions, 1), "seq_lens": torch.tensor([len(i) for i in ids]),
                   "loss": loss, "count": torch.tensor(count)})
    for name, parameter in model.named_parameters():
        result["gradient." + name] = parameter.grad
    result["generated"] = torch.stack(generated)
    return {name: tensor.detach().contiguous() for name, tensor in result.items()}


def transpose_experts(folder, model):
    """Writes the experts as Qwen published them, and holds that transformers reads them so."""
    state = safetensors.torch.load_file(folder / "model.safetensors")
    for name in [n for n in state if ".experts." in n]:
        state[name] = state[name].transpose(1, 2).contiguous()
    safetensors.torch.save_file(state, folder / "model.safetensors", {"format": "pt"})
    again = type(model).from_pretrained(folder, dtype=torch.float32).state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in model.state_dict().items())


GEMMA = {
    "text_config": {**TOKENS, "hidden_size": 18, "intermediate_size": 28, "num_hidden_layers": 3,
                    "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-5,
                    "sliding_window": 5, "query_pre_attn_scalar": 11,
                    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    "vision_config": {"hidden_size": 20, "intermediate_size": 26, "num_hidden_layers": 2, "num_attention_heads": 2,
                      "image_size": 18, "patch_size": 3, "vision_use_head": False},
    "mm_tokens_per_image": 9, "image_token_id": IMAGE, "boi_token_id": START, "eoi_token_id": END}


def gemma(folder):
    """Gemma 3 with pictures of 6 x 6 patches, of which 2 x 2 are a token. Its answers have patches in our order."""
    config = transformers.Gemma3Config(**GEMMA)
    config.architectures, config.dtype = ["Gemma3ForConditionalGeneration"], "float32"
    model = transformers.Gemma3ForConditionalGeneration._from_config(config, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_gemma_norm = "norm" in name and "vision_tower" not in name
            if "norm" in name:
                parameter.copy_(0.3 * noise + (not is_gemma_norm and not name.endswith("bias")))
            elif name.endswith("bias"):
                parameter.copy_(0.3 * noise)
            else:
                parameter.copy_(noise * 1.2 / parameter[0].numel() ** 0.5)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    state = safetensors.torch.load_file(folder / "model.safetensors")  # with the names that Google published
    state = {n.replace("vision_tower.", "vision_tower.vision_model."): t for n, t in state.items()}
    safetensors.torch.save_file(state, folder / "model.safetensors", {"format": "pt"})
    again = type(model).from_pretrained(folder, dtype=torch.float32).state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in model.state_dict().items())
    text = lambda n: torch.randint(0, TEXT, (n,), generator=generator).tolist()
    picture = [START] + [IMAGE] * 9 + [END]
    pixels = torch.randn(3, 3, 18, 18, generator=generator)
    rows = ((text(3) + picture + text(2) + picture + text(3), pixels[:2]), (text(9), None), (picture + text(4), pixels[2:]))
    ids, masks, logits, generated, loss, count = [], [], [], [], 0, 0
    for part, images in rows:
        row = torch.tensor(part)
        inputs = {"input_ids": row[None], "attention_mask": torch.ones_like(row)[None],
                  "token_type_ids": (row == IMAGE).int()[None]}
        if images is not None:
            inputs["pixel_values"] = images
        output = model(**inputs).logits[0]
        with torch.no_grad():
            generated.append(model.generate(**inputs, max_new_tokens=24, do_sample=False)[0, len(row) :])
        mask = torch.rand(len(row), generator=generator) < 0.7
        own = torch.log_softmax(output.float(), -1)[:-1].gather(-1, row[1:, None])[:, 0]
        loss, count = loss - own[mask[1:]].sum(), count + int(mask[1:].sum())
        for whole, piece in ((ids, row), (masks, mask), (logits, output)):
            whole.append(piece)
    loss.backward()
    # [picture, channel, block, row, y, block, column, x] to patches, two by two.
    patches = pixels.view(3, 3, 3, 2, 3, 3, 2, 3).permute(0, 2, 5, 3, 6, 1, 4, 7).reshape(3 * 36, 27)
    result = {"pixel_values": patches, "image_grid_thw": torch.tensor([[1, 6, 6]] * 3), "input_ids": torch.cat(ids),
              "loss_mask": torch.cat(masks), "logits": torch.cat(logits), "loss": loss, "count": torch.tensor(count),
              "seq_lens": torch.tensor([len(i) for i in ids]), "generated": torch.stack(generated)}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            result["gradient." + name.replace("model.vision", "model.visual.vision").replace(
                "model.multi", "model.visual.multi")] = parameter.grad
    return {name: tensor.detach().contiguous() for name, tensor in result.items()}


def main(names):
    make.check_versions()
    if not names or "gemma3_vision" in names:
        folder = make.HERE / "gemma3_vision"
        folder.mkdir(exist_ok=True)
        safetensors.torch.save_file(gemma(folder), folder / "answers.safetensors")
    for name, (kind, options, forms) in FOLDERS.items():
        if names and name not in names:
            continue
        folder = make.HERE / name
        folder.mkdir(exist_ok=True)
        model = build(kind, options)
        model.save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        if "transposed" in forms:
            transpose_experts(folder, model)
        path = folder / "config.json"
        config = json.loads(path.read_text())
        config = as_version_4(config) if "v4" in forms else config
        path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
        safetensors.torch.save_file(answers(model, kind != "Qwen2_5_VL"), folder / "answers.safetensors")
        print(name, sum(f.stat().st_size for f in folder.iterdir()), "bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
