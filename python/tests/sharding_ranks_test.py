"""Tests lockstep.sharding over process groups of torch.distributed, started by torchrun."""

import re
import unittest

from launch import torchrun
from sharding_ranks import CASES


class RanksTest(unittest.TestCase):
    def test_every_case_of_sharding_ranks(self):
        code, _, output = torchrun(3, "sharding_ranks.py")
        self.assertEqual(code, 0, output)
        for case in CASES[:-1]:
            self.assertEqual(output.count(f": {case.__name__}\n"), 3, output)
        self.assertEqual(output.count(f": {CASES[-1].__name__}\n"), 3 - 1, output)  # without the one that dies


class TwoKindsTest(unittest.TestCase):
    def test_a_trainer_with_two_kinds_of_samples_hangs_without_the_library(self):
        code, _, output = torchrun(2, "two_kinds.py", "plain")
        self.assertNotEqual(code, 0, output)
        self.assertIn("Timed out waiting 8000ms", output)
        self.assertNotIn("held-out batches", output)

    def test_a_loop_over_uneven_held_out_batches_hangs_without_the_library(self):
        code, _, output = torchrun(2, "two_kinds.py", "validation")
        self.assertNotEqual(code, 0, output)
        self.assertIn("imed out", output)

    def test_with_the_library_it_trains(self):
        code, _, output = torchrun(2, "two_kinds.py")
        self.assertEqual(code, 0, output)
        errors = re.findall(r"error ([\d.]+) over", output)  # two ranks may write into one line
        self.assertEqual((len(errors), len(set(errors))), (2, 1), output)
        self.assertLess(float(errors.pop()), 0.3)  # untrained: about 1
        self.assertIn("over 3 held-out batches of 3", output)
        self.assertIn("over 5 held-out batches of 5", output)
