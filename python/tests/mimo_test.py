"""Tests lockstep.mimo: random topologies and tables against what their definitions say, row by row."""

import random
import unittest

from lockstep import mimo


def random_topology(random_):
    """Returns a topology of one to three encoders and "language", each on ranks of its own."""
    modules = []
    first = 0
    for name in [*random_.sample(["vision", "audio", "video"], random_.randint(1, 3)), "language"]:
        sizes = {axis: random_.choice([1, 1, 2, 3]) for axis in ("dp", "tp", "cp", "pp")}
        modules.append({"name": name, "first_rank": first, **sizes})
        first += sizes["dp"] * sizes["tp"] * sizes["cp"] * sizes["pp"]
    return mimo.topology(first, modules)


def random_items(random_, samples):
    items = [random_.choice([0, 0, 1, 2]) for _ in range(samples)]
    return items, [random_.randint(0, 5) for _ in range(sum(items))]


class OwnershipTest(unittest.TestCase):
    def test_each_row_is_its_samples(self):
        for seed in range(100):
            random_ = random.Random(seed)
            dp_size = random_.choice([1, 2, 3])
            samples = dp_size * random_.randint(1, 4)
            items, tokens = random_items(random_, samples)
            # The sample of each item and of each token, by definition.
            owner = [sample for sample, count in enumerate(items) for _ in range(count)]
            token_owner = [sample for sample, count in zip(owner, tokens) for _ in range(count)]
            table = mimo.ownership(items=items, tokens=tokens)
            self.assertEqual(table, mimo.ownership(sample_of_item=owner, num_samples=samples, tokens=tokens))
            for rows_of, owners in (("samples", list(range(samples))), ("items", owner), ("tokens", token_owner)):
                with self.subTest(seed=seed, rows_of=rows_of):
                    self.assertEqual(table.rows_per_sample(rows_of), [owners.count(s) for s in range(samples)])
                    for dp_rank in range(dp_size):
                        mine = {s for s in range(samples) if s * dp_size // samples == dp_rank}
                        rows = table.rows(dp_rank, dp_size, rows_of)
                        self.assertEqual(list(rows), [r for r, s in enumerate(owners) if s in mine])
                        self.assertEqual(sum(table.slice(dp_rank, dp_size).rows_per_sample(rows_of)), len(rows))
                    order = random_.sample(range(samples), samples)
                    self.assertEqual(
                        [owners[row] for row in table.row_order(order, rows_of)],
                        [s for s in order for _ in range(owners.count(s))],
                    )
                    self.assertEqual(table.reordered(order).rows_per_sample(rows_of), [owners.count(s) for s in order])

    def test_uneven_parts_differ_by_one_sample(self):
        table = mimo.ownership(items=[1, 1, 0, 2, 1], tokens=[2, 3, 4, 5, 6])
        topology = mimo.topology(3, [{"name": "vision", "dp": 2}, {"name": "language", "first_rank": 2}])
        for call in (
            lambda: table.rows(0, 2),
            lambda: table.slice(0, 2),
            lambda: topology.validate(micro_batch_size=5),
            lambda: topology.route("vision", "language", table),
        ):
            with self.assertRaisesRegex(ValueError, "5 is not divisible by"):
                call()
        self.assertEqual([table.rows(part, 2, uneven=True) for part in range(2)], [range(5), range(5, 20)])
        self.assertEqual(table.slice(1, 2, uneven=True).rows_per_sample(), [9, 6])
        topology.validate(micro_batch_size=5, uneven=True)
        route = topology.route("vision", "language", table, uneven=True)
        self.assertEqual(route.transfers, [(0, 2, range(5)), (1, 2, range(5, 20))])

    def test_tokens_of_a_grid(self):
        table = mimo.ownership(items=[1, 1], grid_thw=[[1, 4, 4], [2, 2, 2]], merge=2)
        self.assertEqual(table.rows_per_sample(), [4, 2])

    def test_mistakes_are_named(self):
        for arguments, error, message in (
            ({}, TypeError, "needs one of items, sample_of_item and rows_per_sample, not none"),
            ({"items": [1], "rows_per_sample": [1]}, TypeError, "not items and rows_per_sample"),
            ({"items": [1], "tokens": [1], "grid_thw": [[1, 1, 1]]}, TypeError, "tokens or grid_thw, not both"),
            ({"items": [1], "merge": 2}, TypeError, "merge needs grid_thw"),
            ({"rows_per_sample": [1], "tokens": [1]}, TypeError, "rows_per_sample gives all rows"),
            ({"items": [1], "num_samples": 1}, TypeError, "num_samples goes with sample_of_item"),
            ({"sample_of_item": [0]}, TypeError, "num_samples goes with sample_of_item"),
            ({"items": [-1], "tokens": []}, ValueError, "items of sample 0 are -1"),
            ({"items": [2], "tokens": [1]}, ValueError, "2 items"),
            ({"items": [2**40]}, ValueError, "items add up to 1099511627776"),
            ({"items": [1], "grid_thw": [[1, 3, 4]], "merge": 2}, ValueError, "merge"),
            ({"items": [1], "grid_thw": [[1, 3]]}, ValueError, "grid_thw[0] has 2 values"),
            ({"items": ["a"]}, TypeError, "items must be a sequence of whole numbers"),
        ):
            with self.subTest(arguments=arguments), self.assertRaises(error) as caught:
                mimo.ownership(**arguments)
            self.assertIn(message, str(caught.exception))
        with self.assertRaisesRegex(ValueError, "6 is not divisible by dp_size 4; use 4 or 8"):
            mimo.ownership(items=[1] * 6).rows(0, 4)
        with self.assertRaisesRegex(ValueError, "each of the samples 0 to 1 once"):
            mimo.ownership(items=[1, 1]).reordered([0, 0])
        with self.assertRaisesRegex(TypeError, "token_offsets must be a sequence of whole numbers"):
            mimo.Ownership([0, 1, 2], [0, 2.9, 4.9]).rows(0, 1)
        with self.assertRaisesRegex(TypeError, "modules must be a list of dictionaries"):
            mimo.topology(4, "vision")
        with self.assertRaisesRegex(TypeError, "edges must be pairs"):
            mimo.topology(1, [{"name": "language"}], [("a", "b", "c")])
        with self.assertRaisesRegex(ValueError, "5 items in all"):
            mimo.Ownership([0, 5], [0, 1]).rows(0, 1)


class TopologyTest(unittest.TestCase):
    def test_each_row_of_an_edge_travels_once_to_the_replica_that_owns_it(self):
        for seed in range(60):
            random_ = random.Random(seed)
            topology = random_topology(random_)
            sizes = {module.name: module for module in topology.modules}
            samples = 1
            for module in topology.modules:
                samples *= module.dp
            items, tokens = random_items(random_, samples)
            table = mimo.ownership(items=items, tokens=tokens)
            for source, sink in topology.edges:
                with self.subTest(seed=seed, edge=f"{source}>{sink}"):
                    route = topology.route(source, sink, table)
                    arrived = []
                    for transfer in route.transfers:
                        for name, rank in ((source, transfer.from_rank), (sink, transfer.to_rank)):
                            replica = topology.coordinates(rank, name).dp
                            shard = table.rows(replica, sizes[name].dp)
                            self.assertTrue(set(transfer.rows) <= set(shard))
                        arrived += transfer.rows
                    self.assertEqual(arrived, list(range(sum(tokens))))

    def test_each_step_ends(self):
        for seed in range(40):
            topology = random_topology(random.Random(seed))
            size = 1
            for module in topology.modules:
                size *= module.dp
            topology.validate(micro_batch_size=size)
            for order in ("sequential", "all_forwards_first", "1f1b"):
                simulation = topology.simulate(micro_batches=3, micro_batch_size=size, order=order, rank=0)
                self.assertGreater(simulation.operations, 0)
                self.assertTrue(all(line.startswith("rank 0: ") for line in simulation.of_rank))

    def test_ranks_that_load_read_the_same(self):
        # The failure that this prevents: a sampler by each module's own dp gives them different samples.
        topology = mimo.topology(4, [{"name": "vision", "dp": 3}, {"name": "language", "first_rank": 3}])
        by_own_size = {
            tuple(range(topology.dp_info(rank).dp_rank, 12, topology.dp_info(rank).dp_size)) for rank in range(4)
        }
        self.assertGreater(len(by_own_size), 1)
        self.assertEqual({topology.sampling_info(rank) for rank in range(4)}, {(0, 1, True)})

    def test_reads_cover_the_micro_batch(self):
        topology = mimo.topology(5, [{"name": "vision", "dp": 3}, {"name": "language", "dp": 2, "first_rank": 3}])
        reads = topology.reads(micro_batch_size=12, num_samples=54)
        self.assertEqual((reads.num_groups, reads.num_micro_batches), (6, 4))
        for dp_size in (3, 2):
            positions = [p for dp_rank in range(dp_size) for p in reads.positions(1, dp_rank, dp_size)]
            self.assertEqual(positions, list(range(12, 24)))
        with self.assertRaisesRegex(IndexError, "no micro-batch 4"):
            reads.positions(4, 0, 3)

    def test_groups_are_equal_on_every_rank_and_cover_the_module(self):
        topology = mimo.topology(
            12, [{"name": "vision", "dp": 2, "tp": 2}, {"name": "language", "tp": 2, "pp": 2, "dp": 2, "first_rank": 4}]
        )
        groups = dict(topology.process_groups())
        self.assertEqual(groups["vision/dp"], topology.groups("vision", "dp"))
        self.assertEqual(sorted(rank for group in groups["language/dp-cp"] for rank in group), list(range(4, 12)))
        self.assertEqual(groups["world"], [list(range(12))])

    def test_drawings(self):
        topology = mimo.topology(4, [{"name": "vision", "dp": 3}, {"name": "language", "first_rank": 3}])
        self.assertIn("vision -> language", topology.draw(6))
        self.assertTrue(topology.draw(6, svg=True).startswith("<svg"))

    def test_mistakes_are_named(self):
        topology = mimo.topology(4, [{"name": "vision", "dp": 3}, {"name": "language", "first_rank": 3}])
        for call, error, message in (
            (lambda: mimo.topology(4, [{"name": "vision", "dp": 3}]), ValueError, "2 rules are broken"),
            (lambda: mimo.topology(4, [{"nam": "vision"}]), TypeError, "modules[0] has no field nam"),
            (lambda: mimo.topology(4, [{"dp": 4}]), TypeError, "modules[0] has no name"),
            (lambda: mimo.topology(4, [{"name": 1}]), TypeError, "modules[0].name must be a text, not 1"),
            (lambda: mimo.topology(4, [{"name": "language", "dp": 4.0}]), TypeError, "modules[0].dp must be a whole"),
            (lambda: mimo.topology(1, [{"name": "language", "ranks": [2**33]}]), ValueError, "rank 8589934592"),
            (lambda: mimo.topology(1, [{"name": "language\udce4"}]), ValueError, "surrogates not allowed"),
            (lambda: topology.validate(micro_batch_size=5), ValueError, "use 3 or 6 to suit all modules"),
            (lambda: topology.route("a", "language", mimo.ownership(items=[1])), LookupError, 'no edge from "a"'),
            (lambda: topology.groups("audio", "dp"), LookupError, 'no module "audio"'),
            (lambda: topology.dp_info(0, "language"), LookupError, 'rank 0 of world_size 4 is not of "language"'),
            (lambda: topology.simulate(micro_batch_size=6, order="best"), ValueError, 'not "best"'),
            (lambda: topology.simulate(micro_batch_size=6, rank=4), IndexError, "rank must be from 0 to 3, not 4"),
            (lambda: topology.draw(-1), ValueError, "at least 0"),
        ):
            with self.subTest(message=message), self.assertRaises(error) as caught:
                call()
            self.assertIn(message, str(caught.exception))


class LoadTest(unittest.TestCase):
    def test_balanced_order(self):
        self.assertEqual(mimo.balanced_order([4, 16, 9, 25], 2), [3, 0, 1, 2])
        with self.assertRaisesRegex(ValueError, r"costs\[1\] must be finite, not nan"):
            mimo.balanced_order([1, float("nan")], 1)


class GradientScaleTest(unittest.TestCase):
    def test_the_factor_turns_the_reduced_gradient_into_that_of_one_rank(self):
        for seed in range(100):
            random_ = random.Random(seed)
            language_dp, micro_batches = random_.randint(1, 4), random_.randint(1, 4)
            size, tokens = random_.randint(1, 6), random_.randint(1, 100)
            local = [random_.uniform(-1, 1) for _ in range(size)]
            for reduction, reduced in (("sum", sum(local)), ("mean", sum(local) / size)):
                for loss, divisor in (("per_token", tokens), ("mean_of_means", language_dp * micro_batches)):
                    factor = mimo.gradient_scale(
                        loss=loss,
                        reduction=reduction,
                        reduction_size=size,
                        num_tokens=tokens,
                        language_dp=language_dp,
                        num_micro_batches=micro_batches,
                    )
                    self.assertAlmostEqual(reduced * factor, sum(local) / divisor)

    def test_a_step_without_tokens_has_no_mean(self):
        with self.assertRaisesRegex(ValueError, "num_tokens is 0"):
            mimo.gradient_scale()
