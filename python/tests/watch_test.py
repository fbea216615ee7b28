"""Tests lockstep.watch with processes that hang, started by torchrun."""

import concurrent.futures
import functools
import re
import unittest

from launch import FOLDER, torchrun
from lockstep import _watch

# Each run: a case, and what the watch does.
RUNS = [(case, "exit") for case in ("all_reduce", "backward", "ddp", "data", "stopped", "agreement", "computes")]
RUNS += [("backward", "none"), ("recovers", "report")]
LINES = (FOLDER / "watch_ranks.py").read_text().splitlines()


def line_of(text, nth=0):
    return [number for number, line in enumerate(LINES, 1) if text in line][nth]


@functools.cache
def all_runs():
    """Starts all runs, two at a time: each waits most of the time."""
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        return {run: pool.submit(torchrun, 2, "watch_ranks.py", *run) for run in RUNS}


def ended(case, watch):
    return all_runs()[case, watch].result()


class HangTest(unittest.TestCase):
    def check(self, case, first, rank_0, rank_1):
        """Runs a case that hangs, and compares the table: each argument is a pattern."""
        code, codes, output = ended(case, "exit")
        with self.subTest(case=case):
            self.assertNotEqual(code, 0)
            self.assertIn(3, codes, output)
            tables = re.findall(
                r"lockstep\.watch: no rank has made progress for 4 s; (.*)\n  rank 0: (.*)\n  rank 1: (.*)\n", output
            )
            self.assertEqual(len(tables), 1, output)
            for pattern, line in zip((first, rank_0, rank_1), tables[0]):
                self.assertRegex(line, pattern)

    def test_a_rank_that_stays_away_from_a_collective_is_named_with_its_line(self):
        hangs, waits = line_of("time.sleep(600)  # the line that hangs"), line_of("dist.all_reduce(torch.ones(4))")
        self.check(
            "all_reduce",
            "^rank 1 is behind: the likely cause",
            rf"^in all_reduce float32 \[4\] at .*watch_ranks\.py:{waits}, for \d+ s; collectives begun: 2 of all ranks",
            rf"^in no collective at .*watch_ranks\.py:{hangs}, for \d+ s; collectives begun: 1 of all ranks",
        )

    def test_a_backward_pass_of_fsdp_is_named(self):
        self.check(
            "backward",
            "likely cause|no rank is behind",
            rf"^in \w+ .*watch_ranks\.py:{line_of('loss.backward()')},",
            rf"^in barrier.* at .*watch_ranks\.py:{line_of('dist.barrier()  # the line that hangs')},",
        )

    def test_a_backward_pass_of_ddp_is_named(self):
        self.check(
            "ddp",
            "^rank 1 is behind",
            rf"^in backward at .*watch_ranks\.py:{line_of('loss.backward()', 1)},",
            rf"^in no collective at .*watch_ranks\.py:{line_of('time.sleep(600)  # the line that hangs', 1)},",
        )

    def test_a_rank_that_waits_for_its_data_is_named(self):
        line = line_of("for _ in torch.utils.data.DataLoader")
        self.check(
            "data",
            "^rank 1 is behind",
            r"^in all_reduce float32 \[1\]",
            rf"^in no collective at .*watch_ranks\.py:{line},",
        )

    def test_a_stopped_rank_gives_no_sign_of_life(self):
        self.check(
            "stopped",
            "^rank 1 gives no sign of life: the likely cause",
            r"^in all_reduce float32 \[1\]",
            r"^no sign of life for \d+ s: process \d+ on \S+ is dead or stopped",
        )

    def test_an_agreement_of_this_package_is_named(self):
        line = line_of("time.sleep(600)  # the line that hangs", 2)
        self.check(
            "agreement",
            "^rank 1 is in no collective: the likely cause",
            "^in agreement of sharding.lockstep at",
            rf"^in no collective at .*watch_ranks\.py:{line},",
        )

    def test_without_the_watch_a_timeout_names_no_line(self):
        code, codes, output = ended("backward", "none")
        self.assertNotEqual(code, 0)
        self.assertNotIn(3, codes)
        self.assertIn("imed out", output)
        self.assertNotIn("no rank has made progress", output)


class NoHangTest(unittest.TestCase):
    def test_a_rank_that_computes_for_long_and_one_whose_group_has_ended_are_not_reported(self):
        code, _, output = ended("computes", "exit")
        self.assertEqual(code, 0, output)
        self.assertNotIn("lockstep.watch:", output)
        self.assertEqual(output.count("has ended well"), 2, output)

    def test_report_names_each_hang_once_and_lets_the_run_go_on(self):
        code, _, output = ended("recovers", "report")
        self.assertEqual(code, 0, output)
        self.assertEqual(output.count("lockstep.watch:"), 2, output)
        self.assertEqual(output.count("has ended well"), 2, output)


class TableTest(unittest.TestCase):
    def test_the_cause_is_the_rank_that_is_gone_then_the_one_that_is_behind_then_the_one_outside(self):
        at = {"place": "a.py:1", "groups": {"0": [0, 1, 2], "5": [1, 2]}}
        waits = _watch._State(**at, collective="barrier", sequence={"0": 3, "5": 2})
        behind = _watch._State(**at, collective="barrier", sequence={"0": 3, "5": 1})
        outside = _watch._State(**at, sequence={"0": 3, "5": 2})
        ended = _watch._State(ended=True)
        for states, silent, first in (
            ([waits, waits, waits], [0, 0, 0], "no rank is behind"),
            ([waits, waits, outside], [0, 0, 0], "rank 2 is in no collective: the likely cause"),
            ([outside, behind, waits], [0, 0, 0], "rank 1 is behind: the likely cause"),
            ([ended, behind, waits], [9, 0, 0], "rank 0 has ended: the likely cause"),
            ([ended, behind, waits], [99, 0, 31], "rank 2 gives no sign of life: the likely cause"),
            ([None, waits, waits], [9, 0, 0], "no rank is behind"),
        ):
            report = _watch.describe(states, silent, 120)
            self.assertIn(f"for 120 s; {first}. What each rank is doing:", report)
            self.assertEqual(report.count("\n  rank "), 3)
        self.assertIn("rank 0: has not called lockstep.watch", report)
        self.assertIn("collectives begun: 3 of all ranks, 2 of ranks 1, 2", report)

    def test_options_out_of_range_are_errors(self):
        import lockstep

        for options, message in (
            ({"timeout": 0}, "timeout must be more than 0 s, not 0"),
            ({"on_hang": "exits"}, 'on_hang must be "exit" or "report", not \'exits\''),
        ):
            with self.assertRaisesRegex(ValueError, re.escape(message)):
                lockstep.watch(**options)
        lockstep.watch()  # without a process group it does nothing
