"""Writes driver/images/testdata/gemma3.json: what transformers makes of pictures and conversations for Gemma 3.

    python tests/images/make_gemma3.py driver/images/testdata

Needs what make_processed.py needs. The tokenizer is driver/text/testdata/gemma.json with the tokens in ADDED. Of pixels
the file holds digests of patches in the order of lockstep.images; of conversations the ids.
"""

import json
import pathlib
import sys
import tempfile

import torch
import transformers
from make_processed import digest, picture
from transformers.models.gemma3.image_processing_gemma3 import Gemma3ImageProcessor
from transformers.models.gemma3.processing_gemma3 import Gemma3Processor

SIDE, PATCH, MERGE = 42, 7, 2
TOKENS = (SIDE // PATCH // MERGE) ** 2
CONFIG = {"image_processor_type": "Gemma3ImageProcessor", "size": {"height": SIDE, "width": SIDE}, "do_convert_rgb": None,
          "do_pan_and_scan": None, "pan_and_scan_min_crop_size": None, "pan_and_scan_max_num_crops": None,
          "pan_and_scan_min_ratio_to_activate": None, "image_seq_length": 256, "image_mean": [0.48, 0.5, 0.52],
          "image_std": [0.5, 0.49, 0.3], "resample": 2, "rescale_factor": 1 / 255, "processor_class": "Gemma3Processor"}
PAN = {"do_pan_and_scan": True, "pan_and_scan_min_crop_size": 20, "pan_and_scan_max_num_crops": 3,
       "pan_and_scan_min_ratio_to_activate": 1.3}
ADDED = ["<start_of_image>", "<end_of_image>", "<image_soft_token>", "<end_of_turn>", "\n\n\n", "\n\n\n\n"]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{% if m.content is string %}{{ m.content | trim }}{% else %}{% for p in m.content %}{% if p.type == 'image' %}"
    "<start_of_image>{% else %}{{ p.text | trim }}{% endif %}{% endfor %}{% endif %}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}")
SIZES = [(42, 42), (1, 1), (37, 53), (101, 23), (23, 101), (64, 48), (19, 300), (300, 41), (57, 20), (480, 641), (20, 27),
         (80, 30)]
# Of each message the role, and a text or the size of a picture for each part.
CONVERSATIONS = [
    [("user", [(37, 53), "What is it?"]), ("assistant", ["A cat."])],
    [("user", ["Compare\n", (101, 23), "\nwith", (64, 48), (1, 1)]), ("assistant", ["They differ."]),
     ("user", ["And", (42, 42)]), ("assistant", ["\nThe same"])],
    [("user", ["No picture"]), ("assistant", ["None"])],
    [("user", [(300, 41), (23, 101), "Long"]), ("assistant", ["Wide"])],
]


def patches(pixels):
    """[n, 3, S, S] in the order of lockstep.images."""
    blocks = SIDE // PATCH // MERGE
    x = pixels.view(-1, 3, blocks, MERGE, PATCH, blocks, MERGE, PATCH)
    return x.permute(0, 2, 5, 3, 6, 1, 4, 7).reshape(-1, 3 * PATCH * PATCH)


def tokenizer():
    base = json.loads((pathlib.Path(__file__).parents[2] / "driver/text/testdata/gemma.json").read_text())
    for i, token in enumerate(ADDED):
        base["added_tokens"].append({"id": 2002 + i, "content": token, "single_word": False, "lstrip": False,
                                     "rstrip": False, "normalized": False, "special": token.endswith("image>")})
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "tokenizer.json"
        path.write_text(json.dumps(base))
        return transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(path), bos_token="<s>", eos_token="</s>", extra_special_tokens={
                "boi_token": ADDED[0], "eoi_token": ADDED[1], "image_token": ADDED[2]})


def main():
    assert transformers.__version__ == "5.23.0", transformers.__version__
    image_processor = Gemma3ImageProcessor(**{k: v for k, v in CONFIG.items() if not k.endswith(("_type", "_class"))})
    processor = Gemma3Processor(image_processor, tokenizer(), chat_template=TEMPLATE, image_seq_length=TOKENS)
    cases = []
    for pan in ({"do_pan_and_scan": False}, PAN):
        for i, (height, width) in enumerate(SIZES):
            out = image_processor(picture(height, width, i), return_tensors="pt", **pan)
            pixels = out["pixel_values"]
            grid = torch.tensor([[1, SIDE // PATCH, SIDE // PATCH]] * len(pixels))
            case = {"pan": pan["do_pan_and_scan"], "size": [height, width], "seed": i,
                    **digest(patches(pixels), grid, False)}
            case["grid"] = grid.tolist()
            assert len(pixels) == 1 + int(out["num_crops"][0])
            cases.append(case)
    chats = []
    for pan in ({"do_pan_and_scan": False}, PAN):
        for messages in CONVERSATIONS:
            said = [{"role": role, "content": [{"type": "text", "text": part} if isinstance(part, str) else
                                               {"type": "image"} for part in parts]} for role, parts in messages]
            sizes = [part for _, parts in messages for part in parts if not isinstance(part, str)]
            text = processor.apply_chat_template(said, tokenize=False)
            pictures = [picture(height, width, i) for i, (height, width) in enumerate(sizes)]
            out = processor(text=text, images=pictures or None, add_special_tokens=False, return_tensors="pt", **pan)
            crops = len(out["pixel_values"]) if pictures else 0
            chats.append({"pan": pan["do_pan_and_scan"], "messages": said, "sizes": sizes, "num_views": crops,
                          "input_ids": out["input_ids"][0].tolist(), "types": out["token_type_ids"][0].tolist()})
    result = {"config": CONFIG, "pan": PAN, "added": ADDED, "template": TEMPLATE, "images": cases, "chats": chats,
              "model": {"mm_tokens_per_image": TOKENS, "vision_config": {"image_size": SIDE, "patch_size": PATCH}}}
    (pathlib.Path(sys.argv[1]) / "gemma3.json").write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
