"""The peers of check.py, in PyTorch. Each function measures one thing and prints lines "name value"."""

import gc
import json
import pathlib
import time

import model as qwen3
import torch
import torch.distributed as dist
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel


def report(name, value):
    print(f"{name} {value:.9g}", flush=True)


class Place:
    """Where and how large: the twin of timing.lua."""

    def __init__(self, device, size):
        self.device, self.is_tiny = device, size == "tiny"
        self.dtype = torch.float32 if self.is_tiny else torch.bfloat16
        if device == "cpu":
            torch.set_num_threads(1)

    def size(self, full, tiny):
        return tiny if self.is_tiny else full

    def shape(self, name):
        shapes = json.loads(pathlib.Path(__file__).with_name("shapes.json").read_text())
        shape = shapes["tiny" if self.is_tiny else name]
        shape["model"]["tie_word_embeddings"] = shapes[name]["model"]["tie_word_embeddings"]
        return shape

    def model(self, shape):
        return qwen3.build(shape["model"], self.device, self.dtype)

    def ids(self, count, vocabulary):
        return torch.arange(count, device=self.device).square().remainder(vocabulary - 1)

    def synchronize(self):
        if self.device != "cpu":
            torch.cuda.synchronize()

    def seconds(self, calls, rounds, call):
        """The least seconds of one call, of `rounds` rounds of `calls` calls, after one round of warm-up."""
        best = float("inf")
        for turn in range(rounds + 1):
            self.synchronize()
            start = time.perf_counter()
            for _ in range(calls):
                call()
            self.synchronize()
            if turn:
                best = min(best, (time.perf_counter() - start) / calls)
        return best


class AdamW:
    """Fused AdamW on float32 masters of bfloat16 parameters, as optim.AdamW of Lockstep keeps them."""

    def __init__(self, parameters):
        self.parameters = [p for p in parameters if p.requires_grad]
        self.has_masters = self.parameters[0].dtype == torch.bfloat16
        self.masters = [p.detach().float() for p in self.parameters] if self.has_masters else self.parameters
        self.adamw = torch.optim.AdamW(self.masters, lr=1e-4, weight_decay=0.1, fused=True)

    def step(self):
        if self.has_masters:
            gradients = [torch.empty_like(m) for m in self.masters]
            torch._foreach_copy_(gradients, [p.grad for p in self.parameters])
            for master, gradient in zip(self.masters, gradients):
                master.grad = gradient
        self.adamw.step()
        if self.has_masters:
            torch._foreach_copy_([p.detach() for p in self.parameters], self.masters)
        for p in self.parameters + self.masters:
            p.grad = None


def shard(model, place, offload):
    # A store of this process alone: a port might be taken.
    dist.init_process_group("gloo" if place.device == "cpu" else "nccl", store=dist.HashStore(), rank=0, world_size=1)
    mesh = dist.device_mesh.init_device_mesh(place.device.split(":")[0], (1,))
    options = {"mesh": mesh, "offload_policy": CPUOffloadPolicy(pin_memory=place.device != "cpu") if offload else OffloadPolicy(),
               "mp_policy": MixedPrecisionPolicy(param_dtype=place.dtype, reduce_dtype=torch.float32)}
    for layer in model.model.layers:
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def train(place, compiled, trace, name, mode):
    """The peer of train.lua."""
    shape = place.shape(name)
    model = place.model(shape)
    if mode == "lora":
        with torch.device(place.device):
            qwen3.add_lora(model)
        qwen3.fill(model)
    elif mode == "fully_shard":
        model = shard(model.float(), place, offload=False)
    optimizer = AdamW(model.parameters())
    ids = place.ids(shape["batch"] * shape["tokens"], shape["model"]["vocab_size"]).view(shape["batch"], -1)
    forward = torch.compile(model) if compiled else model

    def step():
        loss = forward(ids)
        loss.backward()
        optimizer.step()
        return loss.detach()

    report("loss of step 1", step().item())
    step()
    report("loss of step 3", step().item())
    report("tokens/s", ids.numel() / place.seconds(place.size(5, 1), place.size(2, 1), step))
    if place.device != "cpu":
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
        step()
        report("peak MiB", torch.cuda.max_memory_allocated() / 2**20)
    if trace:
        with torch.profiler.profile() as profile:
            step()
            place.synchronize()
        profile.export_chrome_trace(trace)


