"""Thirty conversations that reach into the corners of chat templates."""

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Returns the weather of a city: \"sunny\", <rain> & 'snow'.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "The city, e.g. Zürich or 東京"},
                    "days": {"type": "integer", "enum": [1, 3, 7], "default": 1},
                    "unit": {"type": ["string", "null"], "enum": ["celsius", "kelvin"], "nullable": True},
                },
                "required": ["city"],
            },
            "return": {"type": "string", "description": "the weather"},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "plan_trip",
            "description": "Plans a trip.",
            "parameters": {
                "type": "object",
                "properties": {
                    "stops": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "properties": {
                                "place": {"type": "string"},
                                "position": {"type": "array", "items": {"type": "number"}, "minItems": 2},
                            },
                            "required": ["place", "position"],
                        },
                    },
                    "budget": {"type": "number", "minimum": 0.5, "maximum": 1e6, "description": "in francs"},
                    "options": {"type": "object", "properties": {}, "additionalProperties": False},
                },
                "required": [],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "description": "The time.", "parameters": {"type": "object", "properties": {}}}},
]

ARGUMENTS = {
    "zone": "Zürich \U0001f3d4\ufe0f",
    "days": 3,
    "ratio": 1.0,
    "tiny": 1e-7,
    "large": 1.5e300,
    "flags": [True, False, None],
    "nested": {"b": [1, 2.5, "x\n\"y\""], "a": {}, "empty": []},
}


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def system(content):
    return {"role": "system", "content": content}


def call(name, arguments, **more):
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


def parts(*texts):
    return [{"type": "text", "text": text} for text in texts]


def conversations():
    """Returns (messages, options) of each conversation."""
    weather = call("get_weather", {"city": "東京", "days": 3}, id="call00001")
    trip = call("plan_trip", ARGUMENTS, id="call00002")
    tool = {"role": "tool", "name": "get_weather", "tool_call_id": "call00001", "content": '{"weather": "sunny", "t": 21.5}'}
    other = {"role": "tool", "name": "plan_trip", "tool_call_id": "call00002", "content": "no <trip> & 'plan'"}
    turns = [user("Hi"), assistant("Hello!"), user("2 + 2?"), assistant("4"), user("Sure?"), assistant("Yes.")]
    thinking = "<think>\nTwo and two.\n</think>\n\n4"
    yield [user("Hello")], {}
    yield [user("Hello")], {"add_generation_prompt": True}
    yield [system("Be brief."), user("Hello")], {"add_generation_prompt": True}
    yield turns, {}
    yield [system("You are  a helpful assistant. \n"), *turns], {}
    yield [user("  white \t space \n\n"), assistant("\n\n  kept?  \n")], {}
    yield [user("größe ß ŒUVRE İstanbul ΣΑΣ 東京 \U0001f468\u200d\U0001f469\u200d\U0001f467 \u00a0\u2003x"), assistant("e\u0301 \U0001d538")], {}
    yield [user(""), assistant("")], {}
    yield [user("2 + 2?"), assistant(thinking)], {}
    yield [user("2 + 2?"), assistant(thinking), user("And 3?"), assistant("<think>\n\n</think>\n\n5")], {}
    yield [user("2 + 2?"), assistant("4", reasoning_content="Two and two.\n"), user("3?"), assistant("5", reasoning_content="x")], {}
    yield [user("2 + 2?"), assistant("4", thinking="older name")], {"add_generation_prompt": True}
    yield [user("Hello")], {"add_generation_prompt": True, "enable_thinking": False}
    yield [user("Hello")], {"add_generation_prompt": True, "enable_thinking": True, "reasoning_effort": "high"}
    yield [user("Weather?")], {"tools": TOOLS, "add_generation_prompt": True}
    yield [system("Use tools."), user("Weather?")], {"tools": TOOLS[:1], "add_generation_prompt": True}
    yield [user("Weather?"), assistant("", tool_calls=[weather]), tool, assistant("Sunny.")], {"tools": TOOLS}
    yield [user("Weather?"), assistant("Let me look.", tool_calls=[weather]), tool, assistant("Sunny."), user("Thanks"), assistant("Bye")], {"tools": TOOLS[:1]}
    yield [user("Trip?"), assistant(None, tool_calls=[weather, trip]), tool, other, assistant("No trip.")], {"tools": TOOLS}
    yield [user("Trip?"), assistant("", tool_calls=[trip]), other], {"tools": TOOLS[1:], "add_generation_prompt": True}
    yield [user("Trip?"), assistant("x", tool_calls=[call("now", {})]), {"role": "tool", "content": "12:00"}, assistant("Noon")], {}
    yield [user("Weather?"), assistant("", tool_calls=[call("get_weather", '{"city": "Bern"}')]), tool, assistant("ok")], {"tools": TOOLS[:1]}
    yield [user("Weather?"), assistant("", reasoning_content="I need a tool.", tool_calls=[weather]), tool, assistant("Sunny.", reasoning_content="Good.")], {"tools": TOOLS}
    yield [{"role": "user", "content": parts("Hello", "there")}, {"role": "assistant", "content": parts("Hi!")}], {}
    yield [{"role": "system", "content": parts("Be kind.")}, {"role": "user", "content": [{"type": "image", "image": "a.png"}, *parts("What is this?")]}, {"role": "assistant", "content": parts("A cat.")}], {}
    yield [{"role": "user", "content": [{"type": "image"}, {"type": "video"}, *parts("Compare")]}], {"add_generation_prompt": True, "add_vision_id": True}
    yield [{"role": "developer", "content": "Be terse."}, user("Hello"), assistant("Hi")], {}
    yield [assistant("I begin."), user("No."), user("Twice.")], {"add_generation_prompt": True}
    yield [user("{{ not a template }} {% if %} <|im_end|> </s> {# x #}"), assistant("'single' \"double\" \\ back")], {}
    yield [system(""), user("Docs?"), assistant("A", tool_calls=[]), user("B"), assistant("C", tool_calls=[weather, weather]), tool, tool, assistant("D")], {"tools": []}
