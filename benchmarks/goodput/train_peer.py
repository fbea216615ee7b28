"""The run of train.lua in plain PyTorch: DistributedDataParallel over Gloo, and torch.distributed.checkpoint.

torchrun --max-restarts starts it again; it then loads the newest checkpoint. goodput.py runs it.
"""

import argparse
import ctypes
import datetime
import hashlib
import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import stat
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict


def strike(what):
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif what == "socket":
        for name in os.listdir("/proc/self/fd"):
            try:
                if stat.S_ISSOCK(os.stat(f"/proc/self/fd/{name}").st_mode):
                    ctypes.CDLL(None).shutdown(int(name), socket.SHUT_RDWR)
            except OSError:
                pass
    elif what == "disk":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def newest(folder):
    """The last complete checkpoint: DCP writes .metadata when every rank has written."""
    complete = [path for path in folder.glob("step-*") if (path / ".metadata").exists()]
    return max(complete, key=lambda path: int(path.name[5:]), default=None)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--save-async", action="store_true")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--timeout", type=int, default=5)
    parser.add_argument("--faults", default="none")
    o = parser.parse_args()
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=o.timeout))
    rank, world = dist.get_rank(), dist.get_world_size()
    print(f"I am {rank} pid {os.getpid()}", flush=True)
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(o.width, o.width), torch.nn.Tanh(), torch.nn.Linear(o.width, o.width))
    model = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    o.folder.mkdir(parents=True, exist_ok=True)
    first, found = 0, newest(o.folder)
    if found:
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments}
        dcp.load(state, checkpoint_id=found)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        first = int(found.name[5:])
    start = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    of_start = (o.faults.split(",") + ["none"] * (start + 1))[start]
    faults = {int(step): what for what, step, on in re.findall(r"(\w+)@(\d+)@(\d+)", of_start) if int(on) == rank}
    under_way, is_slow = None, False
    for step in range(first, o.steps):
        begin = time.monotonic()
        if step in faults:
            print(f"fault {faults[step]} {step} {time.monotonic():.6f}", flush=True)
            is_slow = is_slow or faults[step] == "slow"
            strike(faults[step])
        torch.manual_seed(step * world + rank)
        x = torch.randn(o.rows, o.width)
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        float(loss)
        if is_slow:
            work = time.monotonic() - begin
            while time.monotonic() < begin + 2 * work:
                pass
        if rank == 0:
            print(f"step {step} {time.monotonic():.6f}", flush=True)
        done = step + 1
        if done % o.every == 0 or done == o.steps:
            if under_way:
                under_way.result()
            weights, moments = get_state_dict(model, optimizer)
            state, path = {"model": weights, "optimizer": moments}, o.folder / f"step-{done}"
            if rank == 0:
                shutil.rmtree(path, ignore_errors=True)  # what a killed run has left
                old = sorted((int(p.name[5:]) for p in o.folder.glob("step-*") if (p / ".metadata").exists()))
                for number in old[:-3]:
                    shutil.rmtree(o.folder / f"step-{number}")
            dist.barrier()
            if o.save_async:
                under_way = dcp.async_save(state, checkpoint_id=path)
            else:
                dcp.save(state, checkpoint_id=path)
    if under_way:
        under_way.result()
    bits = hashlib.sha256(b"".join(bytes(p.detach().view(torch.uint8).flatten().tolist()) for p in net.parameters()))
    print(f"final bits of rank {rank}: {bits.hexdigest()[:16]}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
