#!/usr/bin/env python3
"""Trains the small tokenizers of ../testdata, and writes what they give: make_fixtures.py

Needs tokenizers 0.23.3 from PyPI. Each family has the parts of the real one (normalizer, pre-tokenizer, model,
post-processor, decoder, added tokens) and a vocabulary of about two thousand tokens, learnt from this repository's
documents and from the texts below. expected.json holds, for each family, ids and decoded texts of TEXTS; components.json
holds tokenizers with one part each, and the same of them.
"""

import json
import pathlib
import sys

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

assert tokenizers.__version__ == "0.23.3", tokenizers.__version__
HERE = pathlib.Path(__file__).resolve().parent
DATA = HERE.parent / "testdata"
ROOT = HERE.parents[2]

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
PREFIX = r"[^\r\n\p{L}\p{N}]?"
SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
SIGNS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*" + SPACES
SMALL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
CAPITAL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
SLASH = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + SPACES
PATTERNS = {
    "llama3": CONTRACTIONS + "|" + PREFIX + r"\p{L}+|\p{N}{1,3}" + SIGNS,
    "qwen2": CONTRACTIONS + "|" + PREFIX + r"\p{L}+|\p{N}" + SIGNS,
    "qwen35": CONTRACTIONS + "|" + PREFIX + r"[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + SPACES,
    "o200k": f"{PREFIX}{SMALL}{CONTRACTIONS}?|{PREFIX}{CAPITAL}{CONTRACTIONS}?" + r"|\p{N}{1,3}" + SLASH,
}

TEXTS = [
    "",
    " ",
    "  \n\n \t x  ",
    "Hello, world! It's 2026, and we'll see 12345678 tokens.",
    "HELLO'LL don't I'VE we'Re they'\u017f",
    "Caf\u00e9 cafe\u0301 \u1e69 s\u0323\u0307 \u212b \ufb01ne \uac00 \u1100\u1161\u11a8",
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01 \u3053\u3093\u306b\u3061\u306f \ud55c\uad6d\uc5b4",
    "\u041f\u0440\u0438\u0432\u0435\u0442 \u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd \u0928\u092e\u0938\u094d\u0924\u0947",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2460\u00bd\u0663 a\u00a0b\u2003c\u3000d",
    "<|im_start|>user\nHi<|im_end|> <think>\n\n</think><|endoftext|>",
    "<s>text</s> <unk> <mask>  mask<mask>x",
    "for (int i = 0; i < n; ++i) {\n\t  x[i] += 1.5e-3;  // a comment\r\n}\r\n\r\n",
    "camelCaseXMLHttpRequest SNAKE_CASE_name //path/to\n///\n",
    "\u2581already \u2581\u2581marked\u2581",
    "antidisestablishmentarianism" * 5 + "=" * 100 + "\u4f60" * 60,
    "\x00\x01\x7f\u0085\u2028 \ufeff\ufffd\U0010ffff",
]


def texts():
    files = sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("scripts/*.lua"), *ROOT.glob("*/*/*.cc")])
    return [file.read_text() for file in files] + TEXTS * 3


def train(tokenizer, trainer):
    tokenizer.train_from_iterator(texts(), trainer)
    return tokenizer


def byte_level(pattern, vocab_size, *, normalizer=None, prefix=None, ignore_merges=False, added=()):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer:
        tokenizer.normalizer = normalizer
    if pattern is None:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ])  # fmt: skip
    tokenizer.decoder = decoders.ByteLevel()
    train(tokenizer, trainers.BpeTrainer(
        vocab_size=vocab_size, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))  # fmt: skip
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens(list(added))
    level = processors.ByteLevel(trim_offsets=False)
    if prefix:
        template = processors.TemplateProcessing(
            single=f"{prefix} $A", pair=f"{prefix} $A {prefix}:1 $B:1",
            special_tokens=[(prefix, tokenizer.token_to_id(prefix))])  # fmt: skip
        level = processors.Sequence([level, template])
    tokenizer.post_processor = level
    return tokenizer


def llama2_decoders():
    return [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]


