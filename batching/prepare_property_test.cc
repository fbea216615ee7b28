// Every guarantee of prepare.h, on random cases.

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ops/arange.h"
#include "ATen/ops/equal.h"
#include "ATen/ops/full.h"
#include "ATen/ops/tensor.h"
#include "batching/prepare.h"
#include "batching/testing/test_samples.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::batching {
namespace {

using ::testing::IsEmpty;

struct RandomCase {
  std::vector<TensorSample> samples;
  PrepareOptions options;
};

RandomCase MakeCase(std::mt19937& random) {
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  RandomCase c;
  const int64_t multiple = draw(1, 3);
  c.options = With(multiple * draw(1, 12), static_cast<int>(draw(1, 5)),
                   draw(0, 3) > 0 ? Balance::kLockstep : Balance::kRoundRobin);
  c.options.pad_to_multiple_of = multiple;
  c.options.streams["advantages"] = {0.5, -7.0};
  c.options.mix_kinds = draw(0, 3) > 0;
  const int64_t count = draw(0, 9);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t first = 1000 * (i + 1);  // no token of two samples is the same
    TensorSample sample;
    if (draw(0, 2) == 0) {
      std::vector<int64_t> patches(static_cast<size_t>(draw(1, 3)));
      for (int64_t& n : patches) n = 4 * draw(1, 3);
      sample = Images(patches, first);
    } else {
      sample = Text(draw(1, 15), first);
      if (draw(0, 3) == 0) sample.kind = "code";
    }
    if (draw(0, 1) == 0) sample.streams["advantages"] = sample.input_ids.to(at::kFloat);
    if (draw(0, 2) == 0) sample.position_ids = sample.input_ids.flip(0);
    // Masks of ones, of zeros, and random ones: many mark the first token.
    const int64_t kind = draw(0, 2);
    std::vector<int64_t> mask(static_cast<size_t>(sample.input_ids.numel()));
    for (int64_t& value : mask) value = kind == 2 ? draw(0, 1) : kind;
    sample.loss_mask = at::tensor(mask, at::kLong);
    sample.may_wait = draw(0, 1) == 0;
    c.samples.push_back(std::move(sample));
  }
  return c;
}

// Returns the tokens that a model predicts and learns: those of the mask without the first, which
// no token before it predicts.
at::Tensor Learnt(const TensorSample& sample) {
  at::Tensor mask = sample.loss_mask.to(at::kBool, /*non_blocking=*/false, /*copy=*/true);
  mask.narrow(0, 0, 1).fill_(false);
  return mask;
}

// Where the tokens of one sequence in a micro-batch are what its sample holds, in all fields.
void ExpectSampleAt(const TensorMicroBatch& batch, int64_t begin, int64_t tokens,
                    const TensorSample& sample) {
  const auto part = [&](const at::Tensor& t) { return t.narrow(0, begin, tokens); };
  EXPECT_TRUE(at::equal(part(batch.input_ids), sample.input_ids.narrow(0, 0, tokens)));
  EXPECT_TRUE(at::equal(part(batch.position_ids), sample.position_ids.defined()
                                                      ? sample.position_ids.narrow(0, 0, tokens)
                                                      : at::arange(tokens, at::kLong)));
  EXPECT_TRUE(at::equal(part(batch.loss_mask), Learnt(sample).narrow(0, 0, tokens)));
  const auto stream = sample.streams.find("advantages");
  if (batch.streams.count("advantages") == 0) return;
  const at::Tensor expected = stream != sample.streams.end() ? stream->second.narrow(0, 0, tokens)
                                                             : at::full({tokens}, 0.5, at::kFloat);
  EXPECT_TRUE(at::equal(part(batch.streams.at("advantages")), expected));
}

// Returns how many tokens of the sample fit into seq_len, cut before an image that does not fit.
// In these samples a token of text follows each image.
int64_t TokensThatFit(const TensorSample& sample, int64_t seq_len) {
  int64_t tokens = std::min(seq_len, sample.input_ids.numel());
  const auto types = sample.streams.find("mm_token_type_ids");
  if (types == sample.streams.end() || tokens == sample.input_ids.numel()) return tokens;
  const auto is_placeholder = [&](int64_t t) { return types->second[t].item<int64_t>() == 1; };
  while (tokens > 0 && is_placeholder(tokens) && is_placeholder(tokens - 1)) --tokens;
  return tokens;
}

