// Micro-batches with shares of split samples (PrepareOptions::max_group), on random cases.

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <random>
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

constexpr int64_t kNoLabel = -100;

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
  c.options = With(multiple * draw(10, 30), static_cast<int>(draw(2, 9)));
  c.options.pad_to_multiple_of = multiple;
  c.options.max_group = 1 << draw(1, 3);
  c.options.streams["advantages"] = {0.5, -7.0};
  const int64_t count = draw(2, 40);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t first = 1000 * (i + 1);
    TensorSample sample = draw(0, 5) == 0 ? Images({4 * draw(1, 3)}, first)
                                          : Text(i < 2 ? draw(10, 120) : draw(1, 8), first);
    std::vector<int64_t> mask(static_cast<size_t>(sample.input_ids.numel()));
    for (int64_t& value : mask) value = draw(0, 1);
    sample.loss_mask = at::tensor(mask, at::kLong);
    if (draw(0, 1) == 0) sample.streams["advantages"] = sample.input_ids.to(at::kFloat);
    if (draw(0, 2) == 0) sample.position_ids = sample.input_ids.flip(0);
    sample.may_wait = draw(0, 3) == 0;
    c.samples.push_back(std::move(sample));
  }
  return c;
}

// A token as a micro-batch describes it.
struct Token {
  int64_t label = 0, position = 0;
  float advantage = 0;
  bool is_marked = false;
  bool operator==(const Token&) const = default;
};

// Returns token `t` of a sample whose first `tokens` are kept.
Token Expected(const TensorSample& sample, int64_t t, int64_t tokens) {
  const auto is_marked = [&](int64_t i) {
    return i > 0 && sample.loss_mask[i].item<int64_t>() == 1;
  };
  Token token;
  token.label =
      t + 1 < tokens && is_marked(t + 1) ? sample.input_ids[t + 1].item<int64_t>() : kNoLabel;
  token.position = sample.position_ids.defined() ? sample.position_ids[t].item<int64_t>() : t;
  const auto stream = sample.streams.find("advantages");
  token.advantage = stream == sample.streams.end() ? 0.5f : stream->second[t].item<float>();
  token.is_marked = is_marked(t);
  return token;
}

Token At(const TensorMicroBatch& batch, int64_t i) {
  return {.label = batch.labels[i].item<int64_t>(),
          .position = batch.position_ids[i].item<int64_t>(),
          .advantage = batch.streams.at("advantages")[i].item<float>(),
          .is_marked = batch.loss_mask[i].item<bool>()};
}

// How often the ranks hold each token of each sample.
using Times = std::map<int64_t, std::map<int64_t, int>>;

// Checks the i-th sequence of a micro-batch, which begins at `begin`. Returns its length.
int64_t ExpectSequence(const RandomCase& c, const TensorMicroBatch& batch, size_t i, int64_t begin,
                       Times& times) {
  const int64_t number = batch.samples[i];
  const TensorSample& sample = c.samples[static_cast<size_t>(number)];
  int64_t tokens = std::min(sample.input_ids.numel(), c.options.seq_len);
  std::vector<Piece> pieces = {{0, tokens}};
  if (i < batch.shares.size()) {
    const SampleShare& share = batch.shares[i];
    EXPECT_EQ(share.sample, number);
    EXPECT_EQ(share.tokens, tokens);
    EXPECT_TRUE(sample.tensors.empty()) << "samples with images stay whole";
    pieces = PiecesOf(tokens, share.ranks, share.place);
  }
  int64_t place = begin;
  for (const Piece& piece : pieces) {
    for (int64_t t = piece.begin; t < piece.end; ++t, ++place) {
      ++times[number][t];
      EXPECT_EQ(batch.input_ids[place].item<int64_t>(), sample.input_ids[t].item<int64_t>());
      if (batch.largest_group > 1) {
        EXPECT_EQ(At(batch, place), Expected(sample, t, tokens)) << number << " " << t;
      }
    }
  }
  return place - begin;
}