def sentencepiece(vocab_size):
    """Llama 2's: no pre-tokenizer, bytes for what the vocabulary lacks."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    # Trained on words, used without a pre-tokenizer, as the real one is.
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    train(tokenizer, trainers.BpeTrainer(
        vocab_size=vocab_size, show_progress=False, special_tokens=special, limit_alphabet=150))  # fmt: skip
    content = json.loads(tokenizer.to_str())
    content["pre_tokenizer"] = None
    content["added_tokens"] = [token for token in content["added_tokens"] if token["id"] < 3]
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.decoder = decoders.Sequence(llama2_decoders())
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)])  # fmt: skip
    return tokenizer


def gemma(llama2):
    """Gemma's parts around the model of Llama 2: no space is put in front, and spaces are split before they are gone."""
    content = json.loads(llama2.to_str())
    content["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    content["pre_tokenizer"] = {
        "type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False,
    }  # fmt: skip
    content["decoder"]["decoders"].pop()  # Strip
    content["added_tokens"] += [
        {"id": 2000 + i, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": False} for i, token in enumerate(("\n\n", "\u2581\u2581", "<start_of_turn>"))]  # fmt: skip
    return Tokenizer.from_str(json.dumps(content))


def unigram(vocab_size):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    train(tokenizer, trainers.UnigramTrainer(
        vocab_size=vocab_size, show_progress=False, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>"))  # fmt: skip
    tokenizer.add_tokens([AddedToken("<mask>", lstrip=True, special=True, normalized=False)])
    tokenizer.add_tokens([AddedToken("Lua", single_word=True), AddedToken("tokens", rstrip=True, normalized=True)])
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B:1 </s>:1", special_tokens=[("</s>", 1)])  # fmt: skip
    return tokenizer


def families():
    think = [AddedToken(token, normalized=False, special=False) for token in ("<think>", "</think>")]
    llama2 = sentencepiece(2000)
    return {
        "gpt2": byte_level(None, 2000),
        "llama3": byte_level(PATTERNS["llama3"], 2000, prefix="<|endoftext|>", ignore_merges=True),
        "qwen2": byte_level(PATTERNS["qwen2"], 2000, normalizer=normalizers.NFC(), added=think),
        "qwen35": byte_level(PATTERNS["qwen35"], 1500, normalizer=normalizers.NFC(), added=think),
        "o200k": byte_level(PATTERNS["o200k"], 2000),
        "llama2": llama2,
        "gemma": gemma(llama2),
        "unigram": unigram(2000),
    }


# An expression that none of the scanners knows, with possessive quantifiers, as nanochat's tokenizer has it.
NANOCHAT = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)

# Parts one by one. A word of characters that the model lacks is one unknown token: so the ids show where words end.
COMPONENT_TEXTS = [
    "", " ", "ab", "  ab  cd ", "a 1 22 b3", "A b\tc\n d", "x<m>y", "x <m> y <m>", "<m><m>", "a<m>b <m>c", "_<m>_ \u00e9<m>",
    "\u2581ab\u2581 cd", "a-b--c", "-", "\u0130\u03a3\u1e9e\u01c5", "\ufb01\u2126\u1e9b\u0323", "  \u3000a\u00a0 ", "a<n>b <N>", "a--b", "12\u00bd\u2167",
]  # fmt: skip


def component(normalizer=None, pre_tokenizer=None, added=(), decoder=None):
    vocabulary = ["<unk>", "a", "b", "\u2581", " ", "1", "-", "\u0120", "\u2581a", "<0xE4>", "<0xBD>", "<0xA0>", "<0xFF>", "\u00e4", "\u00bd"]
    tokenizer = Tokenizer(models.BPE(
        vocab={token: i for i, token in enumerate(vocabulary)}, merges=[("\u2581", "a")], unk_token="<unk>", fuse_unk=True))  # fmt: skip
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    if decoder:
        tokenizer.decoder = decoder
    tokenizer.add_tokens(list(added))
    return tokenizer


def component_list():
    for behavior in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
        for invert in (False, True):
            yield component(pre_tokenizer=pre_tokenizers.Split("-", behavior, invert))
            # The second alternative matches nothing, before a character.
            yield component(pre_tokenizer=pre_tokenizers.Split(Regex(r"\p{N}{1,2}|(?=b)"), behavior, invert))
    yield component(pre_tokenizer=pre_tokenizers.Split(Regex(NANOCHAT), "isolated"))
    for scheme in ("always", "first", "never"):
        for split in (False, True):
            yield component(
                pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split),
                decoder=decoders.Metaspace(prepend_scheme=scheme), added=[AddedToken("<m>")])  # fmt: skip
    for individual in (False, True):
        yield component(pre_tokenizer=pre_tokenizers.Digits(individual))
    yield component(pre_tokenizer=pre_tokenizers.Whitespace())
    yield component(pre_tokenizer=pre_tokenizers.WhitespaceSplit())
    yield component(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True), decoder=decoders.ByteLevel())
    yield component(pre_tokenizer=pre_tokenizers.Sequence([
        pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Digits(True), pre_tokenizers.Metaspace(prepend_scheme="first")]))  # fmt: skip
    for form in (normalizers.NFC(), normalizers.NFD(), normalizers.NFKC(), normalizers.NFKD(), normalizers.Lowercase(),
                 normalizers.Prepend("a"), normalizers.Replace("a", "bb"), normalizers.Replace(Regex(" {2,}"), "-"),
                 normalizers.Replace(Regex(r"\s+|(?<=1)"), "-"), normalizers.Replace(Regex("b*"), "a"),
                 normalizers.Strip(True, False), normalizers.Strip(False, True), normalizers.Strip()):  # fmt: skip
        yield component(normalizer=normalizers.Sequence([form]), pre_tokenizer=pre_tokenizers.WhitespaceSplit())
    for lstrip in (False, True):
        for rstrip in (False, True):
            for single_word in (False, True):
                for normalized in (False, True):
                    token = AddedToken("<m>", lstrip=lstrip, rstrip=rstrip, single_word=single_word, normalized=normalized)
                    yield component(added=[token, AddedToken("<N>", normalized=normalized), AddedToken("<m><m>")],
                                    normalizer=normalizers.Lowercase())  # fmt: skip
    # Tokens that the normalizer of Llama 2 changes. Decoders get them as it leaves them.
    for content in ("<m>", " <m>", "\u2581a"):
        for normalized in (False, True):
            yield component(
                normalizer=normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]),
                added=[AddedToken(content, normalized=normalized), AddedToken("-", normalized=True), AddedToken("<n>", normalized=False)],
                decoder=decoders.Sequence(llama2_decoders()))  # fmt: skip
    yield component(normalizer=normalizers.Lowercase(), added=[AddedToken("<N>", normalized=True), AddedToken("A", lstrip=True)])
    for parts in (
        [decoders.ByteFallback()], [decoders.ByteFallback(), decoders.Fuse()], [decoders.Strip("a", 1, 0)],
        [decoders.Strip("a", 0, 1)], [decoders.Fuse(), decoders.Strip("a", 0, 1)], [decoders.Fuse(), decoders.Replace("ab", "<>")],
        llama2_decoders(), [decoders.ByteLevel()], [decoders.ByteLevel(), decoders.Strip("a", 2, 0)],
    ):  # fmt: skip
        yield component(decoder=decoders.Sequence(parts))


