"""Writes driver/images/testdata/processed.json: what transformers' processors make of pictures and videos.

    python tests/images/make_processed.py driver/images/testdata

Needs transformers 5.23.0, torchvision 0.26.0 and torch 2.11, on a CPU with AVX2: without it torchvision resizes in
floating point. The pictures are the formula in `picture`, which processor_test.lua repeats. Of each result the file
holds the grid, the sum, the sum of magnitudes and 24 entries at even distances; of one small picture all entries.
"""

import json
import pathlib
import sys

import torch
import transformers
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor
from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

CLIP = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
IMAGE = {
    "qwen2_5_vl": {"image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2_5_VLProcessor",
                   "min_pixels": 3136, "max_pixels": 602112, "patch_size": 14, "temporal_patch_size": 2,
                   "merge_size": 2, **CLIP},
    "qwen3_vl": {"image_processor_type": "Qwen2VLImageProcessorFast", "processor_class": "Qwen3VLProcessor",
                 "size": {"longest_edge": 400000, "shortest_edge": 4096}, "patch_size": 16,
                 "temporal_patch_size": 2, "merge_size": 2, **HALF},
    "tiny": {"image_processor_type": "Qwen2VLImageProcessor", "size": {"shortest_edge": 16, "longest_edge": 160},
             "patch_size": 2, "temporal_patch_size": 3, "merge_size": 2, **CLIP},
}
VIDEO = {
    "qwen2_5_vl": {"video_processor_type": "Qwen2VLVideoProcessor", "patch_size": 14, "temporal_patch_size": 2,
                   "merge_size": 2, "size": {"shortest_edge": 3136, "longest_edge": 50000}, **CLIP},
    "qwen3_vl": {"video_processor_type": "Qwen3VLVideoProcessor", "patch_size": 16, "temporal_patch_size": 2,
                 "merge_size": 2, "size": {"shortest_edge": 4096, "longest_edge": 200000}, **HALF},
}
# Height, width. 42, 70 and 98 are one and a half, two and a half and three and a half blocks of 28: halves go to even.
SIZES = [(56, 28), (42, 70), (70, 98), (14, 14), (1, 1), (37, 53), (100, 100), (224, 224), (10, 300), (300, 10),
         (480, 640), (641, 479), (30, 1000), (900, 1200), (512, 512), (113, 227), (16, 48), (48, 80), (1024, 96),
         (333, 777)]
VIDEOS = [(4, 60, 90), (5, 100, 64), (2, 20, 17), (9, 128, 160)]


def picture(height, width, seed):
    y, x, c = torch.meshgrid(torch.arange(height), torch.arange(width), torch.arange(3), indexing="ij")
    values = y * y * 3 + x * x * 5 + x * y * 7 + c * 53 + (x // 3) * (y // 5) * 11 + seed * 19
    return (values % 256).to(torch.uint8).permute(2, 0, 1).contiguous()


def digest(values, grid, whole):
    flat = values.double().flatten()
    entries = torch.arange(24) * (flat.numel() - 1) // 23
    short = lambda tensor: [float(f"{v:.9g}") for v in tensor.tolist()]  # enough for a float32
    result = {"grid": grid[0].tolist(), "sum": flat.sum().item(), "magnitude": flat.abs().sum().item(),
              "entries": short(flat[entries])}
    if whole:
        result["all"] = short(flat)
    return result


def main():
    assert transformers.__version__ == "5.23.0", transformers.__version__
    assert "AVX2" in torch.backends.cpu.get_cpu_capability() or "AVX512" in torch.backends.cpu.get_cpu_capability()
    cases = []
    for family, config in IMAGE.items():
        processor = Qwen2VLImageProcessor(**{k: v for k, v in config.items() if not k.endswith(("_type", "_class"))})
        for i, (height, width) in enumerate(SIZES if family != "tiny" else [(9, 14)]):
            out = processor(picture(height, width, i), return_tensors="pt")
            cases.append({"family": family, "size": [height, width], "seed": i,
                          **digest(out["pixel_values"], out["image_grid_thw"], family == "tiny")})
    videos = []
    for family, config in VIDEO.items():
        for cap in (False, True):
            kind = {"qwen2_5_vl": Qwen2VLVideoProcessor, "qwen3_vl": Qwen3VLVideoProcessor}[family]
            options = {k: v for k, v in config.items() if not k.endswith("_type")}
            more = {"cap_pixels_per_frame": True, "max_video_tokens": 12} if cap else {"cap_pixels_per_frame": False}
            processor = kind(**options, **more, do_sample_frames=False)
            for frames, height, width in VIDEOS:
                clip = torch.stack([picture(height, width, i) for i in range(frames)])
                out = processor([clip], return_tensors="pt")
                times = Qwen3VLProcessor._calculate_timestamps(None, [3 * i for i in range(frames)], 7.5, 2)
                videos.append({"family": family, "more": more, "size": [frames, height, width], "times": times,
                               **digest(out["pixel_values_videos"], out["video_grid_thw"], False)})
    result = {"image": IMAGE, "video": VIDEO, "images": cases, "videos": videos}
    (pathlib.Path(sys.argv[1]) / "processed.json").write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
