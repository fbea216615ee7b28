"""Tests lockstep.batching: Python gets the planner's plans, by the rules that plan_test.cc holds the planner to."""

import pickle
import random
import unittest

import lockstep


def random_case(seed):
    """Returns tokens, kinds and options."""
    random_ = random.Random(seed)
    size = random_.choice([0, 1, 2, 7, 40, 300])
    seq_len = random_.choice([16, 100, 4096])
    tokens = [random_.randint(1, seq_len) for _ in range(size)]
    kinds = [random_.choice(["audio", "image", "text"]) for _ in range(size)]
    return (
        tokens,
        kinds,
        {
            "ranks": random_.choice([1, 2, 3, 8]),
            "seq_len": seq_len,
            "balance": random_.choice(["makespan", "round_robin"]),
        },
    )


class PlanTest(unittest.TestCase):
    def test_each_sample_trains_once_with_its_kind_within_seq_len(self):
        for seed in range(200):
            tokens, kinds, options = random_case(seed)
            plan = lockstep.batching.plan(tokens, kinds, **options)
            with self.subTest(seed=seed):
                trained = []
                makespan = padding = 0
                for step in range(plan.micro_steps):
                    for rank in range(plan.ranks):
                        mine = plan.at(rank, step)
                        self.assertTrue(mine)
                        self.assertEqual({kinds[i] for i in mine}, {plan.kind(step)})
                        if plan.is_padding(rank, step):
                            padding += 1
                            continue
                        self.assertLessEqual(sum(tokens[i] for i in mine), options["seq_len"])
                        self.assertAlmostEqual(plan.cost(rank, step), sum(tokens[i] for i in mine))
                        trained += mine
                    makespan += max(plan.cost(rank, step) for rank in range(plan.ranks))
                self.assertEqual(sorted(trained), list(range(len(tokens))))
                self.assertEqual(plan.tokens, sum(tokens))
                self.assertEqual(plan.padding_micro_batches, padding)
                self.assertAlmostEqual(plan.makespan, makespan)
                self.assertLessEqual(plan.lower_bound, plan.makespan + 1e-6)
                self.assertAlmostEqual(plan.ideal, sum(tokens) / options["ranks"])

    def test_kinds_come_in_their_order_whatever_the_samples_order(self):
        for kinds in (["text", "image"], ["image", "text"], [1, 0], [0, 1]):
            plan = lockstep.batching.plan([5, 5], kinds, ranks=1, seq_len=8)
            self.assertEqual([plan.kind(step) for step in range(2)], sorted(kinds))

    def test_costs_decide_the_ranks(self):
        # By tokens any two go together. By cost the expensive one is alone.
        plan = lockstep.batching.plan([4, 4, 4, 4], costs=[9, 3, 3, 3], ranks=2, seq_len=12)
        self.assertEqual(plan.makespan, 9)

    def test_text_rides_with_images_where_it_may(self):
        tokens, kinds = [6, 6, 2, 2], ["image", "image", "text", "text"]
        alone = lockstep.batching.plan(tokens, kinds, ranks=2, seq_len=8)
        riding = lockstep.batching.plan(
            tokens, kinds, ranks=2, seq_len=8, hosts={"text": ["image"], "audio": ["image"]}
        )
        self.assertEqual((alone.micro_steps, riding.micro_steps), (2, 1))

    def test_padding_costs_what_the_least_copy_costs(self):
        plan = lockstep.batching.plan([8], least_tokens=[3], least_costs=[2.5], ranks=2, seq_len=8)
        self.assertEqual([plan.cost(rank, 0) for rank in range(2)], [8, 2.5])
        self.assertTrue(plan.is_padding(1, 0))

    def test_mistakes_are_named(self):
        good = {"tokens": [1, 2], "ranks": 2, "seq_len": 4}
        for wrong, error, message in (
            ({"tokens": [1, 5]}, ValueError, "sample 1 has 5 tokens; a sample has from 1 to seq_len = 4"),
            ({"tokens": [1.5]}, TypeError, "tokens must be a sequence of whole numbers"),
            ({"tokens": 3}, TypeError, "tokens must be a sequence of whole numbers"),
            ({"tokens": [2**70]}, ValueError, "tokens: "),
            ({"kinds": ["a"]}, ValueError, "kinds has 1 values, but there are 2 samples"),
            ({"kinds": ["a", 1]}, TypeError, "kinds must be all text or all whole numbers, not int, str"),
            ({"costs": [1, float("nan")]}, ValueError, "sample 1 costs nan"),
            ({"costs": [1]}, ValueError, "costs has 1 values"),
            ({"least_tokens": [1]}, ValueError, "least_tokens has 1 values"),
            ({"least_costs": [1]}, ValueError, "least_costs has 1 values"),
            ({"ranks": 0}, ValueError, "ranks must be from 1 to 1048576, not 0"),
            ({"ranks": 2**40}, ValueError, "ranks must be from 1 to 1048576"),
            ({"ranks": "2"}, TypeError, "ranks must be a whole number, not '2'"),
            ({"seq_len": 1.5}, TypeError, "seq_len must be a whole number, not 1.5"),
            ({"seq_len": 0}, ValueError, "seq_len"),
            ({"tokens": b"12345678"}, TypeError, "tokens must be a sequence of whole numbers, not bytes"),
            ({"hosts": {"text": "image"}}, TypeError, "hosts['text'] must be a list of kinds"),
            ({"hosts": ["text"]}, TypeError, "hosts must be a dictionary"),
            ({"balance": "best"}, ValueError, 'balance must be "makespan" or "round_robin", not "best"'),
            ({"worth_a_step": float("nan")}, ValueError, "worth_a_step must be finite"),
            ({"worth_a_step": -1}, ValueError, "worth_a_step"),
        ):
            with self.subTest(wrong=wrong), self.assertRaises(error) as caught:
                lockstep.batching.plan(**{**good, **wrong})
            self.assertIn(message, str(caught.exception))

    def test_round_robin_deals_micro_batches_in_turn(self):
        # By size: 5 and 3 fill a micro-batch, 5 and 3 another, 4 is left. The second step has the first one's copy.
        plan = lockstep.batching.plan([5, 5, 4, 3, 3], ranks=2, seq_len=8, balance="round_robin")
        self.assertEqual([[plan.at(rank, step) for rank in range(2)] for step in range(2)], [[[0, 3], [1, 4]], [[2], [0, 3]]])
        self.assertLess(lockstep.batching.plan([5, 5, 4, 3, 3], ranks=2, seq_len=8).makespan, plan.makespan)

    def test_worth_a_step_trades_steps_for_makespan(self):
        tokens = [3, 2, 5, 2, 8, 8, 8, 7, 4, 2, 8, 1]
        costs = [count * count for count in tokens]
        spread, packed = (
            lockstep.batching.plan(tokens, costs=costs, ranks=2, seq_len=16, worth_a_step=share) for share in (0, 1)
        )
        self.assertGreater(spread.micro_steps, packed.micro_steps)
        self.assertLess(spread.makespan, packed.makespan)

    def test_kinds_without_an_order_of_their_own_are_refused(self):
        # Sets are sorted by inclusion, so these come in the order of their hashes: another one in each process.
        for kinds in ([frozenset(["a"]), frozenset(["b"])], [float("nan"), float("nan")], [("a",), ("b",)]):
            with self.assertRaisesRegex(TypeError, "kinds must be all text or all whole numbers"):
                lockstep.batching.plan([1, 1], kinds, ranks=1, seq_len=4)

    def test_a_plan_can_be_sent_to_another_process(self):
        plan = lockstep.batching.plan([3, 2, 1], ranks=2, seq_len=4)
        copy = pickle.loads(pickle.dumps(plan))
        self.assertEqual([copy.at(rank, 0) for rank in range(2)], [plan.at(rank, 0) for rank in range(2)])

    def test_places_outside_the_plan_are_errors(self):
        plan = lockstep.batching.plan([1], ranks=2, seq_len=4)
        for rank, step in ((2, 0), (-1, 0), (0, 1), (0, -1)):
            with self.assertRaises(IndexError):
                plan.at(rank, step)


class TransformerCostTest(unittest.TestCase):
    def test_attention_grows_with_the_square(self):
        sequence, image = lockstep.batching.transformer_cost(
            hidden_size=64, num_hidden_layers=2, vocab_size=100, num_attention_heads=4, intermediate_size=128
        )
        # Causal scores and their product with values: 2 layers * 2 products * 2 FLOPs * 64 / 2.
        self.assertEqual(sequence.quadratic, 256)
        self.assertEqual(sequence(10), 10 * sequence.linear + 100 * sequence.quadratic)
        self.assertEqual(image(10), 0)

    def test_mistakes_are_named(self):
        with self.assertRaisesRegex(ValueError, "num_hidden_layers"):
            lockstep.batching.transformer_cost(hidden_size=64)
        with self.assertRaisesRegex(TypeError, "argument 'layers'"):
            lockstep.batching.transformer_cost(hidden_size=64, layers=3)
        with self.assertRaisesRegex(TypeError, "hidden_size must be a whole number"):
            lockstep.batching.transformer_cost(hidden_size=64.5)
