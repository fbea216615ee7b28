"""TiledMLP on two processes under DistributedDataParallel and fully_shard, and what they do to a naive one."""

import json
import re
import unittest

from launch import torchrun


def outcomes(case):
    """What each of two ranks printed."""
    code, _, output = torchrun(2, "tiled_mlp_ranks.py", case, timeout=150)
    if code != 0:
        raise AssertionError(f"{case} ended with {code}:\n{output[-3000:]}")
    return [json.loads(found) for found in re.findall("OUTCOME (.*)", output)]


class TiledMlpRanks(unittest.TestCase):
    def ranks(self, case):
        found = outcomes(case)
        self.assertEqual(len(found), 2)
        return found

    def test_naive_tiles_stop_data_parallel(self):
        for outcome in self.ranks("naive"):
            self.assertIn("Expected to mark a variable ready only once", outcome["error"])

    def test_naive_tiles_alone_in_their_model_get_wrong_gradients_without_an_error(self):
        for outcome in self.ranks("naive_alone"):
            self.assertEqual(outcome["hooks"], [3])
            self.assertGreater(outcome["distance"], 0.1)

    def test_data_parallel_averages_the_gradients_of_the_untiled_model_and_each_hook_fires_once(self):
        for outcome in self.ranks("ddp"):
            for options, runs in outcome.items():
                for accumulate, run in runs.items():
                    with self.subTest(options=options, accumulate=accumulate):
                        self.assertLess(run["distance"], 1e-5)
                        self.assertEqual(run["hooks"], [1])

    def test_fully_shard_trains_as_the_untiled_model_whichever_module_is_the_unit(self):
        for outcome in self.ranks("fsdp"):
            for unit, run in outcome.items():
                with self.subTest(unit=unit):
                    self.assertLess(run["distance"], 1e-5)
                    self.assertEqual(run["calls"], 4)  # 2 blocks in 2 steps: a unit's hooks run once, not for each tile

    def test_fully_shard_with_checkpoints_kept_weights_and_bfloat16(self):
        for outcome in self.ranks("fsdp_options"):
            for options, run in outcome.items():
                with self.subTest(options=options):
                    self.assertLess(run["distance"], 0.05 if options == "low" else 1e-5)

    def test_a_unit_within_the_tiles_is_an_error_that_names_it(self):
        for outcome in self.ranks("fsdp_part"):
            self.assertIn('fully_shard was called on its part "up_proj"', outcome["error"])


if __name__ == "__main__":
    unittest.main()
