"""The peer of save_benchmark.lua: torch.distributed.checkpoint, save and async_save, of as large a state in the same loop.

    OMP_NUM_THREADS=1 python -m torch.distributed.run --standalone --nproc-per-node 2 \
        benchmarks/save_benchmark_peer.py --gib 1 --every 20

Prints the same columns.
"""

import argparse
import shutil
import statistics
import tempfile
import time
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

warnings.filterwarnings("ignore")


def main():
    parser = argparse.ArgumentParser()
    for name, default in (("gib", 0.25), ("every", 20), ("steps", 60), ("step_ms", 100), ("busy", 0.5), ("turns", 3)):
        parser.add_argument(f"--{name}", type=type(default), default=default)
    config = parser.parse_args()
    dist.init_process_group("gloo")
    group = dist.new_group()  # of the saving thread, beside the collectives of the loop
    torch.manual_seed(1)
    count = max(1, round(config.gib * 2**30 / 4 / 2**22))
    state = {f"parts.{i}.weight": torch.rand(1024, 4096) for i in range(count)}
    a = torch.randn(192, 192)

    def work():
        started = time.monotonic()
        while time.monotonic() - started < config.step_ms / 1000 * config.busy:
            a @ a
        time.sleep(max(0, config.step_ms / 1000 - (time.monotonic() - started)))
        state["parts.0.weight"].mul_(0.999)

    def loop(save):
        folders = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(folders)
        pending, last, longest, started = None, time.monotonic(), 0, time.monotonic()
        for step in range(config.steps):
            if save and step > 0 and step % config.every == 0:
                path = f"{folders[0]}/{step}"
                if save == "async":
                    if pending is not None:
                        pending.result()
                    pending = dcp.async_save(state, checkpoint_id=path, process_group=group)
                else:
                    dcp.save(state, checkpoint_id=path)
            work()
            dist.barrier()
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
        seconds = time.monotonic() - started
        if pending is not None:
            pending.result()
        dist.barrier()
        if dist.get_rank() == 0:
            shutil.rmtree(folders[0])
        return seconds, longest

    ways = {"no save": None, "dcp.save": "sync", "dcp.async": "async"}
    times = {name: [] for name in ways}
    loop("async")
    for _ in range(config.turns):
        for name, save in ways.items():
            times[name].append(loop(save))
    if dist.get_rank() == 0:
        without = statistics.median(seconds for seconds, _ in times["no save"])
        for name, found in times.items():
            seconds, longest = sorted(found)[len(found) // 2]
            print(f"{name:9} {seconds:6.2f} s  {100 * (seconds / without - 1):+6.1f} %  longest step {longest:.2f} s")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
