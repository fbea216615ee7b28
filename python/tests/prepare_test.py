"""lockstep.batching.prepare keeps the guarantees that batching/prepare_property_test.cc tests in C++."""

import random
import unittest

import torch

from lockstep import batching


def text(draw, first):
    return {"input_ids": torch.arange(first, first + draw(1, 15))}


def images(draw, first):
    """Placeholders and text after each image. A placeholder stands for four patches."""
    patches = [4 * draw(1, 3) for _ in range(draw(1, 3))]
    types = [kind for count in patches for kind in [1] * (count // 4) + [0]]
    return {
        "input_ids": torch.arange(first, first + len(types)),
        "mm_token_type_ids": torch.tensor(types),
        "pixel_values": torch.arange(sum(patches) * 2.0).view(-1, 2) + first,
        "image_grid_thw": torch.tensor([[1, 2, count // 2] for count in patches]),
    }


def make_case(seed):
    draw = random.Random(seed).randint
    multiple = draw(1, 3)
    options = {
        "seq_len": multiple * draw(1, 12),
        "ranks": draw(1, 5),
        "pad_to_multiple_of": multiple,
        "balance": "makespan" if draw(0, 3) else "round_robin",
        "mix_kinds": draw(0, 3) > 0,
        "streams": {"advantages": (0.5, -7.0), "temperatures": 2.0},
    }
    samples = []
    for i in range(draw(0, 9)):
        is_image = draw(0, 2) == 0
        sample = (images if is_image else text)(draw, 1000 * (i + 1))  # no token of two samples is the same
        if not is_image and draw(0, 3) == 0:
            sample["kind"] = "code"
        ids = sample["input_ids"]
        if draw(0, 1):
            sample["advantages"] = ids.float()
        if draw(0, 2) == 0:
            sample["position_ids"] = ids.flip(0)
        kind = draw(0, 2)
        mask = [draw(0, 1) if kind == 2 else kind for _ in ids]
        sample["loss_mask"] = torch.tensor(mask, dtype=torch.bool) if draw(0, 1) else mask
        sample["may_wait"] = draw(0, 1) == 0
        samples.append(sample)
    return samples, options


def learnt(sample):
    """The tokens with a loss: those of the mask without the first."""
    mask = torch.as_tensor(sample["loss_mask"]).bool().clone()
    mask[:1] = False
    return mask


def tokens_that_fit(sample, seq_len):
    """The tokens that are left, cut before an image that does not fit."""
    tokens = min(seq_len, len(sample["input_ids"]))
    types = sample.get("mm_token_type_ids")
    if types is not None and tokens < len(types):
        while tokens > 0 and types[tokens] == 1 and types[tokens - 1] == 1:
            tokens -= 1
    return tokens


class Prepare(unittest.TestCase):
    def equal(self, got, wanted):
        self.assertTrue(torch.equal(got, wanted), f"{got} is not {wanted}")

    def check_batch(self, batch, samples, options, seen):
        """Returns the tokens of samples in a micro-batch."""
        length = len(batch["input_ids"])
        self.assertLessEqual(length, options["seq_len"])
        self.assertEqual(length % options["pad_to_multiple_of"], 0)
        self.assertEqual(sum(batch.seq_lens), length)
        self.equal(batch["cu_seqlens"], torch.tensor([0, *batch.seq_lens]).cumsum(0).int())
        self.assertEqual("pixel_values" in batch, batch.kind == "image")
        if batch.kind == "image":
            patches = batch["image_grid_thw"].prod(1).sum()
            self.assertEqual(len(batch["pixel_values"]), patches)
            self.assertEqual(batch["mm_token_type_ids"].eq(1).sum() * 4, patches)
        self.assertTrue((batch["advantages"][length - batch.padding_tokens :] == -7).all())
        self.equal(batch["temperatures"], torch.full((length,), 2.0))
        if batch.padding:
            self.assertEqual((batch.padding_tokens, batch.samples), (length, []))
            self.assertFalse(batch["loss_mask"].any())
            return 0
        begin = row = tokens = 0
        for place, (index, reserved) in enumerate(zip(batch.samples, batch.seq_lens, strict=True)):
            sample, seen[index] = samples[index], seen.get(index, 0) + 1
            real = tokens_that_fit(sample, options["seq_len"])
            is_last = place + 1 == len(batch.samples)
            self.assertIn(reserved - real, range(options["pad_to_multiple_of"] if is_last else 1))
            part = slice(begin, begin + real)
            self.equal(batch["input_ids"][part], sample["input_ids"][:real])
            self.equal(batch["position_ids"][part], sample.get("position_ids", torch.arange(real))[:real])
            self.equal(batch["loss_mask"][part], learnt(sample)[:real])
            self.equal(batch["advantages"][part], sample.get("advantages", torch.full((real,), 0.5))[:real])
            if batch.kind == "image":  # its pixels are its own first rows
                rows = 4 * int(batch["mm_token_type_ids"][part].eq(1).sum())
                if rows:
                    self.equal(batch["pixel_values"][row : row + rows], sample["pixel_values"][:rows])
                row += rows
            begin, tokens = begin + reserved, tokens + real
        return tokens

    def test_every_guarantee_holds_in_random_cases(self):
        for seed in range(500):
            samples, options = make_case(seed)
            batches, report = batching.prepare(samples, **options)
            with self.subTest(seed=seed):
                self.assertEqual(len(batches), options["ranks"])
                seen, tokens = {}, 0
                for of_rank in batches:
                    self.assertEqual(len(of_rank), report.micro_steps)
                    for step, batch in enumerate(of_rank):
                        self.assertEqual(batch.kind, batches[0][step].kind)
                        tokens += self.check_batch(batch, samples, options, seen)
                every = [batch for of_rank in batches for batch in of_rank]
                held = [samples[index] for index in report.held]
                self.assertTrue(all(sample["may_wait"] for sample in held))
                self.assertEqual(set(seen.values()) | {1}, {1})
                self.assertFalse(set(seen) & set(report.held))
                self.assertEqual(len(seen) + len(held) + report.dropped_samples, len(samples))
                planned = [sample for i, sample in enumerate(samples) if i not in report.held]
                self.assertEqual(tokens, report.tokens)
                self.assertEqual(sum(len(sample["input_ids"]) for sample in planned), tokens + report.truncated_tokens)
                self.assertEqual(sum(len(batch["input_ids"]) for batch in every), tokens + report.padding_tokens)
                self.assertEqual(sum(int(batch["loss_mask"].sum()) for batch in every), report.loss_tokens)
                self.assertEqual(
                    sum(int(learnt(sample).sum()) for sample in planned),
                    report.loss_tokens + report.truncated_loss_tokens,
                )

    def test_one_rank_alone_gets_what_all_get(self):
        for seed in range(50):
            samples, options = make_case(seed)
            batches, report = batching.prepare(samples, **options)
            rank = seed % options["ranks"]
            mine, same = batching.prepare(samples, rank=rank, **options)
            self.assertEqual(report, same)
            self.assertEqual(
                [len(of_rank) for of_rank in mine],
                [report.micro_steps if i == rank else 0 for i in range(options["ranks"])],
            )
            for one, other in zip(mine[rank], batches[rank], strict=True):
                self.assertEqual(sorted(one), sorted(other))
                for name in one:
                    self.equal(one[name], other[name])

    def test_the_cost_of_a_transformer_balances_by_it(self):
        cost = batching.transformer_cost(
            hidden_size=64,
            num_hidden_layers=2,
            vocab_size=100,
            num_attention_heads=4,
            num_key_value_heads=4,
            head_dim=16,
            intermediate_size=128,
        )
        samples = [{"input_ids": range(n), "loss_mask": [1] * n} for n in (60, 50, 40)]
        batches, report = batching.prepare(samples, seq_len=64, ranks=3, cost=cost)
        self.assertEqual(report.makespan, cost[0](60))
        self.assertEqual(sorted(batch.cost for (batch,) in batches), [cost[0](n) for n in (40, 50, 60)])

    def test_errors_name_the_option_or_the_sample(self):
        good = {"input_ids": [1, 2, 3], "loss_mask": [1, 1, 1]}
        for words, samples, options in (
            ("sample 1 has no loss_mask", [good, {"input_ids": [1]}], {}),
            ("sample 0: cost is a field of every micro-batch", [{**good, "cost": [1, 2, 3]}], {}),
            ("sample 0.*loss_mask", [{**good, "loss_mask": [1, 1]}], {}),
            ('balance must be "makespan" or "round_robin", not "best"', [good], {"balance": "best"}),
            ("rank must be from 0 to 1, not 2", [good], {"ranks": 2, "rank": 2}),
            ("pad_to_multiple_of", [good], {"pad_to_multiple_of": 3}),
            ("streams: padding is a field of every micro-batch", [good], {"streams": {"padding": 0.0}}),
        ):
            with self.subTest(words), self.assertRaisesRegex(ValueError, words):
                batching.prepare(samples, seq_len=4, **options)
        with self.assertRaisesRegex(TypeError, "sample 0: input_ids must be a tensor or a sequence of numbers"):
            batching.prepare([{**good, "input_ids": "abc"}], seq_len=4)
        with self.assertRaisesRegex(TypeError, "sample 0: kind must be text, not 3"):
            batching.prepare([{**good, "kind": 3}], seq_len=4)


if __name__ == "__main__":
    unittest.main()