@torch.no_grad()
def decode(place, compiled, _, name):
    """The peer of decode.lua: one prompt, greedy, with a cache of a fixed size."""
    shape = place.shape(name)
    c, model = shape["model"], place.model(shape).eval()
    prompt, new = 16, place.size(128, 8)
    caches = [tuple(torch.zeros(1, c["num_key_value_heads"], prompt + new, c["head_dim"], device=place.device,
                                dtype=place.dtype) for _ in range(2)) for _ in range(c["num_hidden_layers"])]  # fmt: skip
    for kept in caches:
        for tensor in kept:
            torch._dynamo.mark_static_address(tensor)  # else a CUDA graph would copy it in each step
    prompt_ids = place.ids(prompt, c["vocab_size"])[None]
    step = torch.compile(model.decode, mode="reduce-overhead", fullgraph=True) if compiled else model.decode

    def generate():
        positions = torch.arange(prompt, device=place.device)
        written = [model.decode(prompt_ids, positions, caches)]
        position = positions[-1:] + 1
        for _ in range(new - 1):
            written.append(step(written[-1], position, caches).clone())
            position = position + 1
        return torch.cat(written, -1)

    seconds = place.seconds(1, 2, generate)
    report("sum of ids", generate().sum().item())
    report("tokens/s", new / seconds)


def attention(place, _, __):
    """The peer of attention.lua: each backend of scaled_dot_product_attention, forward and backward."""
    for full in (2048, 8192, 32768):
        tokens, heads, dim = place.size(full, full // 256), place.size(32, 4), place.size(128, 16)
        torch.manual_seed(1)
        q, k, v = (torch.randn(1, n, tokens, dim, device=place.device, dtype=place.dtype, requires_grad=True)
                   for n in (heads, heads // 4, heads // 4))  # fmt: skip

        def step():
            F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).backward(q.detach())

        best = float("inf")
        for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
            try:
                with sdpa_kernel(backend):
                    ms = 1e3 * place.seconds(place.size(5, 1), 2, step)
            except RuntimeError as error:
                print(f"# {backend.name} at {full}: {str(error)[:80]}", flush=True)
                continue
            report(f"{backend.name} at {full}, ms", ms)
            best = min(best, ms)
        report(f"ms at {full}", best)


def cross_entropy(place, compiled, _):
    """The peer of cross_entropy.lua. Logits are widened first, as transformers does; torch.compile fuses that."""
    rows, classes = place.size(4096, 32), place.size(151936, 500)
    numbers = torch.arange(rows * classes, device=place.device).remainder_(2003).to(place.dtype)
    logits = (numbers / 256).view(rows, classes).requires_grad_(True)
    del numbers
    labels = place.ids(rows, classes)

    def loss_of(logits):
        return F.cross_entropy(logits.float(), labels)

    forward = torch.compile(loss_of) if compiled else loss_of

    def step():
        loss = forward(logits)
        loss.backward()
        logits.grad = None
        return loss.item()

    report("loss", step())
    report("ms", 1e3 * place.seconds(5, 4, step))
    if place.device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        step()
        place.synchronize()
        report("peak MiB", torch.cuda.max_memory_allocated() / 2**20)


def offload(place, _, __, name):
    """The peer of offload.lua's sharded model: forward and backward of FSDP2 with CPUOffloadPolicy."""
    shape = place.shape(name)
    model = shard(place.model(shape).float(), place, offload=True)
    ids = place.ids(shape["batch"] * shape["tokens"], shape["model"]["vocab_size"]).view(shape["batch"], -1)

    def step():
        model(ids).backward()
        model.zero_grad()

    report("sharded, tokens/s", ids.numel() / place.seconds(place.size(3, 1), place.size(2, 1), step))


def facts():
    """What this machine is, for a table's first line; ends with the memory of the GPU, or 0."""
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        major, minor = torch.cuda.get_device_capability()
        print(f"device {properties.name}, sm_{major}{minor}, CUDA {torch.version.cuda}")
        report("GiB", properties.total_memory / 2**30)
    else:
        report("GiB", 0)
