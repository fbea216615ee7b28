"""Time by kernel, from the traces that lockstep.profile and torch.profiler write in one format."""

import collections
import json

# Names of kernels on a GPU, and of operators on a CPU. The first group that has a part of a name takes it.
GROUPS = {
    "fused by torch.compile": ("triton",),
    "attention": ("flash", "fmha", "attention", "sdpa"),
    "matrix products": ("gemm", "cutlass", "nvjet", "xmma", "cublas", "aten::mm", "aten::addmm", "linear_pointwise"),
    "optimizer": ("adam", "multi_tensor"),
    "norms": ("norm",),
    "copies": ("memcpy", "copy", "memset"),
}


def by_kernel(path, is_gpu):
    """Returns [(name, ms, calls)] with the most first, and the time without a kernel. On a CPU: operators within others."""
    kinds = ("kernel", "gpu_memcpy", "gpu_memset") if is_gpu else ("cpu_op",)
    events = [e for e in json.loads(path.read_text(errors="replace"))["traceEvents"] if e.get("cat") in kinds]
    total, calls = collections.Counter(), collections.Counter()
    busy, end = 0.0, 0.0
    for event in sorted(events, key=lambda e: float(e["ts"])):
        start, length = float(event["ts"]), float(event["dur"])
        total[event["name"]] += length / 1e3
        calls[event["name"]] += 1
        busy += max(0.0, start + length - max(start, end))
        end = max(end, start + length)
    first = min((float(e["ts"]) for e in events), default=0.0)
    return [(name, ms, calls[name]) for name, ms in total.most_common()], (end - first - busy) / 1e3 if events else 0.0


def group_of(name):
    lower = name.lower()
    return next((group for group, parts in GROUPS.items() if any(part in lower for part in parts)), "other")


def summary(paths, is_gpu):
    """The lines of a table: ms of each group of kernels for each contender, then the longest kernels of each."""
    found = {who: by_kernel(path, is_gpu) for who, path in paths.items() if path.exists()}
    groups = {who: collections.Counter() for who in found}
    for who, (kernels, idle) in found.items():
        for name, ms, _ in kernels:
            groups[who][group_of(name)] += ms
        groups[who]["no kernel"] = idle
    lines = [f"{'ms of a step':26}" + "".join(f"{who:>15}" for who in found)]
    for group in [*GROUPS, "other", "no kernel"]:
        lines.append(f"{group:26}" + "".join(f"{groups[who][group]:15.2f}" for who in found))
    for who, (kernels, _) in found.items():
        lines += [f"{who}: {ms:.2f} ms, {calls} calls, {name[:90]}" for name, ms, calls in kernels[:6]]
    return lines
