"""Adds preferences.safetensors to the folders of models with pictures: pairs of answers, and what transformers computes.

    pip install torch==2.11.0 transformers==5.23.0 safetensors==0.8.0
    python tests/models/make_preferences.py

There are three pairs: a prompt with two pictures, one of text, one with a picture. The file holds the conversations one
after the other (chosen, rejected, chosen, ...), the pictures of each prompt once, the summed log-probability of each
answer, the summed DPO loss of the pairs against a reference of zeros, its gradients for small tensors of the vision
tower, and the scores of a linear head after each last token.
"""

import make
import safetensors.torch
import torch
import transformers
from make_vision import END, IMAGE, IMAGES, PATCH, START, TEXT

BETA = 0.1


def pictures_of(name, generator):
    """The grids, the patches in our order, and for each picture what transformers takes."""
    if name != "gemma3_vision":
        patches = [torch.randn(t * h * w, PATCH, generator=generator) for t, h, w in IMAGES]
        return IMAGES, patches, patches
    pixels = torch.randn(3, 3, 18, 18, generator=generator)
    patches = pixels.view(3, 3, 3, 2, 3, 3, 2, 3).permute(0, 2, 5, 3, 6, 1, 4, 7).reshape(3, 36, 27)
    return [[1, 6, 6]] * 3, list(patches), list(pixels[:, None])


def answers(name):
    model = transformers.AutoModelForImageTextToText.from_pretrained(
        make.HERE / name, dtype=torch.float32, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(17)
    text = lambda n: torch.randint(0, TEXT, (n,), generator=generator).tolist()
    grids, patches, pixels = pictures_of(name, generator)
    picture = lambda i: [START] + [IMAGE] * (grids[i][0] * grids[i][1] * grids[i][2] // 4) + [END]
    pairs = [(text(3) + picture(0) + text(2) + picture(1) + text(1), [0, 1], text(4), text(3)),
             (text(5), [], text(2), text(4)), (picture(2) + text(2), [2], text(2), text(5))]
    weight = torch.randn(1, model.config.text_config.hidden_size, generator=generator)
    log_probs, scores, ids, masks = [], [], [], []
    for prompt, numbers, *completions in pairs:
        for completion in completions:
            row = torch.tensor(prompt + completion)
            types = (row == IMAGE).int()[None]
            inputs = {"input_ids": row[None], "attention_mask": torch.ones_like(row)[None],
                      "token_type_ids" if name == "gemma3_vision" else "mm_token_type_ids": types}
            if numbers:
                inputs["pixel_values"] = torch.cat([pixels[i] for i in numbers])
                if name != "gemma3_vision":
                    inputs["image_grid_thw"] = torch.tensor([grids[i] for i in numbers])
            output = model(**inputs, output_hidden_states=True)
            own = torch.log_softmax(output.logits[0].float(), -1)[:-1].gather(-1, row[1:, None])[:, 0]
            log_probs.append(own[len(prompt) - 1 :].sum())
            scores.append(output.hidden_states[-1][0, -1] @ weight[0])
            ids.append(row)
            masks.append(torch.arange(len(row)) >= len(prompt))
    log_probs = torch.stack(log_probs).view(-1, 2)
    loss = -torch.nn.functional.logsigmoid(BETA * (log_probs[:, 0] - log_probs[:, 1])).sum()
    loss.backward()
    result = {"input_ids": torch.cat(ids), "loss_mask": torch.cat(masks), "log_probs": log_probs, "loss": loss,
              "lengths": torch.tensor([len(row) for row in ids]).view(-1, 2), "scores": torch.stack(scores).view(-1, 2),
              "pixel_values": torch.cat(patches), "image_grid_thw": torch.tensor(grids), "score.weight": weight}
    for parameter, tensor in model.named_parameters():
        if any(part in parameter for part in ("vision_tower", "visual", "multi_modal")) and tensor.numel() < 600:
            ours = parameter.replace("model.vision_tower", "model.visual.vision_tower").replace(
                "model.multi", "model.visual.multi")
            result["gradient." + ours] = tensor.grad
    return {key: tensor.detach().contiguous() for key, tensor in result.items() if tensor is not None}


def main():
    make.check_versions()
    for name in ("qwen3_vl", "qwen2_5_vl", "gemma3_vision"):
        safetensors.torch.save_file(answers(name), make.HERE / name / "preferences.safetensors")


if __name__ == "__main__":
    main()
