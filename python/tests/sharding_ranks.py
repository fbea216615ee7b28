"""What sharding_ranks_test.py runs on three ranks. Each function is a case; every rank checks what it sees."""

import itertools
import os
import random
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist

from lockstep import _sockets, sharding


def expect(error, message, function):
    """Returns the exception that function() must raise."""
    try:
        function()
    except error as raised:
        assert message in str(raised), (message, str(raised))
        return raised
    raise AssertionError(f"nothing was raised; expected {error.__name__}: {message}")


def gathered(tensor, size):
    """Returns the numbers of all ranks' tensors of one shape."""
    everything = [torch.empty_like(tensor) for _ in range(size)]
    dist.all_gather(everything, tensor)
    return torch.cat(everything).tolist()


def loops_of_random_lengths_agree_with_a_reference(rank, size):
    for seed in range(60):
        rng = random.Random(seed)
        lengths = [rng.randrange(5) for _ in range(size)]
        policy = rng.choice(["until_first", "until_last"])
        ahead, has_filler = rng.random() < 0.5, rng.random() < 0.5 or 0 in lengths
        total = min(lengths) if policy == "until_first" else max(lengths)
        loop = sharding.lockstep(
            range(lengths[rank]),
            policy,
            read_ahead=ahead,
            filler=(lambda last: ("filler", last)) if has_filler else None,
        )
        seen = []
        for batch, real in loop:
            seen.append((batch, real))
            if seed % 3 == 0:
                dist.all_reduce(torch.ones(1))  # hangs unless every rank is here
        last = lengths[rank] - 1 if lengths[rank] else None
        filler = ("filler", last) if has_filler else last
        expected = [(i, True) if i < lengths[rank] else (filler, False) for i in range(total)]
        assert seen == expected, (seed, seen, expected)
        assert (loop.steps, loop.filled) == (total, sum(not real for _, real in expected)), seed
        assert loop.dropped == max(0, lengths[rank] - total), (seed, loop.dropped)


def a_rank_without_any_batch_needs_a_filler(rank, size):
    expect(
        RuntimeError,
        "ranks {2} have no batch at all to repeat, while ranks {0, 1} have one",
        lambda: list(sharding.lockstep(range(0 if rank == 2 else 2), "until_last")),
    )


def an_error_in_an_iterable_ends_the_loop_on_all_ranks(rank, size):
    def batches():
        yield 1
        if rank == 1:
            raise KeyError("lost.jpg")
        yield 2

    for ahead in (False, True):
        loop = sharding.lockstep(batches(), read_ahead=ahead)
        error, message = (
            (KeyError, "lost.jpg")
            if rank == 1
            else (RuntimeError, "sharding: rank 1 failed at step 1: KeyError: 'lost.jpg'")
        )
        raised = expect(error, message, lambda: list(loop))
        assert type(raised) is error
        assert loop.steps == 1


def different_policies_are_named(rank, size):
    expect(
        RuntimeError,
        "until_first on ranks {0, 2}, until_last on ranks {1}",
        lambda: list(sharding.lockstep([1], "until_last" if rank == 1 else "until_first")),
    )


def a_break_on_one_rank_ends_the_loop_on_all(rank, size):
    for at in (0, 2):
        steps = 0
        for step, (_, _) in enumerate(sharding.lockstep(itertools.count())):
            dist.all_reduce(torch.ones(1))
            steps += 1
            if rank == 0 and step == at:
                break
        assert steps == at + 1, steps
    for _ in sharding.lockstep(itertools.count()):  # all ranks at once, and the next loop is not disturbed
        break
    loop = sharding.lockstep(itertools.count(), read_ahead=True)
    for _ in loop:
        if rank == 2:
            loop.stop()
    assert loop.steps == 2 and loop.dropped == float("inf"), (loop.steps, loop.dropped)


