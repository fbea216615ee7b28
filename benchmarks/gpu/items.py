"""What check.py measures, the most important first; what is expected, and what to do where it misses."""

import dataclasses

COMPILED, EAGER = "torch.compile", "eager"


@dataclasses.dataclass
class Row:
    """One figure with its range. With is_ratio it is the range of its ratio to the peer's figure of the same name."""

    figure: str
    low: float = 0.0
    high: float = float("inf")
    next: str = ""
    is_ratio: bool = False
    is_result: bool = False  # no speed: a CPU's tiny form is judged, too, where ratios must be 1 within 1e-5
    on_gpu: bool = True  # judged there

    def __str__(self):
        if self.high == float("inf"):
            return f">= {self.low:g}"
        return f"<= {self.high:g}" if self.low == 0 else f"{self.low:g} to {self.high:g}"


@dataclasses.dataclass
class Item:
    """A program of ours, the function of peers.py that is its peer, and the rows that they decide."""

    title: str
    program: str  # a Lua script, or a test's program
    arguments: tuple = ()
    peer: str = ""
    peers: tuple = ()  # of which the first is judged against; the others run next to a trace, or where it fails
    rows: tuple = ()
    seconds: int = 60  # for each process
    gib: int = 0  # that the GPU must have
    has_trace: bool = False  # and MFU
    is_test: bool = False  # needs a GPU


def faster(figure="tokens/s", next=""):
    return Row(figure, 1.0, next=next, is_ratio=True)


def result(figure, high, next, low=0.0):
    return Row(figure, low, high, next, is_result=True)


def same(figure, **more):
    return Row(figure, 0.99, 1.01, "the models differ: compare their logits layer by layer before any speed",
               is_ratio=True, is_result=True, **more)  # fmt: skip


KERNELS = ("in the table of kernels: 'no kernel' above 5 % means that the host is late (is there a graph?); else mend the "
           "group that takes the most more than the peer's")  # fmt: skip
LOSSES = (same("loss of step 1"), same("loss of step 3"))
MEMORY = Row("peak MiB", 0, 1.05, "print(lockstep.memory_by_line(step)) names the lines that hold it", is_ratio=True)


def training(title, shape, mode="step", peers=(COMPILED, EAGER), next=KERNELS, **more):
    rows = (faster(next=next), *LOSSES, MEMORY)
    return Item(title, "train.lua", (shape, mode), "train", peers, rows, **more)


def decoding(shape, **more):
    next = ("is 'tokens/s, without a graph' less? Each token reads all weights: compare their bytes / time with the memory's "
            "speed, then trace it")  # fmt: skip
    wrong = "a graph's attention reads wrong columns: driver/lualib/lockstep/models/token_graph.lua"
    return Item(f"decode, {shape}", "decode.lua", (shape,), "decode", (COMPILED, EAGER),
                (faster(next=next), same("sum of ids", on_gpu=False), result("ids that differ with a graph", 0, wrong)),
                **more)  # fmt: skip


def attention():
    next = "paste the lines 'for kTable' at the top of the table in kernels/attention/backends.cc"
    wrong = "the lines above name each kernel's error: kernels/attention/backends.cc chose a wrong one"
    rows = tuple(Row(f"ms at {tokens}", 0, 1.02, next, is_ratio=True) for tokens in (2048, 8192, 32768))
    errors = (result("error", 2e-2, wrong), result("error, packed", 2e-2, wrong))
    return Item("attention", "attention.lua", (), "attention", (EAGER,), (*errors, *rows))


def cross_entropy():
    next = "two passes over the logits: time / (3 x their bytes / the memory's speed); kernels/cuda/cross_entropy_cuda.cu"
    return Item("cross entropy", "cross_entropy.lua", (), "cross_entropy", (COMPILED, EAGER), (
        result("error / float64", 1e-5, "run kernels_gpu_test, and nn.use_fused(false) to compare"), same("loss"),
        Row("ms", 0, 1.02, next, is_ratio=True), Row("peak MiB", 0, 1.02, "who keeps a copy of the logits?", is_ratio=True)),
        gib=24)  # fmt: skip


