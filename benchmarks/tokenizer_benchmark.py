#!/usr/bin/env python3
"""Times //driver/text against PyPI's tokenizers on one thread: tokenizer_benchmark.py PROGRAM [--wheels FOLDER]

    bazel build //driver/text/compare:tokenize
    python3 benchmarks/tokenizer_benchmark.py bazel-bin/driver/text/compare/tokenize

Needs tokenizers 0.23.3. The vocabularies are real: Qwen's (151,643 tokens, of the wheel dashscope 2.0.2) with the
expressions of four families, and that of the wheel anthropic 0.3.11 (65,000 tokens). `pip download --no-deps` brings
the wheels; nothing of them is installed or run. The text is about 10 MB: this repository's, then files of Python's
own library. Every document is encoded for itself, by both sides in turn, `--rounds` times; the medians are compared,
and the ids must be equal in number (compare.py compares them one by one). Time is the processor's, not the clock's:
other programs on the machine then change little.
"""

import argparse
import base64
import json
import os
import pathlib
import statistics
import struct
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import tokenizers  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "driver/text/compare"))
import compare  # noqa: E402
import make_fixtures  # noqa: E402

WHEELS = ("dashscope==2.0.2", "anthropic==0.3.11")
MEGABYTES = 10


def documents():
    texts = compare.repository_texts()
    size = sum(len(text.encode()) for text in texts)
    for path in sorted(pathlib.Path(sysconfig.get_path("stdlib")).glob("**/*.py")):
        if size > MEGABYTES * 1_000_000:
            break
        if "site-packages" in path.parts:
            continue
        try:
            texts.append(path.read_text())
        except UnicodeDecodeError:
            continue
        size += len(texts[-1].encode())
    return texts


def merges_of(ranks):
    """The two parts that each token was joined from: what BPE with the tokens before it gives."""
    merges = []
    for token, rank in ranks.items():
        parts = [bytes([byte]) for byte in token]
        while len(parts) > 2:
            pairs = [ranks.get(a + b, rank) for a, b in zip(parts, parts[1:])]
            best = min(range(len(pairs)), key=pairs.__getitem__)
            parts[best : best + 2] = [parts[best] + parts[best + 1]]
        if len(parts) == 2:
            merges.append((parts[0], parts[1], rank))
    return [(a, b) for a, b, _ in sorted(merges, key=lambda merge: merge[2])]


def qwen_files(wheel, folder):
    """Writes a tokenizer.json for each family's expression with Qwen's vocabulary; yields name and path."""
    lines = zipfile.ZipFile(wheel).read("dashscope/resources/qwen.tiktoken").split(b"\n")
    ranks = {base64.b64decode(line.split()[0]): int(line.split()[1]) for line in lines if line}
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in visible]
    alphabet = {**{byte: chr(byte) for byte in visible}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}

    def spelled(token):
        return "".join(alphabet[byte] for byte in token)

    model = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "",
        "fuse_unk": False, "byte_fallback": False, "vocab": {spelled(token): rank for token, rank in ranks.items()},
        "merges": [[spelled(a), spelled(b)] for a, b in merges_of(ranks)],
    }  # fmt: skip
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    added = [{"id": len(ranks) + i, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True}
             for i, token in enumerate(("<|endoftext|>", "<|im_start|>", "<|im_end|>"))]  # fmt: skip
    for name, pattern in {"gpt2": None, **make_fixtures.PATTERNS}.items():
        split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        content = {
            "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
            "normalizer": {"type": "NFC"} if name.startswith("qwen") else None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]} if pattern else {**level, "use_regex": True},
            "post_processor": None, "decoder": level, "model": model,
        }  # fmt: skip
        path = pathlib.Path(folder) / f"{name}.json"
        path.write_text(json.dumps(content))
        yield name, path


def ours(program, path, framed):
    run = subprocess.run([program, "--time", "1", str(path)], input=framed, capture_output=True, check=True)
    seconds, count = run.stdout.split()
    return float(seconds), int(count)


def measure(program, name, path, texts, rounds):
    oracle = tokenizers.Tokenizer.from_file(str(path))
    framed = compare.frame(texts)
    size = (len(framed) - 4 * len(texts)) / 1e6
    mine, theirs = [], []
    for _ in range(rounds):
        seconds, count = ours(program, path, framed)
        mine.append(seconds)
        start = time.process_time()
        expected = sum(len(oracle.encode(text)) for text in texts)
        theirs.append(time.process_time() - start)
        assert count == expected, (name, count, expected)
    a, b = statistics.median(mine), statistics.median(theirs)
    print(f"{name}: {size:.1f} MB, {count} tokens; ours {size / a:.1f} MB/s (best {size / min(mine):.1f}), tokenizers "
          f"{size / b:.2f} MB/s (best {size / min(theirs):.2f}), ratio {b / a:.1f}", flush=True)  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--wheels", help="a folder that has the wheels; default: they are downloaded")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", help="the name of one tokenizer")
    arguments = parser.parse_args()
    texts = documents()
    with tempfile.TemporaryDirectory() as folder:
        wheels = pathlib.Path(arguments.wheels or folder)
        if not arguments.wheels:
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, *WHEELS]
            subprocess.run(command, check=True)
        files = dict(qwen_files(next(wheels.glob("dashscope-*.whl")), folder))
        files["anthropic"] = pathlib.Path(folder) / "anthropic.json"
        files["anthropic"].write_bytes(zipfile.ZipFile(next(wheels.glob("anthropic-*.whl"))).read("anthropic/tokenizer.json"))
        for name, path in files.items():
            if arguments.only in (None, name):
                measure(arguments.program, name, path, texts, arguments.rounds)


if __name__ == "__main__":
    main()