def a_subgroup_has_a_loop_of_its_own(rank, size):
    group = dist.new_group([2, 0])
    if rank == 1:
        expect(ValueError, "not a member", lambda: list(sharding.lockstep([1], group=group)))
        return
    assert len(list(sharding.lockstep(range(3 + rank), group=group))) == 3
    expect(
        RuntimeError,
        "rank 2 failed at step 0",
        lambda: list(sharding.lockstep(iter([]) if rank == 0 else map(int, ["x"]), group=group)),
    ) if rank == 0 else expect(
        ValueError, "invalid literal", lambda: list(sharding.lockstep(map(int, ["x"]), group=group))
    )


def the_weighted_mean_is_exact_and_the_mean_of_means_is_not(rank, size):
    counts = [1, 0, 5]
    rng = random.Random(7)
    values = [[rng.random() for _ in range(count)] for count in counts]
    mine = values[rank]
    everything = [value for each in values for value in each]
    exact = sum(everything) / len(everything)
    mean = torch.tensor(sum(mine) / max(len(mine), 1), dtype=torch.float64)
    of_means = mean.clone()
    dist.all_reduce(of_means)  # what a trainer without the library does
    assert abs(of_means.item() / size - exact) > 0.1
    value = mean if mine else float("nan")
    assert abs(sharding.weighted_mean(value, torch.tensor(len(mine))) - exact) < 1e-15
    bits = sharding.weighted_mean(0.1 * (rank + 1), rank)
    assert len(set(gathered(torch.tensor([bits], dtype=torch.float64), size))) == 1


def mistakes_in_means_are_named(rank, size):
    expect(ValueError, "the weights of all 3 ranks are 0", lambda: sharding.weighted_mean(1, 0))
    expect(
        ValueError,
        "the value of rank 1 is nan, with weight 2",
        lambda: sharding.weighted_mean(float("nan") if rank == 1 else 1, 2),
    )
    expect(ValueError, "the weight of rank 2 is -1", lambda: sharding.weighted_mean(1, -1 if rank == 2 else 1))
    error, message = (TypeError, "one element") if rank == 0 else (ValueError, "the weight of rank 0 is nan")
    expect(error, message, lambda: sharding.weighted_mean(torch.ones(2) if rank == 0 else 1, 1))


def a_guard_names_ranks_values_and_lines(rank, size):
    guard = sharding.Guard(timeout=20)
    same = {"samples": [3, 9], "pixels": torch.ones(8, 3), "on": {1, 2}}
    guard.check("step 0", same)
    table = str(
        expect(
            RuntimeError,
            'the ranks disagree at "step 1"',
            lambda: guard.check("step 1", {"kind": "text" if rank == 1 else "image"}),
        )
    )
    assert "rank 0: {'kind': 'image'} (" in table and "rank 1: {'kind': 'text'} (" in table, table
    assert table.count("sharding_ranks.py:") == 3, table
    guard.check("step 2", same)
    other = torch.ones(8, 3)
    other[5, 2] += rank == 2  # dtype and shape are equal
    expect(RuntimeError, "float32 [8, 3] crc", lambda: guard.check("step 3", other))
    expect(RuntimeError, "at different checks", lambda: guard.check(f"step {rank}", 1))


def a_guard_names_the_rank_that_stays_away(rank, size):
    guard = sharding.Guard(timeout=1)
    guard.check("step 0", 0)
    if rank != 1:
        text = str(
            expect(
                TimeoutError,
                'not all ranks came to "step 1", check number 2, within 1 s',
                lambda: guard.check("step 1", 0),
            )
        )
        assert 'rank 1 last passed "step 0" (' in text and "rank 0" not in text and "rank 2" not in text, text
        expect(TimeoutError, "step 1", lambda: guard.check("step 2", 0))
    dist.barrier()


def shards_hold_every_sample_once_and_options_are_compared(rank, size):
    for length, seed in ((0, 0), (1, 1), (100, 2)):
        indices = sharding.dataset(length, seed=seed)
        mine = list(indices)
        padded = torch.tensor(mine + [-1] * (length - len(mine)), dtype=torch.int64)
        assert sorted(i for i in gathered(padded, size) if i >= 0) == list(range(length))
    text = str(expect(ValueError, "the ranks do not agree", lambda: sharding.dataset(10, seed=int(rank == 1))))
    assert 'rank 1: {"epoch": 0, "seed": 1' in text, text


