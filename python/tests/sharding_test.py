"""Tests lockstep.sharding on one rank, against references: what needs no torch."""

import itertools
import os
import random
import unittest
import unittest.mock

import lockstep
from lockstep import sharding
from lockstep._guard import fingerprint


class LockstepTest(unittest.TestCase):
    def test_one_rank_sees_its_batches(self):
        for length, policy, ahead in itertools.product(range(4), ("until_first", "until_last"), (False, True)):
            loop = sharding.lockstep(range(length), policy, read_ahead=ahead)
            for _ in range(2):  # a loop can run again
                self.assertEqual(list(loop), [(i, True) for i in range(length)])
                self.assertEqual((loop.steps, loop.filled, loop.dropped), (length, 0, 0))

    def test_it_reads_no_batch_before_it_is_needed_unless_told_to(self):
        for ahead, expected in ((False, 1), (True, 2)):
            source = iter(range(9))
            for _ in sharding.lockstep(source, read_ahead=ahead):
                break
            self.assertEqual(next(source), expected)

    def test_batches_after_a_stop_are_counted(self):
        for ahead in (False, True):
            loop = sharding.lockstep(range(10), read_ahead=ahead)
            for batch, _ in loop:
                if batch == 3:
                    loop.stop()
            self.assertEqual(loop.steps + loop.dropped, 10)
        endless = sharding.lockstep(itertools.count())
        for _ in endless:
            break
        self.assertEqual(endless.dropped, float("inf"))

    def test_an_error_of_the_iterable_is_raised_as_it_is(self):
        def batches():
            yield 1
            raise KeyError("x")

        with self.assertRaises(KeyError):
            list(sharding.lockstep(batches()))
        with self.assertRaises(TypeError):
            list(sharding.lockstep(3))

    def test_mistakes_are_named(self):
        with self.assertRaisesRegex(ValueError, 'policy must be "until_first" or "until_last", not \'first\''):
            sharding.lockstep([], policy="first")
        with self.assertRaisesRegex(ValueError, "torch.distributed is not initialized"):
            list(sharding.lockstep([], group=object()))


