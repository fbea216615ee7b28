"""What fully sharded training costs here and with PyTorch's FSDP2, on one libtorch, over Gloo, in one run.

Needs a Python with torch 2.11:
    bazel build -c opt //driver:lockstep
    python benchmarks/fully_shard_benchmark.py bazel-bin/driver/lockstep [--ranks 2] [--hidden 32] [--layers 32] [--tokens 16]

Both programs take turns; printed is the least time of each. Both start from the same weights and must reach
the same loss. "cpu" is the CPU time of one rank's process for one step: forward, backward, AdamW. "update" is AdamW's part.
With --copies it also prints the bytes that operators copy in a step beyond those of the plain module, as profilers see them.
"""

import argparse
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time


def train(rank, args):
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(args.port), RANK=str(rank), WORLD_SIZE=str(args.ranks))
    dist.init_process_group("gloo")

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(args.hidden)
            self.up, self.down = nn.Linear(args.hidden, 4 * args.hidden), nn.Linear(4 * args.hidden, args.hidden)

        def forward(self, x):
            return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))

    def build():
        net = nn.Sequential(*[Block() for _ in range(args.layers)])
        with torch.no_grad():
            for p in net.parameters():
                p.copy_(((torch.arange(p.numel()) % 17).float() - 8).mul(0.1 / args.hidden**0.5).view(p.shape))
        return net

    def fsdp(net):
        for block in net:
            fully_shard(block)
        return fully_shard(net)

    kinds = {"plain": lambda net: net, "data_parallel": nn.parallel.DistributedDataParallel, "fully_shard": fsdp}
    x = (torch.arange(args.tokens * args.hidden) % (13 + rank)).float().sub(6).view(args.tokens, args.hidden)
    for kind, wrap in kinds.items():
        model = wrap(build())
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        best = {"wall": float("inf"), "cpu": float("inf"), "update": float("inf")}

        def step():
            loss = model(x).pow(2).mean()
            loss.backward()
            before = time.process_time()
            optimizer.step()
            optimizer.zero_grad()
            return loss, time.process_time() - before

        for _ in range(5):
            step()
        for _ in range(args.repeats):
            dist.barrier()
            wall, cpu, update = time.perf_counter(), time.process_time(), 0
            for _ in range(args.steps):
                loss, spent = step()
                update += spent
            best["wall"] = min(best["wall"], time.perf_counter() - wall)
            best["cpu"] = min(best["cpu"], time.process_time() - cpu)
            best["update"] = min(best["update"], update)
        if rank == 0:
            for name, value in best.items():
                print(kind, name, value / args.steps)
            print(kind, "loss", loss.item(), flush=True)
        if args.trace:
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
                step()
            profiler.export_chrome_trace(f"{args.trace}-{kind}-rank{rank}.json")
    dist.barrier()
    os._exit(0)


def copied_bytes(path):
    """Float32 bytes that aten::copy_ and aten::cat write, in a trace with shapes."""
    total = 0
    for event in json.loads(pathlib.Path(path).read_text())["traceEvents"]:
        if event.get("ph") != "X" or event["name"] not in ("aten::copy_", "aten::cat"):
            continue
        shapes = event["args"]["Input Dims"][0]
        for shape in shapes if event["name"] == "aten::cat" else [shapes]:
            total += 4 * math.prod(shape)
    return total


def read(output):
    return {name: float(value) for name, value in re.findall(r"^((?:plain|data_parallel|fully_shard) \w+) (\S+)$", output, re.M)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    for name, default in (("ranks", 2), ("hidden", 32), ("layers", 32), ("tokens", 16), ("turns", 3), ("steps", 30),
                          ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--copies", action="store_true")
    parser.add_argument("--trace", default="", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=29611, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank is not None:
        return train(args.rank, args)
    script = pathlib.Path(__file__).with_suffix(".lua")
    sizes = [f"--set={name}={getattr(args, name)}" for name in ("hidden", "layers", "tokens", "steps", "repeats")]
    if args.copies:
        args.trace = tempfile.mkdtemp() + "/trace"
        sizes.append(f"--set=trace={args.trace}-lua")
    best = {}
    for turn in range(args.turns):
        lua = subprocess.run([args.program, "--nproc", str(args.ranks), str(script), *sizes], check=True, capture_output=True, text=True).stdout
        command = [sys.executable, *sys.argv, "--port", str(args.port + turn), "--trace", args.trace]
        ranks = [subprocess.Popen([*command, "--rank", str(rank)], stdout=subprocess.PIPE, text=True,
                                  stderr=subprocess.DEVNULL) for rank in range(args.ranks)]
        python = [process.communicate()[0] for process in ranks][0]
        for which, times in (("lua", read(lua)), ("python", read(python))):
            for name, value in times.items():
                best[name, which] = min(best.get((name, which), float("inf")), value)
    print(f"{args.ranks} ranks, hidden {args.hidden}, {args.layers} layers, {args.tokens} tokens; ms a step")
    for kind in ("plain", "data_parallel", "fully_shard"):
        for name in ("wall", "cpu", "update"):
            ours, theirs = 1e3 * best[f"{kind} {name}", "lua"], 1e3 * best[f"{kind} {name}", "python"]
            print(f"{kind:14} {name:7} ours {ours:9.3f}  torch {theirs:9.3f}  ratio {ours / theirs:.3f}")
        losses = best[f"{kind} loss", "lua"], best[f"{kind} loss", "python"]
        assert abs(losses[0] - losses[1]) < 1e-4 * abs(losses[1]), losses
    if args.copies:
        for which, infix in (("ours", "-lua"), ("torch", "")):
            plain, sharded = (copied_bytes(f"{args.trace}{infix}-{kind}-rank0.json") for kind in ("plain", "fully_shard"))
            print(f"copied by operators in a step, {which}: {(sharded - plain) / 1e6:.1f} MB beyond plain")


if __name__ == "__main__":
    main()
