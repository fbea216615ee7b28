"""A stand-in for an inference server: answers as vLLM or SGLang do, with ids that follow from the prompt.

    inference_server.py KIND FOLDER

Writes its port into the pipe FOLDER/port, and each request into FOLDER/seen. Ends with its standard input.
"""

import base64
import copy
import http.server
import json
import sys
import threading

kind, folder = sys.argv[1:]
seen = open(folder + "/seen", "w")
lock = threading.Lock()


never = threading.Event()

# What an answer is, if the prompt is [1000], [1001] and so on.
NO_NUMBER = {"choices": [{"token_ids": [1], "logprobs": {"token_logprobs": [None]}}],
             "meta_info": {"output_token_logprobs": [[None, 1, None]]}}
FAULTS = [
    (500, {"error": "out of memory"}),
    (200, "login"),
    (200, True),
    (200, {"choices": None, "meta_info": 7}),
    (200, {"choices": [{"token_ids": [1, 2], "logprobs": {"token_logprobs": [-1.0]}}]}),
    (200, NO_NUMBER),
    (200, {"choices": [{"token_ids": ["a"], "logprobs": {"token_logprobs": [-1.0]}}],
           "meta_info": {"output_token_logprobs": [[-1.0, "a"]]}}),
    (200, {"choices": [{"token_ids": [1, 2], "logprobs": {"token_logprobs": [-1.0, -1.0]}}],
           "meta_info": {"output_token_logprobs": [[-1.0, 1], [-1.0, 2]]}}),
]


def read_url(url):
    """Returns the kind of a picture and its bytes in hexadecimal digits."""
    head, digits = url.split(",")
    return head + " " + base64.b64decode(digits, validate=True).hex()


def shown(body):
    """Returns a request as the note of it has it, with readable pictures."""
    for part in pictures(body) if isinstance(body, dict) else []:
        part["image_url"]["url"] = read_url(part["image_url"]["url"])
    if isinstance(body, dict) and "image_data" in body:
        body["image_data"] = [read_url(url) for url in body["image_data"]]
    return body


def pictures(body):
    """Returns the parts of the messages that are pictures."""
    return [part for message in body.get("messages", []) if isinstance(message["content"], list)
            for part in message["content"] if part["type"] == "image_url"]


def ids_of(messages):
    """Returns the ids of a prompt: the bytes of its text, and three 7s for each picture."""
    ids = []
    for message in messages:
        content = message["content"]
        for part in [{"text": content}] if isinstance(content, str) else content:
            ids += list(part["text"].encode()) if "text" in part else [7, 7, 7]
    return ids


def chat_answer(body):
    """Returns an answer to messages, whose prompt has another first id if its text is "broken"."""
    prompt = ids_of(body["messages"])
    if "broken" in json.dumps(body["messages"]):
        prompt[0] += 1
    limit = body["max_tokens"]
    return 200, {"prompt_token_ids": prompt, "choices": [{"token_ids": list(range(1, limit + 1)), "logprobs": {
        "content": [{"token": "?", "logprob": -0.5 - i} for i in range(limit)]}}]}


def answer(path, body):
    """Returns the status and the JSON of an answer."""
    if path == "/v1/chat/completions":
        return chat_answer(body)
    if path == "/v1/models":
        return 200, {"data": [{"id": "base", "owned_by": kind}]}
    if path in ("/v1/completions", "/generate"):
        prompt = body["prompt" if kind == "vllm" else "input_ids"]
        if prompt == [1999]:
            never.wait()
        if len(prompt) == 1 and prompt[0] >= 1000:
            return FAULTS[prompt[0] - 1000]
        limit = body["max_tokens"] if kind == "vllm" else body["sampling_params"]["max_new_tokens"]
        ids = [(sum(prompt) + i) % 90 for i in range(limit)]
        log_probs = [-0.5 - i for i in range(limit)]
        if kind == "vllm":
            return 200, {"choices": [{"token_ids": ids, "logprobs": {"token_logprobs": log_probs}}]}
        return 200, {"meta_info": {"output_token_logprobs": [[p, i, None] for p, i in zip(log_probs, ids)],
                                   "prompt_tokens": len(prompt) + (prompt[0] == 999)}}
    if "broken" in json.dumps(body):
        return (200, {"success": False, "message": "no such folder"}) if kind == "sglang" else (404, {"error": "none"})
    return 200, "ok"


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers a request, and keeps a note of it."""

    def do_GET(self):
        self.reply(None)

    def do_POST(self):
        self.reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def reply(self, body):
        with lock:
            seen.write(json.dumps({"path": self.path, "body": shown(copy.deepcopy(body))}) + "\n")
            seen.flush()
        status, value = answer(self.path, body)
        text = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        """Prints nothing."""


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
with open(folder + "/port", "w") as port:
    port.write(str(server.server_address[1]))
sys.stdin.read()
