"""What a Parquet file costs by data.source, by Hugging Face's datasets and by pyarrow alone, in one run.

Needs a Python with pyarrow 26.0 and datasets 5.2, in the workspace's folder:
    bazel build -c opt //driver:lockstep
    python benchmarks/parquet/parquet_benchmark.py bazel-bin/driver/lockstep

Lockstep and Python take turns, three times. Printed are the least times of each, of the wall clock and of all
threads' processors, and Lua / Python. Opening is in seconds: data.source and datasets both unpack the file into a cache
then. Samples are in microseconds. LOCKSTEP_BENCHMARK_SAMPLES (20000) sets the number of samples, in row groups of 1000.
pyarrow has no cache: it decodes the row group of a sample, and keeps the last group. So few of its samples are timed.
"""

import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

import pyarrow as pa
import pyarrow.parquet as pq

SAMPLES = int(os.environ.get("LOCKSTEP_BENCHMARK_SAMPLES", "20000"))
TURNS, GROUP, FEW = 3, 1000, 30


def write_samples(path):
    generator = random.Random(1)
    words = ["".join(generator.choices("abcdefghijklmnopqrstuvwxyz", k=generator.randint(1, 9))) for _ in range(5000)]

    def text(most):
        return " ".join(generator.choices(words, k=generator.randint(1, most)))

    rows = [{
        "id": i,
        "messages": [{"role": "user", "content": text(60)}, {"role": "assistant", "content": text(540)}],
        "scores": [generator.random() for _ in range(8)],
    } for i in range(SAMPLES)]
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=GROUP)


class Times(dict):
    def add(self, name, units, run):
        start, processor_start = time.perf_counter(), time.process_time()
        result = run()
        self[name] = 1e6 * (time.perf_counter() - start) / units
        self[name + ", processor"] = 1e6 * (time.process_time() - processor_start) / units
        return result


def datasets_times(path):
    import datasets
    datasets.disable_progress_bars()
    times = Times()
    with tempfile.TemporaryDirectory() as cache:
        def load():
            return datasets.load_dataset("parquet", data_files=path, cache_dir=cache, split="train")
        loaded = times.add("open", 1e6, load)
        times.add("open again", 1e6, load)
        order = list(range(SAMPLES))
        times.add("in order", SAMPLES, lambda: [loaded[i]["id"] for i in order])
        random.Random(2).shuffle(order)
        times.add("shuffled", SAMPLES, lambda: [len(loaded[i]["messages"]) for i in order])
    return times


def pyarrow_times(path):
    times = Times()
    file = times.add("open", 1e6, lambda: pq.ParquetFile(path))
    times.add("in order", SAMPLES, lambda: [
        row["id"] for group in range(file.num_row_groups) for row in file.read_row_group(group).to_pylist()])

    def read(index):
        return file.read_row_group(index // GROUP).slice(index % GROUP, 1).to_pylist()[0]
    times.add("shuffled", FEW, lambda: [read(i)["id"] for i in random.Random(2).sample(range(SAMPLES), FEW)])
    return times


def lua_times(path, program):
    output = subprocess.run(
        [program, "--nproc", "1", str(pathlib.Path(__file__).with_suffix(".lua"))], check=True, capture_output=True,
        text=True, env={**os.environ, "LOCKSTEP_BENCHMARK_FILE": path}).stdout
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in output.splitlines())}


def main():
    if len(sys.argv) != 2:
        sys.exit(f"usage: python {sys.argv[0]} PROGRAM, the built //driver:lockstep")
    pa.set_cpu_count(1)
    best = {"lua": {}, "datasets": {}, "pyarrow": {}}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "samples.parquet")
        write_samples(path)
        print(f"{SAMPLES} samples, {os.path.getsize(path) / SAMPLES:.0f} bytes each")
        for _ in range(TURNS):
            for which, times in (("lua", lua_times(path, sys.argv[1])), ("datasets", datasets_times(path)),
                                 ("pyarrow", pyarrow_times(path))):
                for name, value in times.items():
                    best[which][name] = min(best[which].get(name, float("inf")), value)
    print(f"{'':24}{'Lua':>12}{'datasets':>12}{'ratio':>8}{'pyarrow':>12}{'ratio':>8}")
    for name, lua in best["lua"].items():
        line = f"{name:24}{lua:12.4f}"
        for which in ("datasets", "pyarrow"):
            theirs = best[which].get(name)
            line += f"{theirs:12.4f}{lua / theirs:8.2f}" if theirs else ""
        print(line)


if __name__ == "__main__":
    main()
