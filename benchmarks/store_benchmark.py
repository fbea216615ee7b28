"""Requests that the store of a run answers, from many ranks at once.

    python benchmarks/store_benchmark.py --connections 16,256 --requests 20

`connections` are clients of one TCPStore, as ranks have, held by `--processes` processes. Each client adds to a counter,
writes a key and reads one of another client, one after the other. Prints the requests per second that the server
answers, and its own CPU time of one.
"""

import argparse
import multiprocessing
import resource
import time
from datetime import timedelta

import torch.distributed as dist

PER_CLIENT = 3  # of a round: add, set, get


def serve(port, pipe):
    store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    pipe.send(store.port)
    before = None
    while (word := pipe.recv()) != "end":
        usage = resource.getrusage(resource.RUSAGE_SELF)
        now = usage.ru_utime + usage.ru_stime
        pipe.send(now - before if word == "stop" else 0)
        before = now


def ask(port, first, connections, requests, barrier, pipe):
    stores = [dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=timedelta(minutes=5))
              for _ in range(connections)]
    for i, store in enumerate(stores):
        store.set(f"wait/{first + i}", "0")
    barrier.wait()
    started = time.monotonic()
    for _ in range(requests):
        for i, store in enumerate(stores):
            store.add("count", 1)
            store.set(f"wait/{first + i}", "12 in all_reduce of 4096 float32 at train.lua:30")
            store.get(f"wait/{first + (i + 1) % connections}")
    barrier.wait()
    pipe.send(time.monotonic() - started)


def measure(connections, processes, requests):
    context = multiprocessing.get_context("fork")
    server_pipe, server_end = context.Pipe()
    server = context.Process(target=serve, args=(0, server_end))
    server.start()
    port = server_pipe.recv()
    processes = min(processes, connections)
    barrier = context.Barrier(processes + 1)
    clients = []
    for i in range(processes):
        first = connections * i // processes
        count = connections * (i + 1) // processes - first
        pipe, end = context.Pipe()
        process = context.Process(target=ask, args=(port, first, count, requests, barrier, end))
        process.start()
        clients.append((process, pipe))
    barrier.wait()
    server_pipe.send("start")
    server_pipe.recv()
    barrier.wait()
    server_pipe.send("stop")
    cpu = server_pipe.recv()
    seconds = max(pipe.recv() for _, pipe in clients)
    for process, _ in clients:
        process.join()
    server_pipe.send("end")
    server.join()
    count = connections * requests * PER_CLIENT
    print(f"{connections:6d} connections  {count / seconds:9.0f} requests/s  {cpu / count * 1e6:6.1f} us of the server each",
          flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", default="16,256")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--requests", type=int, default=20)
    args = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    for connections in args.connections.split(","):
        measure(int(connections), args.processes, args.requests)


if __name__ == "__main__":
    main()
