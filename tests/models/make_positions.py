"""Makes positions/positions.json: position ids of Qwen2.5-VL with videos, as transformers 4.57.6 gives them.

    pip install torch==2.11.0 transformers==4.57.6
    python tests/models/make_positions.py

From 5.3 to 5.23 transformers places text after a video elsewhere; make_vision.py says where. Version 4.57.6 rounds the
seconds of a temporal patch, so they are whole here.
"""

import json
import pathlib
import random
import types

import torch
import transformers
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel

assert transformers.__version__ == "4.57.6", transformers.__version__
START, END, IMAGE, VIDEO, MERGE = 55, 56, 57, 58, 2
TOKENS_PER_SECOND = 2  # as in the folder qwen2_5_vl


def sequence(source):
    ids, grids, seconds = [source.randrange(50)], {IMAGE: [], VIDEO: []}, []
    for _ in range(source.randint(1, 4)):
        kind = source.choice([IMAGE, VIDEO])
        frames = source.randint(1, 6) if kind == VIDEO else 1
        grid = [frames, MERGE * source.randint(1, 3), MERGE * source.randint(1, 3)]
        grids[kind].append(grid)
        if kind == VIDEO:
            seconds.append(source.randint(0, 3))
        ids += [START] + [kind] * (grid[0] * grid[1] * grid[2] // MERGE**2) + [END]
        ids += [source.randrange(50) for _ in range(source.randint(0, 3))]
    return ids, grids, seconds


def positions(ids, grids, seconds):
    config = types.SimpleNamespace(image_token_id=IMAGE, video_token_id=VIDEO, vision_start_token_id=START,
                                   vision_config=types.SimpleNamespace(spatial_merge_size=MERGE,
                                                                       tokens_per_second=TOKENS_PER_SECOND))
    tensor = lambda values: torch.tensor(values) if values else None
    result, delta = Qwen2_5_VLModel.get_rope_index(
        types.SimpleNamespace(config=config), torch.tensor(ids)[None], tensor(grids[IMAGE]), tensor(grids[VIDEO]),
        tensor(seconds))
    return result[:, 0].tolist(), len(ids) + delta.item()


def main():
    source, cases = random.Random(1), []
    for _ in range(12):
        ids, grids, seconds = sequence(source)
        rows, following = positions(ids, grids, seconds)
        cases.append({"input_ids": ids, "image_grid_thw": grids[IMAGE], "video_grid_thw": grids[VIDEO],
                      "second_per_grid_ts": seconds, "position_ids": rows, "next": following})
    folder = pathlib.Path(__file__).parent / "positions"
    folder.mkdir(exist_ok=True)
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    (folder / "positions.json").write_text(f"[{lines}]\n")


if __name__ == "__main__":
    main()
