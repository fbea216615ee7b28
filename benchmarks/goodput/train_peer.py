"""The peer of train.lua, for goodput.py: the same training and faults in plain PyTorch, started by torchrun.

DistributedDataParallel over Gloo, torch.distributed.checkpoint.async_save with a process group of its own every few
steps, and a resume from the newest checkpoint that has its metadata, which is written last.
"""

import argparse
import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import time
import warnings
import zlib
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

warnings.filterwarnings("ignore")


def tell(what, step):
    start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    print(f"{what} {step} of start {start} {time.monotonic():.6f}", flush=True)


def shut_down_sockets():
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                socket.socket(fileno=os.dup(int(name))).shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def fill_disk():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


STRIKE = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "socket": shut_down_sockets,
    "disk": fill_disk,
    "slow": lambda: None,
}


def newest(folder):
    """The last step whose checkpoint is complete, or None."""
    steps = [int(path.parent.name) for path in pathlib.Path(folder).glob("*/.metadata")]
    return max(steps, default=None)


def main():
    parser = argparse.ArgumentParser()
    for name, default in (("steps", 3000), ("every", 10), ("width", 256), ("rows", 128), ("timeout", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--folder")
    parser.add_argument("--faults", default="none")
    config = parser.parse_args()
    timeout = timedelta(seconds=config.timeout)
    dist.init_process_group("gloo", timeout=timeout)
    saving = dist.new_group(timeout=timedelta(seconds=60))  # of the thread that saves
    rank = dist.get_rank()
    torch.manual_seed(1)
    width = config.width
    net = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Tanh(), torch.nn.Linear(width, width))
    model = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)

    def state():
        weights, moments = get_state_dict(net, optimizer)
        return {"model": weights, "optimizer": moments}

    done = [newest(config.folder) if rank == 0 else None]
    dist.broadcast_object_list(done)
    done = done[0]
    if done is not None:
        saved = state()
        dcp.load(saved, checkpoint_id=f"{config.folder}/{done}")
        set_state_dict(net, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])

    starts = config.faults.split(",")
    start = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    found = re.findall(r"(\w+)@(\d+)@(\d+)", starts[start] if start < len(starts) else "none")
    faults = {int(step): kind for kind, step, on in found if int(on) == rank}
    is_slow, pending, kept = False, None, []
    for step in range(done or 0, config.steps):
        begin = time.monotonic()
        if step in faults:
            tell("fault " + faults[step], step)
            STRIKE[faults[step]]()
            is_slow = is_slow or faults[step] == "slow"
        torch.manual_seed(step * dist.get_world_size() + rank)
        x = torch.randn(config.rows, width)
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if is_slow:
            work = time.monotonic() - begin
            while time.monotonic() < begin + 2 * work:
                pass
        if rank == 0:
            tell("step", step)
        if (step + 1) % config.every == 0:
            if pending is not None:
                pending.result()
                for old in kept[:-2] if rank == 0 else ():
                    shutil.rmtree(f"{config.folder}/{old}", ignore_errors=True)
                kept = kept[-2:]
            pending = dcp.async_save(state(), checkpoint_id=f"{config.folder}/{step + 1}", process_group=saving)
            kept.append(step + 1)
    if pending is not None:
        pending.result()
    crc = 0
    for parameter in net.parameters():
        crc = zlib.crc32(parameter.detach().numpy().tobytes(), crc)
        for value in optimizer.state[parameter].values():
            crc = zlib.crc32(value.numpy().tobytes(), crc)
    print(f"final bits of rank {rank}: {crc:08x}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
