#!/usr/bin/env python3
"""Compares this project's renderings of chat templates with transformers', byte for byte, and times both.

    python3 compare_jinja.py DRIVER TEMPLATES [--time N]

DRIVER is the program, bazel-bin/driver/lockstep; TEMPLATES a wheel or a folder with *.jinja, such as that of trl 1.16.0.
Needs transformers 5.23.0 and jinja2 3.1.6. Every template renders the thirty conversations of conversations.py. Where
transformers raises an error, this project must; where it marks what the assistant says, the spans must be equal.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import zipfile

from conversations import conversations
from jinja2.exceptions import TemplateError
from transformers.utils import chat_template_utils

TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
REFUSES = "the template refuses the conversation: "


def read_templates(path):
    if path.is_dir():
        return {str(file.relative_to(path)): file.read_text() for file in sorted(path.rglob("*.jinja"))}
    with zipfile.ZipFile(path) as wheel:
        names = sorted(name for name in wheel.namelist() if name.endswith(".jinja"))
        return {name: wheel.read(name).decode() for name in names}


def without_none(messages):
    """Drops what is None from messages, as PreTrainedTokenizer.apply_chat_template does."""
    return [{key: value for key, value in message.items() if value is not None} for message in messages]


def render(source, messages, options):
    options = {**TOKENS, **options}
    texts, spans = chat_template_utils.render_jinja_template(
        [without_none(messages)], chat_template=source, return_assistant_tokens_mask="generation" in source, **options)
    return texts[0], spans[0] if spans else []


def alone(source, messages, options):
    """Returns a function that lets jinja2 render what transformers has prepared, and nothing else."""
    template = chat_template_utils._compile_jinja_template(source)
    variables = {"tools": None, "documents": None, "add_generation_prompt": False, **TOKENS, **options}
    messages = chat_template_utils._alias_reasoning_fields(without_none(messages))
    return lambda: template.render(messages=messages, **variables)


def seconds_of(function, repeats):
    """Returns the processor's seconds of one call."""
    start = time.process_time()
    for _ in range(repeats):
        function()
    return (time.process_time() - start) / repeats


def bytes_of(text, spans):
    """Returns spans of characters, as bytes from 1 on with both ends included, and without those within others."""
    result = []
    for first, last in spans:
        begin, end = len(text[:first].encode()) + 1, len(text[:last].encode())
        if end >= begin:
            result.append([begin, end])
    return result


def covered(spans):
    """Returns all bytes of the spans: marks within marks count once."""
    return {byte for first, last in spans for byte in range(first, last + 1)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("driver")
    parser.add_argument("templates", type=pathlib.Path)
    parser.add_argument("--time", type=int, default=1, metavar="N", help="renderings of each case")
    arguments = parser.parse_args()
    templates = read_templates(arguments.templates)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="chat_templates_"))
    cases, expected = [], []
    for number, (name, source) in enumerate(templates.items()):
        place = folder / str(number)
        place.mkdir()
        (place / "chat_template.jinja").write_text(source)
        (place / "tokenizer_config.json").write_text(json.dumps(TOKENS))
        code = re.sub(r"\{#.*?#\}", "", source, flags=re.DOTALL)
        for index, (messages, options) in enumerate(conversations()):
            options = {key: value for key, value in options.items()
                       if key in ("tools", "add_generation_prompt") or re.search(rf"\b{key}\b", code)}
            outcome = {"name": name, "index": index, "seconds": 0, "seconds_alone": 0}
            try:
                text, spans = render(source, messages, options)
                outcome.update(text=text, spans=bytes_of(text, spans))
                if arguments.time > 1:
                    outcome["seconds"] = seconds_of(lambda: render(source, messages, options), arguments.time)
                    outcome["seconds_alone"] = seconds_of(alone(source, messages, options), arguments.time)
            except Exception as error:  # any error of theirs must be one of ours
                outcome.update(failure=f"{type(error).__name__}: {error}")
                if type(error) is TemplateError:  # raise_exception of the template
                    outcome.update(failure=f"{REFUSES}{error}")
            expected.append(outcome)
            ours = dict(options)
            if "add_generation_prompt" in ours:
                ours["generation_prompt"] = ours.pop("add_generation_prompt")
            cases.append({"folder": str(place), "messages": messages, "options": ours})
    (folder / "cases.json").write_text(json.dumps(cases))
    script = pathlib.Path(__file__).with_name("render_cases.lua")
    subprocess.run([arguments.driver, "--nproc", "1", "--run-dir", str(folder / "run"), str(script),
                    str(folder / "cases.json"), str(folder / "results.json"), str(arguments.time)], check=True)
    report(templates, expected, json.loads((folder / "results.json").read_text()), arguments.time > 1)


def report(templates, expected, results, timed):
    wrong, failures, marked, theirs, alone_, ours = 0, 0, 0, 0, 0, 0
    for want, got in zip(expected, results, strict=True):
        problem = None
        if "failure" in want:
            failures += 1
            if "failure" not in got:
                problem = f"expected {want['failure']!r}, got the text {got['text']!r}"
            elif want["failure"].startswith(REFUSES) and want["failure"] not in got["failure"]:
                problem = f"expected {want['failure']!r}, got {got['failure']!r}"
            elif not want["failure"].startswith(REFUSES) and (REFUSES in got["failure"] or "support" in got["failure"]):
                problem = f"expected {want['failure']!r}, got {got['failure']!r}"
        elif "failure" in got:
            problem = f"got the error {got['failure']!r}"
        elif want["text"] != got["text"]:
            problem = f"expected\n{want['text']!r}\ngot\n{got['text']!r}"
        elif covered(want["spans"]) != covered(got["spans"]):
            problem = f"expected the marks {want['spans']}, got {got['spans']}"
        else:
            marked += bool(want["spans"])
            theirs += want["seconds"]
            alone_ += want["seconds_alone"]
            ours += got.get("seconds", 0)
        if problem:
            wrong += 1
            print(f"{want['name']}, conversation {want['index']}: {problem}")
    print(f"{len(templates)} templates, {len(expected)} renderings: {wrong} differ; "
          f"{failures} refused by both, {marked} with marks of the assistant's text")
    if timed:
        print(f"one rendering of each, processor time: transformers {theirs * 1e3:.1f} ms, jinja2 alone "
              f"{alone_ * 1e3:.1f} ms, this project {ours * 1e3:.1f} ms; "
              f"ratios {ours / theirs:.2f} and {ours / alone_:.2f}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
