"""What reading a picture and cutting it into Qwen3-VL's patches costs here and with Pillow and torchvision, on one core.

Needs a Python with torch 2.11, torchvision, Pillow and numpy:
    bazel build -c opt //driver:lockstep
    python benchmarks/images_benchmark.py bazel-bin/driver/lockstep

Both programs take turns, three times; printed is the least CPU time of each in milliseconds, and Python / Lua. The peer is
the arithmetic of transformers' processor without its handling of arguments: Pillow decodes, torchvision resizes bytes,
normalises with mean and scale fused, and torch orders the patches.
"""

import json
import math
import os
import pathlib
import tempfile
import time

import numpy as np
import peer
import torch
from PIL import Image, ImageOps
from torchvision.transforms.v2 import functional as tv

TURNS, PATCH, MERGE, TEMPORAL = 3, 16, 2, 2
LIMITS = {"shortest_edge": 65536, "longest_edge": 1048576}


def photo(height, width):
    """Smooth shapes and some grain: a JPEG of quality 90 takes about two bits a pixel."""
    rng = np.random.default_rng(height)
    y, x = np.mgrid[0:height, 0:width] / 97.0
    waves = [np.sin(x * (1 + c) + np.cos(y * (2 - c))) + 0.5 * np.sin(7 * x - 5 * y + c) for c in range(3)]
    values = 128 + 70 * np.stack(waves, axis=2) / 1.5 + rng.normal(0, 4, (height, width, 1))
    return Image.fromarray(np.clip(values, 0, 255).astype(np.uint8))


def write_pictures(folder):
    for height, width in ((480, 640), (1080, 1920)):
        picture = photo(height, width)
        picture.save(folder / f"{width}x{height}.jpg", quality=90)
        picture.save(folder / f"{width}x{height}.png")
        picture.save(folder / f"{width}x{height}.webp", quality=85)
    config = {"image_processor_type": "Qwen2VLImageProcessorFast", "size": LIMITS, "patch_size": PATCH,
              "temporal_patch_size": TEMPORAL, "merge_size": MERGE, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(config))


def read(path):
    picture = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous()


def size_of(height, width):
    factor = PATCH * MERGE
    h, w = round(height / factor) * factor, round(width / factor) * factor
    if h * w > LIMITS["longest_edge"]:
        beta = math.sqrt(height * width / LIMITS["longest_edge"])
        h, w = (math.floor(side / beta / factor) * factor for side in (height, width))
    return [h, w]


def process(image):
    image = tv.resize(image, size_of(*image.shape[1:]), interpolation=tv.InterpolationMode.BICUBIC, antialias=True)
    image = tv.normalize(image.to(torch.float32), [127.5] * 3, [127.5] * 3, inplace=True)
    h, w = image.shape[1] // PATCH, image.shape[2] // PATCH
    blocks = image.reshape(1, 3, h // MERGE, MERGE, PATCH, w // MERGE, MERGE, PATCH).permute(0, 2, 5, 3, 6, 1, 4, 7)
    frames = blocks.unsqueeze(6).expand(-1, -1, -1, -1, -1, -1, TEMPORAL, -1, -1)
    return frames.reshape(h * w, 3 * TEMPORAL * PATCH * PATCH)


def least(call):
    times = []
    for _ in range(20):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return 1e3 * min(times)


def python_times(folder):
    times = {}
    for path in sorted(folder.iterdir()):
        if path.suffix != ".json":
            times[f"{path.name}, read"] = least(lambda: read(path))
            times[f"{path.name}, read and process"] = least(lambda: process(read(path)))
    return times


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_pictures(folder)
        os.environ["LOCKSTEP_BENCHMARK_IMAGES"] = name
        os.environ["OMP_NUM_THREADS"] = "1"
        best = peer.take_turns(__file__, TURNS, lambda: python_times(folder))
    print(f"{'picture':38}{'Lua ms':>9}{'Python ms':>11}{'Python / Lua':>14}")
    for name in dict.fromkeys(name for name, _ in best):
        lua, python = best[name, "lua"], best[name, "python"]
        print(f"{name:38}{lua:9.2f}{python:11.2f}{python / lua:14.2f}")


if __name__ == "__main__":
    main()