def families(names):
    whose = "the line above names the family; //tests/models compares it on a CPU. Is TF32 on?"
    low = "float32 is right, so a kernel for 16 bits is wrong: try nn.use_fused(false)"
    return Item("families", "families.lua", names, rows=(
        result("families", len(names), "folders of tests/models are missing", low=max(1, len(names))),
        result("families that raise an error", 0, "the lines above name them"),
        *(result(f"float32, {figure}", 1e-3, whose) for figure in ("logits", "loss", "gradients")),
        *(result(f"bfloat16, {figure}", 0.5, low) for figure in ("logits", "gradients"))))  # fmt: skip


def offload():
    return Item("offload", "offload.lua", ("1b",), "offload", (EAGER,), (
        result("regions, gradients that differ", 0, "a copy is used before it has arrived: checkpoint/offload"),
        Row("regions, time / without offload", 0, 1.05, "trace it: copies must lie beside products, from page-locked memory"),
        Row("sharded, time / without offload", 0, 1.15, "trace it: do casts on the host take longer than the layers?"),
        faster("sharded, tokens/s", "as above")))  # fmt: skip


def graphs():
    return Item("graphs", "graph.lua", rows=(
        result("broken captures that were not noticed", 0, "the end of a capture must return its error"),
        result("results after a broken capture that are wrong", 0, "the allocator or a generator still captures"),
        result("recordings with a loader", 1, "the loader broke the recording: a capture must be of its thread alone", low=1),
        result("losses with a loader, relative error", 1e-2, "a replay reads a batch before its copy has arrived"),
        Row("time with a loader, graph / loop", 0, 1, "does a replay wait for the copy?")))  # fmt: skip


def copies():
    return Item("pinned copies", "loader.lua", rows=(
        result("samples that differ", 0, "a sample is used before its copy has arrived"),
        Row("time with the copy stream / without", 0, 1, "trace it: is the samples' memory page-locked?")))  # fmt: skip


def float8():
    errors = (result(f"{recipe}, error / CPU", 1e-2, "run float8_gpu_test alone") for recipe in ("tensorwise", "rowwise"))
    return Item("float8 layers", "float8.lua", rows=(
        *errors, Row("tensorwise, time / bfloat16", 0, 0.93, "see 'cast, speed / copy': casts take what products save"),
        Row("rowwise, time / bfloat16", 0, 1, "as above"),
        *(Row(f"{cast}, speed / copy", 0.5, next="kernels/cuda/float8_cuda.cu: are its loads wide?")
          for cast in ("cast", "cast, both copies", "cast, both copies by rows", "cast, transposed"))))  # fmt: skip


TESTS = ("kernels_gpu_test", "float8_gpu_test", "checkpoint_gpu_test", "tiled_mlp_gpu_test", "cuda_library_test",
         "attention_gpu_test.lua", "graph_gpu_test.lua", "collectives_gpu_test.lua", "memory_gpu_test.lua")  # fmt: skip


def items(family_names):
    return [
        training("1B, 8 x 1,024", "1b", seconds=150, has_trace=True),
        families(family_names),
        training("8B layers, 1 x 8,192", "8b, 4 layers", seconds=90, has_trace=True),
        decoding("0.6b", seconds=80),
        decoding("8b", seconds=100, gib=24),
        attention(),
        cross_entropy(),
        training("LoRA, 8B layers", "8b, 4 layers", "lora"),
        training("FSDP, one GPU", "0.6b", "fully_shard", (EAGER,), "trace it: is a gather or a cast between products?"),
        offload(),
        graphs(),
        copies(),
        *(Item(name, name, is_test=True) for name in TESTS),
        float8(),
    ]
