# torchrun --nproc-per-node 2 benchmarks/python_agreement_benchmark.py [ROUNDS]
"""Times an agreement of lockstep.sharding against a flag that torch.distributed reduces, as prime-rl's pull request 2636 does.

The loops take turns in one run, without a step to hide in. Prints each loop's median of a round in us per step, and the
median of the rounds' ratios. PYTHONPATH needs lockstep and torch.
"""

import statistics
import sys
import time

import torch
import torch.distributed as dist

import lockstep

STEPS = 500


def agreed(batches):
    return sum(1 for _ in lockstep.sharding.lockstep(batches))


def reduced(batches):
    steps, source = 0, iter(batches)
    while True:
        batch = next(source, None)
        flag = torch.tensor([float(batch is not None)])
        dist.all_reduce(flag, op=dist.ReduceOp.MIN)
        if flag.item() == 0:
            return steps
        steps += 1


def main():
    dist.init_process_group("gloo")
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    times = {agreed: [], reduced: []}
    for turn in range(rounds + 1):  # the first one warms up
        for loop in times:
            dist.barrier()
            begin = time.perf_counter()
            assert loop(range(STEPS + dist.get_rank())) == STEPS
            times[loop].append((time.perf_counter() - begin) / STEPS * 1e6)
    if dist.get_rank() == 0:
        mine, peer = times[agreed][1:], times[reduced][1:]
        ratio = statistics.median(a / b for a, b in zip(mine, peer))
        print(f"agreement {statistics.median(mine):.0f} us, all_reduce of a flag {statistics.median(peer):.0f} us, "
              f"ratio {ratio:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
