#!/usr/bin/env python3
"""Writes expected.json, what PyPI's tokenizers learns from a few texts: make_expected.py

Needs tokenizers 0.23.3. Each case names a tokenizer of ../testdata, whose normalizer and pre-tokenizer are used. The
texts are short, so most pairs have the same count, and the order of ties decides.
"""

import json
import pathlib

import tokenizers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

assert tokenizers.__version__ == "0.23.3", tokenizers.__version__
HERE = pathlib.Path(__file__).resolve().parent

TEXTS = [
    "low lower lowest newer newest wider widest",
    "aaaa aaa aaaaaaaa banana bananas ananas",
    "the other then these theme path that math bath",
    "for (int i = 0; i < n; ++i) {\n  sum[i] += x[i];\n}\n",
    "Caf\u00e9 cafe\u0301 \u00fcber \u4f60\u597d\u4f60\u597d \u041f\u0440\u0438\u0432\u0435\u0442 \u043f\u0440\u0438\u0432\u0435\u0442 \U0001f600\U0001f600\U0001f601",
    "1234 12345 2024 2025 2026 It's we'll don't  \n\n  double  spaces\t\ttabs",
    "",
]
CASES = [("gpt2", 330, 1), ("gpt2", 600, 2), ("qwen2", 400, 1), ("qwen2", 5000, 3), ("llama3", 350, 1), ("qwen2", 256, 1)]


def learn(name, num_tokens, min_frequency):
    content = json.loads((HERE.parent / "testdata" / f"{name}.json").read_text())
    content["model"] = json.loads(Tokenizer(models.BPE()).to_str())["model"]
    content["added_tokens"], content["post_processor"] = [], None
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.train_from_iterator(
        TEXTS,
        trainers.BpeTrainer(
            vocab_size=num_tokens,
            min_frequency=min_frequency,
            show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    model = json.loads(tokenizer.to_str())["model"]
    return {
        "tokenizer": name,
        "num_tokens": num_tokens,
        "min_frequency": min_frequency,
        "tokens": sorted(model["vocab"], key=model["vocab"].get),
        "merges": [list(merge) for merge in model["merges"]],
    }


def main():
    expected = {"texts": TEXTS, "cases": [learn(*case) for case in CASES]}
    (HERE / "expected.json").write_text(json.dumps(expected, ensure_ascii=False, indent=0) + "\n")


if __name__ == "__main__":
    main()
