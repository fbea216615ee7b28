#!/usr/bin/env python3
"""Compares ids and decoded texts with PyPI's tokenizers 0.23.3: compare.py PROGRAM [TOKENIZER.json...]

    bazel build //driver/text/compare:tokenize
    python3 driver/text/compare/compare.py bazel-bin/driver/text/compare/tokenize

Texts: every text file of this repository, 20,000 random strings (the seed is printed), and every code point of
Unicode (of the empty planes each 97th) among letters, digits, spaces, apostrophes and marks. Without TOKENIZER, the families of ../testdata.

Exceptions by version of Unicode. None for what these families use: regular expressions see Unicode 16.0 on both
sides, normal forms Unicode 9.0. The pre-tokenizer Digits and the normalizer Lowercase of tokenizers 0.23.3 know
Unicode 17.0; here they are of 16.0. See EXCEPTIONS.
"""

import argparse
import pathlib
import random
import struct
import subprocess
import sys
import unicodedata

import tokenizers

ROOT = pathlib.Path(__file__).resolve().parents[3]
DATA = ROOT / "driver/text/testdata"
PER_TEXT = 64  # code points

# Numbers of Unicode 17.0 (Digits) and capitals of Unicode 17.0 (Lowercase): left out of what is compared.
EXCEPTIONS = {*range(0x11DE0, 0x11DEA), *range(0x16FF4, 0x16FF7), 0xA7CE, 0xA7D2, 0xA7D4, *range(0x16EA0, 0x16EB9)}

PIECES = [
    "'s", "'S", "'ll", "'LL", "'re", "'\u017f", "n't", "\r\n", "\n\n", " ", "  ", "\t", "\u00a0", "\u3000", "123", "4567",
    "\u2167", "\u00bd", "hello", "World", "XML", "iPhone", "\u00e9", "e\u0301", "\u0323\u0307", "\u1e9b\u0323", "\uac01",
    "\u1100\u1161\u11a8", "\u4f60\u597d", "\u3053\u3093", "\u0928\u092e\u0938\u094d\u0924\u0947", "\u0645\u0631\u062d\u0628\u0627",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\u01c5", "\u02b0", "\u00aa", "\u0300", "\u20dd", "!?", "//", "_", "--",
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<s>", "</s>", "<unk>", "<mask>", "Lua", "tokens",
    "\u2581", "<0x41>", "\ufb01", "\u00c5", "\u212b", "\x00", "\ufeff", "\u0085", "\u2028",
]  # fmt: skip


def random_char(rng):
    kind = rng.random()
    if kind < 0.3:
        return chr(rng.randrange(0x20, 0x7F))
    if kind < 0.5:
        return chr(rng.randrange(0x80, 0x600))
    if kind < 0.8:
        code = rng.randrange(0x600, 0xD800)
    else:
        code = rng.choice((rng.randrange(0xE000, 0x20000), rng.randrange(0x20000, 0x110000)))
    return " " if code in EXCEPTIONS else chr(code)


def random_text(rng):
    parts = []
    for _ in range(rng.randrange(1, 24)):
        if rng.random() < 0.5:
            parts.append(rng.choice(PIECES) * rng.choice((1, 1, 1, 2, 5)))
        else:
            parts.append("".join(random_char(rng) for _ in range(rng.randrange(1, 6))))
    return "".join(parts)


def repository_texts():
    names = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], check=True, capture_output=True).stdout
    texts = []
    for name in names.decode().split("\0"):
        path = ROOT / name
        if not name or not path.is_file():
            continue
        try:
            texts.append(path.read_bytes().decode())
        except UnicodeDecodeError:
            pass  # not a text
    return texts


def every_code_point():
    planes = [range(0xD800), range(0xE000, 0x33480), range(0x33480, 0xE0000, 97), range(0xE0000, 0xE0200)]
    planes.append(range(0xE0200, 0x110000, 97))
    codes = [code for plane in planes for code in plane if code not in EXCEPTIONS]
    texts = []
    for at in range(0, len(codes), PER_TEXT):
        chars = [chr(code) for code in codes[at : at + PER_TEXT]]
        texts.append("".join(f"a{c}b {c}1'{c}\n{c}e\u0345{c}\u0301" for c in chars))
    return texts


def frame(texts):
    encoded = (text.encode() for text in texts)
    return b"".join(struct.pack("<I", len(text)) + text for text in encoded)


def read_results(output):
    at = 0
    while at < len(output):
        (count,) = struct.unpack_from("<I", output, at)
        ids = list(struct.unpack_from(f"<{count}i", output, at + 4))
        at += 4 + 4 * count
        (size,) = struct.unpack_from("<I", output, at)
        yield ids, output[at + 4 : at + 4 + size].decode()
        at += 4 + size


def show(text):
    return " ".join(f"U+{ord(c):04X}" for c in text[:40])


def compare(program, path, kinds):
    """Prints a line for each kind of text, and returns the number of texts that differ."""
    oracle = tokenizers.Tokenizer.from_file(str(path))
    oracle.no_truncation()
    oracle.no_padding()
    differing = 0
    for kind, texts in kinds.items():
        run = subprocess.run([program, str(path)], input=frame(texts), capture_output=True, check=False)
        if run.returncode != 0:
            sys.exit(f"{path.name}: {run.stderr.decode()}")
        results = list(read_results(run.stdout))
        assert len(results) == len(texts), (len(results), len(texts))
        encodings = oracle.encode_batch(texts)
        decoded = oracle.decode_batch([encoding.ids for encoding in encodings], skip_special_tokens=False)
        wrong = 0
        for text, (ids, back), encoding, expected in zip(texts, results, encodings, decoded):
            if ids == encoding.ids and back == expected:
                continue
            wrong += 1
            if wrong <= 3:
                first = next((i for i, (a, b) in enumerate(zip(ids, encoding.ids)) if a != b), -1)
                print(f"  differs: {text[:60]!r} ({show(text)})\n    ours   {ids[:40]} {back[:60]!r}")
                print(f"    theirs {encoding.ids[:40]} {expected[:60]!r}; first difference at {first}")
        tokens = sum(len(encoding.ids) for encoding in encodings)
        print(f"{path.name}: {kind}: {len(texts)} texts, {tokens} tokens, {wrong} differ", flush=True)
        differing += wrong
    return differing


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("tokenizer", nargs="*", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--random", type=int, default=20000, help="how many random strings")
    arguments = parser.parse_args()
    assert tokenizers.__version__ == "0.23.3", tokenizers.__version__
    rng = random.Random(arguments.seed)
    kinds = {
        "repository": repository_texts(),
        f"random, seed {arguments.seed}": [random_text(rng) for _ in range(arguments.random)],
        "every code point": every_code_point(),
    }
    paths = arguments.tokenizer or sorted(path for path in DATA.glob("*.json") if path.stem not in ("components", "expected"))
    differing = sum(compare(arguments.program, path, kinds) for path in paths)
    print(f"Python's own Unicode is {unicodedata.unidata_version}; {differing} texts differ")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