void ExpectGuarantees(const RandomCase& c, const Prepared& prepared) {
  ASSERT_EQ(prepared.batches.size(), static_cast<size_t>(c.options.ranks));
  std::map<int64_t, int> seen;
  int64_t tokens = 0, length_of_all = 0, marked = 0, without_loss = 0;
  for (const auto& batches : prepared.batches) {
    ASSERT_EQ(batches.size(), static_cast<size_t>(prepared.report.micro_steps));
    for (size_t step = 0; step < batches.size(); ++step) {
      const TensorMicroBatch& batch = batches[step];
      const int64_t length = batch.input_ids.numel();
      length_of_all += length;
      marked += batch.loss_mask.sum().item<int64_t>();
      EXPECT_EQ(batch.kind, prepared.batches[0][step].kind);
      EXPECT_LE(length, c.options.seq_len);
      EXPECT_EQ(length % c.options.pad_to_multiple_of, 0);
      EXPECT_EQ(std::accumulate(batch.seq_lens.begin(), batch.seq_lens.end(), int64_t{0}), length);
      EXPECT_EQ(batch.cu_seqlens[-1].item<int64_t>(), length);
      EXPECT_EQ(batch.tensors.count("pixel_values"), batch.kind == "image" ? 1u : 0u);
      if (batch.kind == "image") {
        const at::Tensor patches = batch.tensors.at("image_grid_thw").prod(1).sum();
        EXPECT_EQ(batch.tensors.at("pixel_values").size(0), patches.item<int64_t>());
        EXPECT_EQ(batch.streams.at("mm_token_type_ids").eq(1).sum().item<int64_t>() * 4,
                  patches.item<int64_t>());
      }
      const at::Tensor of_padding =
          batch.streams.at("advantages")
              .narrow(0, length - batch.padding_tokens, batch.padding_tokens);
      EXPECT_TRUE(of_padding.eq(-7.0).all().item<bool>());
      if (batch.padding) {
        EXPECT_EQ(batch.padding_tokens, length);
        EXPECT_FALSE(batch.loss_mask.any().item<bool>());
        EXPECT_THAT(batch.samples, IsEmpty());
        continue;
      }
      ASSERT_EQ(batch.samples.size(), batch.seq_lens.size());
      int64_t begin = 0, rows = 0;
      for (size_t i = 0; i < batch.samples.size(); ++i) {
        const TensorSample& sample = c.samples[static_cast<size_t>(batch.samples[i])];
        ++seen[batch.samples[i]];
        const int64_t real = TokensThatFit(sample, c.options.seq_len);
        const bool is_last = i + 1 == batch.samples.size();
        ASSERT_GE(batch.seq_lens[i], real);
        ASSERT_LT(batch.seq_lens[i], real + (is_last ? c.options.pad_to_multiple_of : 1));
        ExpectSampleAt(batch, begin, real, sample);
        without_loss += batch.loss_mask.narrow(0, begin, real).any().item<bool>() ? 0 : 1;
        tokens += real;
        begin += batch.seq_lens[i];
        if (batch.kind != "image") continue;
        // Each sample's pixels are its own first rows, in the order of the samples.
        const int64_t images = batch.streams.at("mm_token_type_ids")
                                   .narrow(0, begin - batch.seq_lens[i], real)
                                   .eq(1)
                                   .sum()
                                   .item<int64_t>();
        if (images == 0) continue;  // text that rides
        EXPECT_TRUE(at::equal(batch.tensors.at("pixel_values").narrow(0, rows, 4 * images),
                              sample.tensors.at("pixel_values").narrow(0, 0, 4 * images)));
        rows += 4 * images;
      }
    }
  }
  int64_t given = 0, with_loss = 0;
  for (const TensorSample& sample : c.samples) {
    given += sample.input_ids.numel();
    with_loss += Learnt(sample).sum().item<int64_t>();
  }
  for (const int64_t i : prepared.held) {
    EXPECT_TRUE(c.samples[static_cast<size_t>(i)].may_wait);
    EXPECT_EQ(seen.count(i), 0u);
    given -= c.samples[static_cast<size_t>(i)].input_ids.numel();
    with_loss -= Learnt(c.samples[static_cast<size_t>(i)]).sum().item<int64_t>();
  }
  EXPECT_EQ(marked, prepared.report.loss_tokens);
  EXPECT_EQ(with_loss, prepared.report.loss_tokens + prepared.report.truncated_loss_tokens);
  EXPECT_EQ(without_loss + prepared.report.dropped_samples, prepared.report.samples_without_loss);
  EXPECT_EQ(tokens, prepared.report.tokens);
  EXPECT_EQ(given, prepared.report.tokens + prepared.report.truncated_tokens);
  EXPECT_EQ(length_of_all, prepared.report.tokens + prepared.report.padding_tokens);
  EXPECT_EQ(
      seen.size() + prepared.held.size() + static_cast<size_t>(prepared.report.dropped_samples),
      c.samples.size());
  for (const auto& [sample, times] : seen) EXPECT_EQ(times, 1) << "sample " << sample;
}

