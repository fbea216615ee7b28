"""The same samples planned by prime-rl's prepare_batch and by Lockstep, in one run.

Needs prime-rl's sources, and numpy and msgspec:
    bazel build -c opt //batching:plan_benchmark
    python benchmarks/plan_benchmark_peer.py bazel-bin/batching/plan_benchmark prime-rl/src SAMPLES RANKS

Prints for each the seconds, the makespan over the ideal (sum over micro-steps of the most expensive rank's cost /
(total cost / ranks)), and the micro-steps. prime-rl's time holds packing and balancing of tokens that are lists.
"""

import importlib
import pathlib
import random
import subprocess
import sys
import tempfile
import time
import types

SEQ_LEN = 8192
CONFIG = types.SimpleNamespace(  # Qwen3-8B's shape
    hidden_size=4096,
    num_hidden_layers=36,
    vocab_size=151936,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    intermediate_size=12288,
)


def import_peer(sources):
    """prime-rl's two modules, without its packages' __init__, which import the whole server."""
    for name in ("prime_rl", "prime_rl.trainer", "prime_rl.transports", "prime_rl.transports.rollouts"):
        package = types.ModuleType(name)
        package.__path__ = [str(pathlib.Path(sources, *name.split(".")))]
        sys.modules[name] = package
    batch = importlib.import_module("prime_rl.trainer.batch")
    return batch.build_bin_cost, batch.prepare_batch, batch.TrainingSample


def sample(training_sample, length):
    return training_sample(
        token_ids=[0] * length,
        mask=[True] * length,
        logprobs=[0.0] * length,
        temperatures=[1.0] * length,
        env_name="benchmark",
        advantages=[0.0] * length,
    )


def main():
    if len(sys.argv) != 5:
        sys.exit("usage: plan_benchmark_peer.py PLAN_BENCHMARK PRIME_RL_SRC SAMPLES RANKS")
    program, samples, ranks = sys.argv[1], int(sys.argv[3]), int(sys.argv[4])
    build_bin_cost, prepare_batch, training_sample = import_peer(sys.argv[2])
    draw = random.Random(1)
    lengths = [max(1, min(SEQ_LEN, int(draw.lognormvariate(6.5, 1.0)))) for _ in range(samples)]

    with tempfile.NamedTemporaryFile("w") as file:
        file.write("\n".join(map(str, lengths)))
        file.flush()
        ours = subprocess.run(
            [program, f"--lengths={file.name}", f"--ranks={ranks}"], check=True, capture_output=True, text=True
        ).stdout.split()

    cost = build_bin_cost(CONFIG)
    rollouts = [sample(training_sample, length) for length in lengths]
    start = time.perf_counter()
    batches = prepare_batch(rollouts, SEQ_LEN, ranks, cost)
    seconds = time.perf_counter() - start
    steps = [max(cost(b.sequence_lengths) for b in step) for step in zip(*batches, strict=True)]
    ideal = sum(cost([length]) for length in lengths) / ranks

    print(f"{samples} samples, {ranks} ranks")
    print(f"  lockstep  {float(ours[0]):10.4f} s  makespan {float(ours[1]):.4f} of ideal  {ours[2]} micro-steps")
    print(f"  prime-rl  {seconds:10.4f} s  makespan {sum(steps) / ideal:.4f} of ideal  {len(steps)} micro-steps")
    print(f"  ratio     {float(ours[0]) / seconds:10.6f}    {float(ours[1]) / (sum(steps) / ideal):.4f}")


if __name__ == "__main__":
    main()
