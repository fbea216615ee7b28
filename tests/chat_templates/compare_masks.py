#!/usr/bin/env python3
"""Compares ids and loss masks of chats with transformers' assistant masks, token by token.

    python3 compare_masks.py DRIVER TEMPLATES

DRIVER is the program, bazel-bin/driver/lockstep; TEMPLATES a wheel or a folder with *.jinja: those with {% generation %} count.
The tokenizer is a byte-level BPE that is trained here on this project's pages. Needs transformers 5.23.0, tokenizers 0.23.3.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

from compare_jinja import TOKENS, read_templates
from conversations import conversations
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

SPECIAL = [*TOKENS.values(), "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"]
PATTERN = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")


def train():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    pages = pathlib.Path(__file__).parents[2] / "docs"
    tokenizer.train([str(page) for page in sorted(pages.glob("*.md"))], trainers.BpeTrainer(
        vocab_size=2000, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **TOKENS)


def ends_within_characters(tokenizer, ids, theirs, ours):
    """Returns whether ours only adds tokens that complete a character whose first token both learn."""
    for i, (their, our) in enumerate(zip(theirs, ours, strict=True)):
        if their != our and not (our and ours[i - 1] and tokenizer.decode([ids[i]]) == "\ufffd"):
            return False
    return True


def main():
    driver, templates = sys.argv[1], read_templates(pathlib.Path(sys.argv[2]))
    tokenizer, folder = train(), pathlib.Path(tempfile.mkdtemp(prefix="chat_masks_"))
    cases, expected = [], []
    for number, (name, source) in enumerate(templates.items()):
        if not PATTERN.search(source):
            continue
        place = folder / str(number)
        tokenizer.save_pretrained(place)
        (place / "chat_template.jinja").write_text(source)
        code = re.sub(r"\{#.*?#\}", "", source, flags=re.DOTALL)
        for index, (messages, options) in enumerate(conversations()):
            if options.get("add_generation_prompt"):
                continue  # a prompt has no mask here
            options = {key: value for key, value in options.items() if key == "tools" or re.search(rf"\b{key}\b", code)}
            try:
                out = tokenizer.apply_chat_template(messages, chat_template=source, tokenize=True, return_dict=True,
                                                    return_assistant_tokens_mask=True, **options)
            except Exception:  # compare_jinja.py compares errors
                continue
            cases.append({"folder": str(place), "messages": messages, "options": options})
            expected.append((f"{name}, conversation {index}", out["input_ids"], out["assistant_masks"]))
    (folder / "cases.json").write_text(json.dumps(cases))
    subprocess.run([driver, "--nproc", "1", "--run-dir", str(folder / "run"),
                    str(pathlib.Path(__file__).with_name("encode_cases.lua")), str(folder / "cases.json"),
                    str(folder / "results.json")], check=True)
    wrong = learned = split = 0
    for (what, ids, mask), got in zip(expected, json.loads((folder / "results.json").read_text()), strict=True):
        learned += sum(mask)
        if got.get("input_ids") == ids and got.get("loss_mask") == mask:
            continue
        if got.get("input_ids") == ids and ends_within_characters(tokenizer, ids, mask, got["loss_mask"]):
            split += 1
            continue
        wrong += 1
        print(f"{what}: expected {ids}, {mask}; got {got}")
    print(f"{len(expected)} chats with marks, {learned} learned tokens: {wrong} differ; in {split} a turn ends with a "
          "character of several tokens, of which transformers learns the first alone")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
