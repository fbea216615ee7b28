"""Writes driver/images/testdata/videos.json: which frames of a video transformers takes, and its chats with videos.

    python tests/images/make_videos.py driver/images/testdata

Needs what make_processed.py needs. Frames are given to the processors, so that no decoder differs: frame n of a video
is `picture` of make_processed.py with seed n. The tokenizer is driver/text/testdata/qwen2.json with the tokens in
ADDED.

Qwen3VLProcessor of transformers 5.23 replaces <|video_pad|> alone, and so writes <|vision_start|> and <|vision_end|>
around a video twice. The model was trained without the outer ones, and transformers 4.57 and vLLM replace them, too.
Here the template leaves them out for Qwen3-VL, which gives these ids.
"""

import json
import pathlib
import sys
import tempfile

import torch
import transformers
from make_processed import IMAGE, VIDEO, digest, picture
from transformers import Qwen2_5_VLProcessor, Qwen3VLProcessor
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor
from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
from transformers.video_utils import VideoMetadata

ADDED = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{% if p.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif p.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>{% else %}{{ p.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}")
FAMILIES = {"qwen3_vl": (Qwen3VLProcessor, Qwen3VLVideoProcessor),
            "qwen2_5_vl": (Qwen2_5_VLProcessor, Qwen2VLVideoProcessor)}
# Frames and frames per second of a file, and options.
FILES = [(10, 30, {}), (300, 30, {}), (300, 30000 / 1001, {}), (100, 25, {"fps": 3}), (97, 24, {"num_frames": 48}),
         (7, 30, {}), (1000, 25, {"fps": 30}), (333, 25, {"num_frames": 31}), (3, 30, {}), (20000, 30, {}),
         (500, 25, {"fps": 0.5}), (50, 10, {"num_frames": 50}), (450, 30, {"fps": 2.5}), (768, 24, {"fps": 24})]
TOTAL, FPS, SIZE = 21, 7.5, (60, 90)


def tokenizer():
    base = json.loads((pathlib.Path(__file__).parents[2] / "driver/text/testdata/qwen2.json").read_text())
    for i, token in enumerate(ADDED):
        base["added_tokens"].append({"id": 2005 + i, "content": token, "single_word": False, "lstrip": False,
                                     "rstrip": False, "normalized": False, "special": True})
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "tokenizer.json"
        path.write_text(json.dumps(base))
        return transformers.PreTrainedTokenizerFast(tokenizer_file=str(path))


def main():
    assert transformers.__version__ == "5.23.0", transformers.__version__
    choices, chats = [], []
    options = lambda config: {k: v for k, v in config.items() if not k.endswith(("_type", "_class"))}
    for family, (kind, video_kind) in FAMILIES.items():
        video_processor = video_kind(**options(VIDEO[family]), cap_pixels_per_frame=False)
        processor = kind(Qwen2VLImageProcessor(**options(IMAGE[family])), tokenizer(), video_processor)
        for total, fps, more in FILES:
            metadata = VideoMetadata(total_num_frames=total, fps=fps)
            numbers = video_processor.sample_frames(metadata, **(more or {"fps": 2})).tolist()
            short = numbers if len(numbers) < 60 else numbers[:3] + numbers[-3:]
            choices.append({"family": family, "total": total, "fps": fps, "options": more, "count": len(numbers),
                            "sum": sum(numbers), "squares": sum(n * n for n in numbers), "numbers": short})
        for seconds in ([3], [2, 1.0]):  # fps of each video
            videos, metadata, parts = [], [], [{"type": "text", "text": "See\n"}]
            for rate in seconds:
                known = VideoMetadata(total_num_frames=TOTAL, fps=FPS)
                numbers = video_processor.sample_frames(known, fps=rate).tolist()
                videos.append(torch.stack([picture(*SIZE, n) for n in numbers]))
                metadata.append({"fps": FPS, "total_num_frames": TOTAL, "frames_indices": numbers})
                parts += [{"type": "video", "fps": rate}, {"type": "text", "text": "\nand"}]
            said = [{"role": "user", "content": parts}, {"role": "assistant", "content": "A cat."}]
            template = TEMPLATE
            if family == "qwen3_vl":
                template = TEMPLATE.replace("<|vision_start|><|video_pad|><|vision_end|>", "<|video_pad|>")
            text = processor.apply_chat_template(said, chat_template=template, tokenize=False)
            out = processor(text=[text], videos=videos, video_metadata=metadata, do_sample_frames=False,
                            return_tensors="pt")
            case = {"family": family, "messages": said, "input_ids": out["input_ids"][0].tolist(),
                    "types": out["mm_token_type_ids"][0].tolist(), "seconds": [],
                    **digest(out["pixel_values_videos"], out["video_grid_thw"], False)}
            case["grid"] = out["video_grid_thw"].tolist()
            if "second_per_grid_ts" in out:
                case["seconds"] = [float(s) for s in out["second_per_grid_ts"]]
            chats.append(case)
    result = {"image": {f: IMAGE[f] for f in FAMILIES}, "video": {f: VIDEO[f] for f in FAMILIES}, "added": ADDED,
              "template": TEMPLATE, "file": {"total": TOTAL, "fps": FPS, "size": SIZE}, "choices": choices,
              "chats": chats}
    (pathlib.Path(sys.argv[1]) / "videos.json").write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
