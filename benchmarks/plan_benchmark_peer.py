"""The same samples planned by prime-rl's prepare_batch and by Lockstep, in one run.

Needs prime-rl's sources, and numpy, msgspec and the wheel of ./package:
    bazel build -c opt //batching:plan_benchmark
    python benchmarks/plan_benchmark_peer.py bazel-bin/batching/plan_benchmark prime-rl/src SAMPLES RANKS [IMAGES]

IMAGES is the share of samples with an image, 0 unless given. Prints for each the seconds, the makespan over the ideal
(sum over micro-steps of the most expensive rank's cost / (total cost / ranks)), the micro-steps, and the padding
micro-batches. Costs are those of the decoder. "apart" is Lockstep's plan if no text rides with an image. "python" is lockstep.batching.plan, with
the conversion of lists, best of five, and must be the same plan. prime-rl's
time holds packing and balancing of tokens that are lists.
"""

import importlib
import pathlib
import random
import subprocess
import sys
import tempfile
import time
import types

import lockstep

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
    return batch


def sample(batch, length, has_image):
    """With an image of 4 patches, whose placeholder is the first token."""
    image = None
    if has_image:
        image = {
            "pixel_values": batch.EncodedTensor("float32", [4, 1], bytes(16)),
            "image_grid_thw": batch.EncodedTensor("int64", [1, 3], b"".join(n.to_bytes(8, "little") for n in (1, 2, 2))),
        }
    return batch.TrainingSample(
        mm_kwargs=image,
        mm_token_type_ids=[1] + [0] * (length - 1) if has_image else None,
        token_ids=[0] * length,
        mask=[True] * length,
        logprobs=[0.0] * length,
        temperatures=[1.0] * length,
        env_name="benchmark",
        advantages=[0.0] * length,
    )


def main():
    if len(sys.argv) not in (5, 6):
        sys.exit("usage: plan_benchmark_peer.py PLAN_BENCHMARK PRIME_RL_SRC SAMPLES RANKS [IMAGES]")
    program, samples, ranks = sys.argv[1], int(sys.argv[3]), int(sys.argv[4])
    share = float(sys.argv[5]) if len(sys.argv) == 6 else 0
    peer = import_peer(sys.argv[2])
    draw = random.Random(1)
    lengths = [max(1, min(SEQ_LEN, int(draw.lognormvariate(6.5, 1.0)))) for _ in range(samples)]
    has_image = [draw.random() < share for _ in range(samples)]

    def show(name, seconds, makespan, steps, padding):
        print(
            f"  {name:9} {float(seconds):10.4f} s  makespan {float(makespan):.4f} of ideal  {steps} micro-steps, "
            f"{padding} padding micro-batches"
        )

    print(f"{samples} samples, {sum(has_image)} with an image; {ranks} ranks")
    with tempfile.NamedTemporaryFile("w") as file:
        file.writelines(f"{n} {0 if image else 1}\n" for n, image in zip(lengths, has_image, strict=True))
        file.flush()
        for name, option in (("lockstep", []), ("apart", ["--apart"])):
            command = [program, f"--lengths={file.name}", f"--ranks={ranks}", *option]
            show(name, *subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())

    sequence, _ = lockstep.batching.transformer_cost(**vars(CONFIG))
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        plan = lockstep.batching.plan(
            lengths,
            ["image" if image else "text" for image in has_image],
            [sequence(length) for length in lengths],
            ranks=ranks,
            seq_len=SEQ_LEN,
            hosts={"text": ["image"]},
        )
        mine = [plan.at(0, step) for step in range(plan.micro_steps)]
        seconds.append(time.perf_counter() - start)
    show("python", min(seconds), plan.makespan / plan.ideal, len(mine), plan.padding_micro_batches)

    cost = peer.build_bin_cost(CONFIG)
    rollouts = [sample(peer, length, image) for length, image in zip(lengths, has_image, strict=True)]
    start = time.perf_counter()
    batches = peer.prepare_batch(rollouts, SEQ_LEN, ranks, cost)
    seconds = time.perf_counter() - start
    steps = [max(cost(b.sequence_lengths) for b in step) for step in zip(*batches, strict=True)]
    ideal = sum(cost([length]) for length in lengths) / ranks
    padding = sum(not any(b.loss_mask) for of_rank in batches for b in of_rank)
    show("prime-rl", seconds, sum(steps) / ideal, len(steps), padding)


if __name__ == "__main__":
    main()
