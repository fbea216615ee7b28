# PYTHONPATH=PACKAGE:TORCH OMP_NUM_THREADS=1 python3 python/ops/nn_benchmark.py [ROWS SIZE]...
"""Times lockstep.nn's RMSNorm and SwiGLU, forward and backward, against torch's own operators in eager mode.

Prints the median ratio of both CPU times in one run, in which the two take turns. PACKAGE is the folder that holds `lockstep`.
"""

import statistics
import sys
import time

import torch
import torch.nn.functional as F

from lockstep import nn

TURNS = 9


def eager_norm(x, weight):
    """As transformers writes it."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def eager_add_norm(x, residual, weight):
    total = x + residual
    return F.rms_norm(total, (x.shape[-1],), weight, 1e-6), total


def ours_add_norm(x, residual, weight):
    return torch.ops.lockstep.add_rms_norm(x, residual, weight, 1e-6)


CASES = (
    ("RMSNorm against F.rms_norm", lambda x, w: nn.rms_norm(x, w), lambda x, w: F.rms_norm(x, w.shape, w, 1e-6), "xw"),
    ("RMSNorm against transformers' code", lambda x, w: nn.rms_norm(x, w), eager_norm, "xw"),
    ("add + RMSNorm against + and F.rms_norm", ours_add_norm, eager_add_norm, "xxw"),
    ("SwiGLU against F.silu(gate) * up", nn.swiglu, lambda gate, up: F.silu(gate) * up, "xx"),
)


def inputs_of(kinds, rows, size, dtype):
    generator = torch.Generator().manual_seed(0)
    shapes = {"x": (rows, size), "w": (size,)}
    return [torch.randn(shapes[kind], generator=generator).to(dtype).requires_grad_() for kind in kinds]


def step(function, inputs):
    """Returns the result and the gradients of one pass."""
    outputs = function(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return outputs, torch.autograd.grad(outputs, inputs, [output.detach() for output in outputs])


def seconds(function, inputs, repeats):
    start = time.process_time()
    for _ in range(repeats):
        step(function, inputs)
    return (time.process_time() - start) / repeats


def measure(ours, theirs, inputs):
    """Returns the median of our time / theirs, and of theirs in seconds."""
    for mine, other in zip(step(ours, inputs)[1], step(theirs, inputs)[1], strict=True):
        error = (mine.double() - other.double()).norm() / other.double().norm()
        assert error < (1e-5 if mine.dtype == torch.float32 else 2e-2), f"results differ by {error}"
    repeats = max(1, int(0.02 / seconds(theirs, inputs, 3)))
    times = [(seconds(ours, inputs, repeats), seconds(theirs, inputs, repeats)) for _ in range(TURNS)]
    return statistics.median(a / b for a, b in times), statistics.median(b for _, b in times)


def main():
    given = [int(argument) for argument in sys.argv[1:]] or [64, 128, 1024, 1024, 2048, 2048]
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}")
    for name, ours, theirs, kinds in CASES:
        for dtype in (torch.float32, torch.bfloat16):
            cells = []
            for rows, size in zip(given[::2], given[1::2], strict=True):
                ratio, time_of_torch = measure(ours, theirs, inputs_of(kinds, rows, size, dtype))
                cells.append(f"{rows} x {size}: {ratio:.2f} of {1e3 * time_of_torch:.3g} ms")
            print(f"{name}, {str(dtype)[6:]}: " + "; ".join(cells), flush=True)


main()