def ctrl_c_ends_a_wait_within_a_second_and_other_signals_do_not(rank, size):
    group = dist.new_group([0, 1])
    if rank < 2:
        sharding.weighted_mean(1, 1, group=group)
    if rank == 0:
        came = []
        signal.signal(signal.SIGUSR1, lambda *_: came.append(time.monotonic()))
        begin = []

        def send():
            os.kill(os.getpid(), signal.SIGUSR1)
            while not came:
                time.sleep(0.01)
            begin.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
        timer = threading.Timer(0.5, send)
        timer.start()
        expect(KeyboardInterrupt, "", lambda: sharding.weighted_mean(1, 1, group=group))
        assert came and time.monotonic() - begin[0] < 10
        expect(RuntimeError, "is closed", lambda: sharding.weighted_mean(1, 1, group=group))
    dist.barrier()
    if rank == 1:
        sharding.weighted_mean(1, 1, group=group)  # of the message that rank 0 had sent
        expect(ConnectionError, "rank 0 was lost", lambda: sharding.weighted_mean(1, 1, group=group))


def an_error_of_a_signal_handler_closes_the_connection(rank, size):
    # Left open, it would give the answers of this mean to the next one.
    group = dist.new_group([0, 1])
    if rank < 2:
        sharding.weighted_mean(1, 1, group=group)
    if rank == 0:

        def refuse(*_):
            raise TimeoutError("of the handler")

        signal.signal(signal.SIGALRM, refuse)
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        expect(TimeoutError, "of the handler", lambda: sharding.weighted_mean(100, 1, group=group))
        expect(RuntimeError, "is closed", lambda: sharding.weighted_mean(1, 1, group=group))
    dist.barrier()


def a_child_of_fork_leaves_the_connections_alone(rank, size):
    loop = iter(sharding.lockstep(range(3)))
    next(loop)
    child = os.fork()
    if child == 0:
        del loop  # as at the end of a program: it would tell the others to stop
        os._exit(0 if all(each.is_closed for each in _sockets._all) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(list(loop)) == 2
    assert sharding.weighted_mean(rank, 1) == 1


def a_rank_that_dies_is_named(rank, size):
    for step, _ in enumerate(sharding.lockstep(range(2)) if rank == 2 else range(1)):
        if step == 1:
            # The child has what this process has open, as a worker of a DataLoader. It outlives it by a while.
            if os.fork() == 0:
                time.sleep(30)
            os._exit(0)
    if rank == 2:
        return

    def loop():
        for _ in sharding.lockstep(range(5)):
            pass

    expect(ConnectionError, "rank 2 was lost", loop)


def run(cases):
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    for case in cases:
        case(rank, size)
        sys.stdout.write(f"rank {rank}: {case.__name__}\n")
        sys.stdout.flush()
    os._exit(0)  # Gloo cannot end its group without the rank that has died.


CASES = [
    loops_of_random_lengths_agree_with_a_reference,
    a_rank_without_any_batch_needs_a_filler,
    an_error_in_an_iterable_ends_the_loop_on_all_ranks,
    different_policies_are_named,
    a_break_on_one_rank_ends_the_loop_on_all,
    a_subgroup_has_a_loop_of_its_own,
    the_weighted_mean_is_exact_and_the_mean_of_means_is_not,
    mistakes_in_means_are_named,
    a_guard_names_ranks_values_and_lines,
    a_guard_names_the_rank_that_stays_away,
    shards_hold_every_sample_once_and_options_are_compared,
    ctrl_c_ends_a_wait_within_a_second_and_other_signals_do_not,
    an_error_of_a_signal_handler_closes_the_connection,
    a_child_of_fork_leaves_the_connections_alone,
    a_rank_that_dies_is_named,
]

if __name__ == "__main__":
    run(CASES)