DECODED_IDS = [[1], [1, 1, 2, 1, 1], [9, 10, 11, 1, 9, 10, 2], [9, 10, 11, 12, 9], [13, 14, 1, 13], [3, 8, 4, 3, 1], [1, 2, 1, 2, 1, 1],
               [15, 1], [8, 15, 3, 1], [15, 16, 8, 17], [1, 16, 15, 15, 3, 16]]


def components():
    cases = []
    for tokenizer in component_list():
        cases.append({
            "tokenizer": json.loads(tokenizer.to_str()),
            "ids": [tokenizer.encode(text).ids for text in COMPONENT_TEXTS],
            "decoded": [tokenizer.decode(ids, skip_special_tokens=False) for ids in DECODED_IDS],
        })  # fmt: skip
    return {"texts": COMPONENT_TEXTS, "decoded_ids": DECODED_IDS, "cases": cases}


def write_family(name, tokenizer, expected):
    content = json.loads(tokenizer.to_str())
    if name == "gpt2":  # the older spelling of merges
        content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]
    path = DATA / f"{name}.json"
    path.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n")
    tokenizer = Tokenizer.from_file(str(path))
    encoded = [tokenizer.encode(text).ids for text in TEXTS]
    expected[name] = {
        "size": tokenizer.get_vocab_size(),
        "ids": encoded,
        "plain_ids": [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS],
        "decoded": [tokenizer.decode(ids, skip_special_tokens=False) for ids in encoded],
        "decoded_plain": [tokenizer.decode(ids, skip_special_tokens=True) for ids in encoded],
    }


def main():
    DATA.mkdir(exist_ok=True)
    expected = {"texts": TEXTS}
    for name, tokenizer in families().items():
        write_family(name, tokenizer, expected)
    for name, content in ("expected", expected), ("components", components()):
        (DATA / f"{name}.json").write_text(json.dumps(content, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    sys.exit(main())