class MeanTest(unittest.TestCase):
    def test_one_rank(self):
        self.assertEqual(sharding.weighted_mean(2.5, 4), 2.5)
        # Products of floats would be rounded, infinite, and 0.
        for value, weight in ((0.1, 3), (1e308, 10), (1e-300, 1e-300)):
            self.assertEqual(sharding.weighted_mean(value, weight), value)
        for value, weight, message in (
            (1, 0, "the weights of all 1 ranks are 0"),
            (1, -1, "weight of rank 0 is -1"),
            (float("nan"), 1, "value of rank 0 is nan"),
            (1, float("inf"), "weight of rank 0"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                sharding.weighted_mean(value, weight)
        with self.assertRaisesRegex(TypeError, "numbers or tensors of one element"):
            sharding.weighted_mean("a", 1)


class DatasetTest(unittest.TestCase):
    def test_ranks_together_see_each_sample_once(self):
        for seed in range(100):
            rng = random.Random(seed)
            size, world = rng.choice([0, 1, 7, 100, 3000]), rng.choice([1, 2, 3, 8])
            tail = rng.choice([{}, {"drop_last": True}, {"pad": True}])
            options = {"seed": seed, "shuffle": rng.random() < 0.7, "world": world, **tail}
            parts = [sharding.dataset(size, rank=rank, **options) for rank in range(world)]
            seen = [list(part) for part in parts]
            self.assertEqual([len(each) for each in seen], [part.length for part in parts])
            everything = sorted(sum(seen, []))
            with self.subTest(seed=seed):
                if not tail:
                    self.assertEqual(everything, list(range(size)))
                else:
                    self.assertEqual(len(set(map(len, seen))), 1)
                    padded, dropped = sum(part.padded for part in parts), parts[0].dropped
                    self.assertEqual(len(everything), size - dropped + padded)
                    self.assertEqual(len(set(everything)), size - dropped)

    def test_a_state_goes_on_with_the_rest_on_other_ranks(self):
        for seed in range(50):
            rng = random.Random(seed)
            size, world, other = rng.randrange(1, 200), rng.choice([1, 2, 5]), rng.choice([1, 3, 4])
            parts = [sharding.dataset(size, seed=seed, rank=rank, world=world) for rank in range(world)]
            taken = rng.randrange(size // world + 1)
            seen = [index for part in parts for index in itertools.islice(part, taken)]
            rest = [sharding.dataset(state=parts[0].state(), rank=rank, world=other) for rank in range(other)]
            self.assertEqual(sorted(seen + sum(map(list, rest), [])), list(range(size)), seed)

    def test_an_epoch_has_its_own_order(self):
        indices = sharding.dataset(100, seed=3)
        first = list(indices)
        self.assertEqual(list(indices), first)
        indices.set_epoch(1)
        second = list(indices)
        self.assertNotEqual(first, second)
        self.assertEqual(sorted(first), sorted(second))
        indices.set_epoch(0)
        self.assertEqual(list(indices), first)

    def test_mistakes_are_named(self):
        for options, message in (
            ({}, "give size"),
            ({"size": -1}, "size must be from 0 to 2\\^53, not -1"),
            ({"size": 1, "rank": 0}, "both rank and world"),
            ({"size": 1, "rank": 2, "world": 2}, "rank must be from 0 to world - 1 = 1, not 2"),
            ({"size": 1, "pad": True, "drop_last": True}, "drop_last or pad, not both"),
            ({"size": 1, "state": {}}, "a state has the size"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                sharding.dataset(**options)

    def test_an_epoch_begins_again_where_no_other_is_set(self):
        # What a DataLoader does with its sampler. Without it the second epoch would be empty.
        indices = sharding.dataset(10, seed=3, rank=1, world=2)
        next(indices)
        self.assertEqual(len(list(indices)), 4)  # the rest
        first = list(indices)
        self.assertEqual((len(first), list(indices)), (5, first))
        self.assertEqual(list(sharding.dataset(0, rank=0, world=1)), [])

    def test_a_state_of_somebody_else_is_refused(self):
        state = sharding.dataset(10, rank=0, world=1).state()
        for change in ({"size": 4.9}, {"tail": "dropp"}, {"more": 1}):
            with self.assertRaisesRegex((TypeError, ValueError), "whole number|tail of a state|a state is what"):
                sharding.dataset(state={**state, **change}, rank=0, world=1)
        with self.assertRaisesRegex(ValueError, "world must be from 0 to"):
            sharding.dataset(4, rank=0, world=2**62)


class WatchTest(unittest.TestCase):
    def test_a_watch_before_the_process_group_is_an_error(self):
        with unittest.mock.patch.dict(os.environ, {"WORLD_SIZE": "2"}):
            with self.assertRaisesRegex(RuntimeError, "call watch after torch.distributed.init_process_group"):
                lockstep.watch()
        lockstep.watch()


class PackTest(unittest.TestCase):
    def test_whole_stream_is_cut_in_order(self):
        for seed in range(100):
            rng = random.Random(seed)
            lengths = [rng.randrange(12) for _ in range(rng.randrange(20))]
            seq_len = rng.randrange(1, 9)
            ids = iter(range(10_000))
            samples = [list(itertools.islice(ids, length)) for length in lengths]
            stream, positions = sum(samples, []), [i for length in lengths for i in range(length)]
            packed = sharding.pack([{"input_ids": each, "labels": [-i for i in each]} for each in samples], seq_len)
            chunks = list(packed)
            full = len(stream) // seq_len * seq_len
            self.assertEqual(sum((chunk["input_ids"] for chunk in chunks), []), stream[:full])
            self.assertEqual(sum((chunk["labels"] for chunk in chunks), []), [-i for i in stream[:full]])
            self.assertEqual(sum((chunk["position_ids"] for chunk in chunks), []), positions[:full])
            self.assertTrue(all(sum(chunk["seq_lens"]) == seq_len for chunk in chunks))
            self.assertEqual((packed.dropped_tokens, packed.chunks), (len(stream) - full, len(chunks)))

    def test_whole_samples_move_to_the_next_chunk(self):
        packed = sharding.pack([[1] * 3, [2] * 3, [3] * 6, [4]], 5, split=False, drop_last=False)
        self.assertEqual([chunk["input_ids"] for chunk in packed], [[1] * 3, [2] * 3, [3] * 5, [4]])
        self.assertEqual(packed.dropped_tokens, 1)

    def test_no_field_is_dropped(self):
        with self.assertRaisesRegex(ValueError, "sample 1 has labels, which a sample before it has not"):
            list(sharding.pack([{"input_ids": [1, 2]}, {"input_ids": [3, 4], "labels": [7, 8]}], 4))
        with self.assertRaisesRegex(ValueError, "sample 0 has seq_lens"):
            list(sharding.pack([{"input_ids": [1, 2], "seq_lens": [1, 1]}], 4))

    def test_a_batch_is_no_sample(self):
        with self.assertRaisesRegex(ValueError, "sample 0: input_ids must be ids in one dimension, not 2"):
            list(sharding.pack([[[1, 2]]], 8))

    def test_mistakes_are_named(self):
        with self.assertRaisesRegex(ValueError, "seq_len must be at least 1, not 0"):
            sharding.pack([], 0)
        for samples, message in (
            ([{"ids": [1]}], "sample 0 has no input_ids"),
            ([[1], {"input_ids": [1], "labels": []}], "sample 1: labels has 0 values"),
            ([{"input_ids": [1], "labels": [1]}, [2]], "sample 1 has no labels"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                list(sharding.pack(samples, 2))


class FingerprintTest(unittest.TestCase):
    def test_equal_values_have_equal_texts(self):
        for one, same in (({"a": 1, "b": [2]}, {"b": (2,), "a": 1}), ({3, 1, 2}, {2, 3, 1}), (None, None)):
            self.assertEqual(fingerprint(one), fingerprint(same))
        texts = [
            fingerprint(value) for value in (1, 1.0, "1", True, None, [], {}, [1], {1: 1}, b"1", 0.1, 0.1 + 1e-18, -0.0)
        ]
        self.assertEqual(len(set(texts)), len(texts) - 1)  # 0.1 + 1e-18 is 0.1

    def test_values_with_an_address_are_refused(self):
        for value in (object(), [lambda: 0], {"x": iter([])}):
            with self.assertRaisesRegex(TypeError, "has no text that is equal on every rank"):
                fingerprint(value)

    def test_one_rank_checks_its_value(self):
        guard = sharding.Guard()
        guard.check("step 0", {"a": 1})
        with self.assertRaises(TypeError):
            guard.check("step 1", object())
        with self.assertRaisesRegex(ValueError, "timeout must be more than 0 s, not 0"):
            sharding.Guard(timeout=0)
