#!/usr/bin/env python3
"""Writes what jinja2 makes of small templates, and of three chat templates of ours, for the tests in Lua.

    python3 tests/chat_templates/make_cases.py

Needs transformers 5.23.0 and jinja2 3.1.6 on Python 3.11. Writes jinja_cases.json and chat_cases.json next to their tests
in driver/lualib/lockstep/text/. A case is {"template", "variables", "text"}, or "failure" where jinja2 raises an error.
"""

import json
import pathlib
import re

from compare_jinja import TOKENS, bytes_of, render
from conversations import conversations
from snippets import SNIPPETS, VARIABLES
from transformers.utils import chat_template_utils

TEXT = pathlib.Path(__file__).parents[2] / "driver/lualib/lockstep/text"


def write(path, value):
    lines = ",\n".join(json.dumps(item, ensure_ascii=False) for item in value)
    path.write_text(f"[\n{lines}\n]\n")
    print(f"{path.name}: {len(value)} cases")


def main():
    cases = []
    for source in SNIPPETS:
        case = {"template": source}
        try:
            case["text"] = chat_template_utils._compile_jinja_template(source).render(**VARIABLES)
        except Exception as error:  # every error is one of ours, too
            case["failure"] = f"{type(error).__name__}: {error}"
        cases.append(case)
    write(TEXT / "jinja/jinja_cases.json", [{"variables": VARIABLES}, *cases])
    cases = []
    for path in sorted((TEXT / "chat").glob("*.jinja")):
        source = path.read_text()
        code = re.sub(r"\{#.*?#\}", "", source, flags=re.DOTALL)
        for messages, options in conversations():
            options = {key: value for key, value in options.items()
                       if key in ("tools", "add_generation_prompt") or re.search(rf"\b{key}\b", code)}
            case = {"template": path.name, "messages": messages, "options": options}
            try:
                text, spans = render(source, messages, options)
                case.update(text=text, spans=bytes_of(text, spans))
            except Exception as error:  # as above
                case["failure"] = f"{type(error).__name__}: {error}"
            cases.append(case)
    write(TEXT / "chat/chat_cases.json", [{"tokens": TOKENS}, *cases])


if __name__ == "__main__":
    main()
