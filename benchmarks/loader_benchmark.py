"""What a sample of a JSONL file costs by data.loader and by PyTorch's DataLoader, with as many workers, in one run.

Needs a Python with torch 2.11 and tokenizers 0.23, in the workspace's folder:
    bazel build -c opt //driver:lockstep
    python benchmarks/loader_benchmark.py bazel-bin/driver/lockstep

Both programs take turns, three times. Printed are, in microseconds a sample, the least time of each and the least
processor time of all its threads and processes, and Lua / Python. Where other programs are at work the processor time
is the one to compare. LOCKSTEP_BENCHMARK_SAMPLES (10000) sets the number of samples.
The Python peer seeks to offsets that it has found before, and hands batches of 64 between processes: one by one it is
slower. The Lua side hands samples over one by one.
"""

import json
import os
import random
import resource
import tempfile
import time

import peer
import tokenizers
import torch
from torch.utils.data import DataLoader, Dataset

SAMPLES = int(os.environ.get("LOCKSTEP_BENCHMARK_SAMPLES", "10000"))
WORDS, BATCH, TURNS = 300, 64, 3
TOKENIZER = "driver/text/testdata/qwen2.json"


class Lines(Dataset):
    def __init__(self, path, tokenize=False):
        self.path, self.file = path, None
        self.tokenizer = tokenizers.Tokenizer.from_file(TOKENIZER) if tokenize else None
        self.offsets = [0]
        with open(path, "rb") as file:
            for line in file:
                self.offsets.append(self.offsets[-1] + len(line))

    def __len__(self):
        return len(self.offsets) - 1

    def __getitem__(self, index):
        if self.file is None:
            self.file = open(self.path, "rb")  # noqa: SIM115: stays open
        self.file.seek(self.offsets[index])
        sample = json.loads(self.file.readline())
        if self.tokenizer:
            return torch.tensor(self.tokenizer.encode(sample["text"]).ids)
        return sample


def write_samples(path):
    generator = random.Random(1)
    words = ["".join(generator.choices("abcdefghijklmnopqrstuvwxyz", k=generator.randint(1, 9))) for _ in range(5000)]
    with open(path, "w", encoding="utf-8") as file:
        for i in range(SAMPLES):
            text = " ".join(generator.choices(words, k=generator.randint(1, 2 * WORDS)))
            json.dump({"id": i, "text": text, "scores": [generator.random() for _ in range(8)]}, file)
            file.write("\n")


def processor_seconds():
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def measure(loader):
    start, processor_start, count = time.perf_counter(), processor_seconds(), 0
    for batch in loader:
        count += len(batch)
    assert count == SAMPLES
    return [1e6 * seconds / SAMPLES
            for seconds in (time.perf_counter() - start, processor_seconds() - processor_start)]


def python_times(path):
    times = {}
    for name, tokenize in (("read", False), ("read and tokenise", True)):
        dataset = Lines(path, tokenize)
        for workers in (0, 2):
            dataset.file = None  # processes that share a file share its position
            loader = DataLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=workers, collate_fn=list)
            label = f"{name}, {workers} workers"
            times[label], times[label + ", processor"] = measure(loader)
    return times


def main():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "samples.jsonl")
        write_samples(path)
        os.environ["LOCKSTEP_BENCHMARK_FILE"] = path
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # each worker is one thread
        print(f"{SAMPLES} samples, {os.path.getsize(path) / SAMPLES:.0f} bytes each")
        best = peer.take_turns(__file__, TURNS, lambda: python_times(path))
    print(f"{'':46}{'Lua us':>9}{'Python us':>11}{'ratio':>8}")
    for name in dict.fromkeys(name for name, _ in best):
        lua, python = best[name, "lua"], best[name, "python"]
        print(f"{name:46}{lua:9.1f}{python:11.1f}{lua / python:8.2f}")


if __name__ == "__main__":
    main()