TEST(Prepare, EveryGuaranteeHoldsInRandomCases) {
  for (unsigned seed = 0; seed < 10000; ++seed) {
    std::mt19937 random(seed);
    const RandomCase c = MakeCase(random);
    ExpectGuarantees(c, Prepare(c.samples, c.options));
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

bool AreEqual(const std::map<std::string, at::Tensor>& a,
              const std::map<std::string, at::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& one, const auto& two) {
    return one.first == two.first && one.second.scalar_type() == two.second.scalar_type() &&
           at::equal(one.second, two.second);
  });
}

bool AreEqual(const TensorMicroBatch& a, const TensorMicroBatch& b) {
  return a.kind == b.kind && a.padding == b.padding && a.cost == b.cost && a.samples == b.samples &&
         a.seq_lens == b.seq_lens && at::equal(a.input_ids, b.input_ids) &&
         at::equal(a.loss_mask, b.loss_mask) && at::equal(a.position_ids, b.position_ids) &&
         at::equal(a.cu_seqlens, b.cu_seqlens) && AreEqual(a.streams, b.streams) &&
         AreEqual(a.tensors, b.tensors);
}

// A rank that plans from the index makes what it would make of all samples, and loads no others.
TEST(Prepare, AnIndexGivesTheSameBitsAndLoadsOnlyOwnSamples) {
  for (unsigned seed = 0; seed < 500; ++seed) {
    std::mt19937 random(seed);
    RandomCase c = MakeCase(random);
    std::vector<Outline> index;
    for (size_t i = 0; i < c.samples.size(); ++i)
      index.push_back(Describe(c.samples[i], static_cast<int64_t>(i), c.options));
    const Prepared whole = Prepare(c.samples, c.options);
    for (int rank = 0; rank < c.options.ranks; ++rank) {
      c.options.only_rank = rank;
      std::set<int64_t> loaded;
      const auto load = [&](int64_t i) {
        loaded.insert(i);
        return c.samples[static_cast<size_t>(i)];
      };

      const Prepared own = PrepareFromIndex(index, load, c.options);

      const auto& expected = whole.batches[static_cast<size_t>(rank)];
      const auto& found = own.batches[static_cast<size_t>(rank)];
      ASSERT_TRUE(std::equal(expected.begin(), expected.end(), found.begin(), found.end(),
                             [](const auto& a, const auto& b) { return AreEqual(a, b); }))
          << "seed " << seed << ", rank " << rank;
      EXPECT_EQ(own.held, whole.held);
      EXPECT_EQ(own.report.fingerprint, whole.report.fingerprint);
      EXPECT_EQ(own.report.loss_tokens, whole.report.loss_tokens);
      EXPECT_EQ(own.report.tokens, whole.report.tokens);
      EXPECT_EQ(own.report.makespan, whole.report.makespan);
      size_t samples = 0, padding = 0;
      for (const TensorMicroBatch& batch : found) {
        samples += batch.samples.size();
        padding += batch.padding ? batch.seq_lens.size() : 0;
      }
      EXPECT_GE(loaded.size(), samples);
      EXPECT_LE(loaded.size(), samples + padding) << "seed " << seed << ", rank " << rank;
    }
  }
}

}  // namespace
}  // namespace lockstep::batching
