"""A stand-in for an inference server: answers as vLLM 0.33 or SGLang 0.5.23 do, with ids that follow from the prompt.

It takes the fields that these servers have, in their types, and refuses others with status 422. Its answers have all
fields of theirs that are not optional.

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


def is_number(value):
    """Returns whether a value of JSON is a number. true and false are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_whole(value):
    """Returns whether a value of JSON is a whole number, written without a point or an exponent."""
    return isinstance(value, int) and not isinstance(value, bool)


def list_of(check):
    """Returns a check of lists."""
    return lambda value: isinstance(value, list) and all(check(one) for one in value)


def table_of(fields):
    """Returns a check of objects that have no fields but these."""
    return lambda value: isinstance(value, dict) and not wrong_fields(value, fields)


def wrong_fields(body, fields):
    """Returns the names of fields that are unknown or have a wrong type."""
    return [name for name in body if name not in fields or not fields[name](body[name])]


def is_text(value):
    return isinstance(value, str)


def is_flag(value):
    return isinstance(value, bool)


def is_object(value):
    return isinstance(value, dict)


def is_bias(value):
    return is_object(value) and all(id.isdecimal() and is_number(value[id]) for id in value)


def is_data_url(value):
    return is_text(value) and value.startswith("data:image/")


def is_message(value):
    return (is_object(value) and is_text(value.get("role"))
            and (is_text(value.get("content")) or list_of(is_part)(value.get("content"))))


def is_part(value):
    kind = value.get("type") if is_object(value) else None
    if kind == "image_url":
        return table_of({"type": is_text, "image_url": table_of({"url": is_data_url})})(value)
    return kind == "text" and table_of({"type": is_text, "text": is_text})(value)


SAMPLING = {"temperature": is_number, "stop_token_ids": list_of(is_whole), "logit_bias": is_bias, "top_p": is_number,
            "top_k": is_whole, "min_p": is_number, "repetition_penalty": is_number}
ADAPTER = {"lora_name": is_text, "lora_path": is_text}
VLLM_SAMPLING = {**SAMPLING, "model": is_text, "max_tokens": is_whole, "seed": is_whole, "return_token_ids": is_flag}

# The fields of requests that a client of training needs: vllm/entrypoints/**/protocol.py, and sglang/srt/managers/
# io_struct.py with sampling/sampling_params.py.
REQUESTS = {
    "vllm": {
        "/v1/completions": {**VLLM_SAMPLING, "prompt": list_of(is_whole), "logprobs": is_whole},
        "/v1/chat/completions": {**VLLM_SAMPLING, "messages": list_of(is_message), "logprobs": is_flag,
                                 "top_logprobs": is_whole, "documents": list_of(is_object),
                                 "chat_template_kwargs": is_object},
        "/collective_rpc": {"method": is_text, "kwargs": is_object},
        "/reset_prefix_cache": {},
        "/v1/load_lora_adapter": ADAPTER,
        "/v1/unload_lora_adapter": {"lora_name": is_text},
    },
    "sglang": {
        "/generate": {"input_ids": list_of(is_whole), "image_data": list_of(is_data_url), "return_logprob": is_flag,
                      "lora_path": is_text, "sampling_params": table_of({**SAMPLING, "max_new_tokens": is_whole})},
        "/update_weights_from_disk": {"model_path": is_text},
        "/load_lora_adapter": ADAPTER,
        "/unload_lora_adapter": {"lora_name": is_text},
    },
}
USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


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
    return 200, {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": body["model"],
                 "usage": USAGE, "prompt_token_ids": prompt, "choices": [{
                     "index": 0, "message": {"role": "assistant", "content": "?"}, "finish_reason": "length",
                     "token_ids": list(range(1, limit + 1)), "logprobs": {"content": [
                         {"token": "?", "logprob": -0.5 - i, "bytes": [63], "top_logprobs": []}
                         for i in range(limit)]}}]}


def answer(path, body):
    """Returns the status and the JSON of an answer."""
    if path == "/v1/models":
        return 200, {"object": "list", "data": [{"id": "base", "object": "model", "created": 1, "owned_by": kind}]}
    if path not in REQUESTS[kind] or not isinstance(body, dict):
        return 404, {"detail": "Not Found"}
    wrong = wrong_fields(body, REQUESTS[kind][path])
    if wrong:
        return 422, {"detail": [{"type": "extra_forbidden", "loc": ["body", name]} for name in wrong]}
    if path == "/v1/chat/completions":
        return chat_answer(body)
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
            return 200, {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": body["model"],
                         "usage": USAGE, "choices": [{
                             "index": 0, "text": "?", "finish_reason": "length", "stop_reason": None,
                             "token_ids": ids, "prompt_token_ids": prompt, "logprobs": {
                                 "text_offset": [0] * limit, "tokens": ["?"] * limit, "top_logprobs": [None] * limit,
                                 "token_logprobs": log_probs}}]}
        return 200, {"text": "?", "output_ids": ids, "meta_info": {
            "id": "1", "finish_reason": {"type": "length", "length": limit}, "completion_tokens": limit,
            "input_token_logprobs": [], "output_token_logprobs": [[p, i, None] for p, i in zip(log_probs, ids)],
            "output_token_logprobs_length": limit, "prompt_tokens": len(prompt) + (prompt[0] == 999)}}
    if "broken" in json.dumps(body):
        return (200, {"success": False, "message": "no such folder"}) if kind == "sglang" else (404, {"error": "none"})
    if kind == "sglang":
        return 200, {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0}
    if path == "/reset_prefix_cache":
        return 200, {"success": True}
    if path == "/collective_rpc":
        return 200, {"results": [None]}
    return 200, f"Success: LoRA adapter '{body['lora_name']}' added successfully."


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