void ExpectGuarantees(const RandomCase& c, const Prepared& prepared) {
  Times times;
  int64_t marked = 0, labels = 0, split = 0;
  for (int rank = 0; rank < c.options.ranks; ++rank) {
    const auto& batches = prepared.batches[static_cast<size_t>(rank)];
    ASSERT_EQ(batches.size(), static_cast<size_t>(prepared.report.micro_steps));
    for (size_t step = 0; step < batches.size(); ++step) {
      const TensorMicroBatch& batch = batches[step];
      const int64_t length = batch.input_ids.numel();
      EXPECT_EQ(batch.kind, prepared.batches[0][step].kind);
      EXPECT_EQ(batch.largest_group, prepared.batches[0][step].largest_group);
      EXPECT_LE(length, c.options.seq_len);
      EXPECT_EQ(length % c.options.pad_to_multiple_of, 0);
      EXPECT_EQ(std::accumulate(batch.seq_lens.begin(), batch.seq_lens.end(), int64_t{0}), length);
      marked += batch.loss_mask.sum().item<int64_t>();
      if (batch.largest_group > 1) labels += batch.labels.ne(kNoLabel).sum().item<int64_t>();
      if (batch.largest_group == 1) labels += batch.loss_mask.sum().item<int64_t>();
      for (const SampleShare& share : batch.shares) {
        EXPECT_EQ(share.first_rank + share.place, rank);
        EXPECT_LE(share.ranks, batch.largest_group);
        split += share.place == 0 ? 1 : 0;
      }
      if (batch.padding) continue;
      int64_t begin = 0;
      for (size_t i = 0; i < batch.samples.size(); ++i) {
        const int64_t held = ExpectSequence(c, batch, i, begin, times);
        if (i < batch.shares.size()) {
          EXPECT_EQ(batch.seq_lens[i], held);
        }
        begin += held;
      }
      EXPECT_EQ(begin + batch.padding_tokens, length);
    }
  }
  EXPECT_EQ(marked, prepared.report.loss_tokens);
  EXPECT_EQ(labels, prepared.report.loss_tokens);
  EXPECT_EQ(split, prepared.report.split_samples);
  int64_t tokens = 0;
  for (const auto& [sample, of_sample] : times) {
    for (const auto& [t, count] : of_sample)
      EXPECT_EQ(count, 1) << "token " << t << " of " << sample;
    tokens += static_cast<int64_t>(of_sample.size());
  }
  EXPECT_EQ(tokens, prepared.report.tokens);
  EXPECT_EQ(
      times.size() + prepared.held.size() + static_cast<size_t>(prepared.report.dropped_samples),
      c.samples.size());
  EXPECT_GE(prepared.report.makespan, prepared.report.ideal * (1 - 1e-9));
}

TEST(PrepareSplit, KeepsItsGuaranteesOnRandomCases) {
  std::mt19937 random(1);
  int64_t split = 0;
  for (int i = 0; i < 300; ++i) {
    const RandomCase c = MakeCase(random);
    SCOPED_TRACE(i);

    const Prepared prepared = Prepare(c.samples, c.options);

    ExpectGuarantees(c, prepared);
    split += prepared.report.split_samples;
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(split, 100);
}

// A rank makes its own micro-batches alone, and follows the plan of all.
TEST(PrepareSplit, OneRanksMicroBatchesAreThoseOfAll) {
  std::mt19937 random(2);
  for (int i = 0; i < 50; ++i) {
    RandomCase c = MakeCase(random);
    const Prepared all = Prepare(c.samples, c.options);
    const int rank = i % c.options.ranks;
    c.options.only_rank = rank;

    const Prepared own = Prepare(c.samples, c.options);

    EXPECT_EQ(own.report.fingerprint, all.report.fingerprint);
    for (size_t step = 0; step < all.batches[static_cast<size_t>(rank)].size(); ++step) {
      const auto& a = all.batches[static_cast<size_t>(rank)][step];
      const auto& b = own.batches[static_cast<size_t>(rank)][step];
      EXPECT_TRUE(at::equal(a.input_ids, b.input_ids));
      EXPECT_EQ(a.seq_lens, b.seq_lens);
    }
  }
}

// Ranks that split differently would wait for each other.
TEST(PrepareSplit, FingerprintTellsSplitsApart) {
  std::vector<TensorSample> samples = Texts({64, 4, 4, 4, 4});
  PrepareOptions options = With(64, 4);
  options.max_group = 4;
  const uint64_t by_four = Prepare(samples, options).report.fingerprint;
  options.max_group = 2;

  EXPECT_NE(Prepare(samples, options).report.fingerprint, by_four);
}

}  // namespace
}  // namespace lockstep::batching
