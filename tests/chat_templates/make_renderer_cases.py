#!/usr/bin/env python3
"""Writes what transformers makes of chats of Qwen3, Qwen3-VL and Llama 3, for the test of the renderers in Lua.

    python3 tests/chat_templates/make_renderer_cases.py TEMPLATES

TEMPLATES is a wheel with the models' templates, that of trl 1.16.0. Needs transformers 5.23.0 and jinja2 3.1.6. A case has
"views": the text of the chat up to and with each message of the assistant, and "prompt": the whole chat with the header of
an answer. Writes renderers_cases.json next to its test in driver/lualib/lockstep/text/chat/.
"""

import pathlib
import sys

from compare_jinja import read_templates, render
from conversations import ARGUMENTS, TOOLS, assistant, call, conversations, parts, system, user
from make_cases import TEXT, write

OPTIONS = {"qwen3": {"enable_thinking"}, "qwen3_vl": {"add_vision_id"}, "llama3": set(),
           "llama3_1": {"date_string", "tools_in_user_message"}}


def tool(content):
    return {"role": "tool", "content": content}


def chats():
    """Returns (messages, options): what conversations() lacks."""
    think = {"reasoning_content": "\nTwo, and two \U0001f914.\n"}
    weather, trip = call("get_weather", {"city": "Zürich", "days": 3}), call("plan_trip", ARGUMENTS)
    yield [system("Be brief."), user("2 + 2?"), assistant("4", **think), user("é?"), assistant("\nÉ\n", **think),
           user(""), assistant("", reasoning_content="")], {}
    yield [user("Trip?"), assistant("", tool_calls=[weather], **think), tool("sunny"),
           assistant("Go.", tool_calls=[trip], **think), tool("booked <&>"), assistant("Done.", **think), user("東京?"),
           assistant("No.")], {"tools": TOOLS}
    yield [system(" Tools. "), user("A"), assistant("", tool_calls=[weather, trip]), tool("1"), tool("2"), assistant("B")], {
        "tools": TOOLS[:1]}
    yield [user("A"), assistant("B"), user("C")], {"enable_thinking": False}
    yield [user("A"), assistant("B", **think), user("C"), assistant("D")], {"enable_thinking": False}
    yield [user(" A "), assistant(" B ")], {"date_string": "22 Nov 2026"}
    yield [system("S"), user("A"), assistant("", tool_calls=[weather]), tool("x"), assistant("B")], {
        "tools": TOOLS, "tools_in_user_message": False}
    picture = {"role": "user", "content": [{"type": "image", "image": "a.png"}, *parts("What?"), {"type": "video"}]}
    shown = {"role": "tool", "content": [*parts("see "), {"type": "image_url", "image_url": "b.png"}]}
    reply = {"role": "assistant", "content": parts("A ", "cat."), "tool_calls": [weather]}
    for options in ({"tools": TOOLS[2:]}, {"add_vision_id": True}):
        yield [{"role": "system", "content": parts("Be", " kind")}, picture, reply, shown, assistant("Two."), picture,
               assistant("Three.")], options
    yield [assistant("<think>\nWhat?\n</think>\n\nI begin."), user("A"), assistant("B")], {}
    yield from conversations()


def main():
    templates = {pathlib.Path(name).stem: source for name, source in read_templates(pathlib.Path(sys.argv[1])).items()}
    cases = []
    for family in OPTIONS:
        for messages, options in chats():
            options = {key: value for key, value in options.items() if key == "tools" or key in OPTIONS[family]}
            try:
                views = [[i + 1, render(templates[family], messages[:i + 1], options)[0]]
                         for i, message in enumerate(messages) if message["role"] == "assistant"]
                prompt = render(templates[family], messages, {**options, "add_generation_prompt": True})[0]
            except Exception as error:  # the template refuses the chat: there is nothing to compare
                print(f"{family}: {type(error).__name__}: {error}")
                continue
            cases.append({"renderer": family, "messages": messages, "options": options, "views": views, "prompt": prompt})
    write(TEXT / "chat/renderers_cases.json", cases)


if __name__ == "__main__":
    main()
