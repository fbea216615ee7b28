#include "batching/prepare.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ops/arange.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/equal.h"
#include "ATen/ops/full.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/tensor.h"
#include "ATen/ops/zeros.h"
#include "c10/util/Exception.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::batching {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Tokens `first`, `first` + 1, ... with a loss on all but the first.
TensorSample Text(int64_t tokens, int64_t first = 100) {
  TensorSample sample;
  sample.input_ids = at::arange(first, first + tokens, at::kLong);
  sample.loss_mask = at::ones({tokens}, at::kBool);
  sample.loss_mask[0].fill_(false);
  return sample;
}

// One text token, then for each image its placeholders (one for 4 patches) and one text token more.
TensorSample Images(const std::vector<int64_t>& patches, int64_t first = 100, int64_t pixels = 3) {
  std::vector<int64_t> types = {0};
  std::vector<int64_t> grid;
  for (const int64_t n : patches) {
    types.insert(types.end(), static_cast<size_t>(n / 4), 1);
    types.push_back(0);
    grid.insert(grid.end(), {1, 2, n / 2});
  }
  TensorSample sample = Text(static_cast<int64_t>(types.size()), first);
  sample.streams["mm_token_type_ids"] = at::tensor(types, at::kLong);
  const int64_t rows = std::accumulate(patches.begin(), patches.end(), int64_t{0});
  sample.tensors["pixel_values"] =
      at::arange(first * pixels, (first + rows) * pixels, at::kFloat).view({rows, pixels});
  sample.tensors["image_grid_thw"] = at::tensor(grid, at::kLong).view({-1, 3});
  return sample;
}

std::vector<TensorSample> Texts(const std::vector<int64_t>& lengths) {
  std::vector<TensorSample> samples;
  for (const int64_t length : lengths) samples.push_back(Text(length));
  return samples;
}

PrepareOptions With(int64_t seq_len, int ranks, Balance balance = Balance::kLockstep) {
  PrepareOptions options;
  options.seq_len = seq_len;
  options.ranks = ranks;
  options.balance = balance;
  return options;
}

std::string MessageOf(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

std::string PrepareMessage(const std::vector<TensorSample>& samples,
                           const PrepareOptions& options) {
  return MessageOf([&] { Prepare(samples, options); });
}

int64_t TokensOfRank(const Prepared& prepared, size_t rank) {
  int64_t tokens = 0;
  for (const TensorMicroBatch& batch : prepared.batches[rank]) tokens += batch.input_ids.numel();
  return tokens;
}

TEST(PrepareTest, HeaderExample) {
  const std::vector<TensorSample> samples = Texts({3000, 2000, 1000, 500});
  PrepareOptions options;
  options.seq_len = 4096;
  options.ranks = 8;

  Prepared prepared = Prepare(samples, options);

  ASSERT_EQ(prepared.batches.size(), 8u);
  const TensorMicroBatch& mine = prepared.batches[0][0];
  EXPECT_EQ(mine.kind, "text");
  EXPECT_EQ(prepared.report.tokens, 6500);
  EXPECT_EQ(prepared.report.padding_micro_batches, 4);  // four ranks have a sample each
}

TEST(PrepareTest, PacksSamplesBehindOneAnotherWithTheirOwnPositions) {
  const Prepared prepared = Prepare({Text(3, 10), Text(2, 20)}, With(8, 1));

  const TensorMicroBatch& batch = prepared.batches[0].at(0);
  EXPECT_THAT(batch.samples, ElementsAre(0, 1));
  EXPECT_THAT(batch.seq_lens, ElementsAre(3, 2));
  EXPECT_TRUE(at::equal(batch.input_ids, at::tensor({10, 11, 12, 20, 21}, at::kLong)));
  EXPECT_TRUE(at::equal(batch.position_ids, at::tensor({0, 1, 2, 0, 1}, at::kLong)));
  EXPECT_TRUE(at::equal(batch.cu_seqlens, at::tensor({0, 3, 5}, at::kInt)));
  EXPECT_TRUE(at::equal(batch.loss_mask, at::tensor({0, 1, 1, 0, 1}, at::kLong).to(at::kBool)));
}

TEST(PrepareTest, KeepsPositionsThatASampleBrings) {
  TensorSample sample = Text(3);
  sample.position_ids = at::tensor({5, 6, 9}, at::kLong);

  const Prepared prepared = Prepare({sample}, With(8, 1));

  EXPECT_TRUE(at::equal(prepared.batches[0][0].position_ids, sample.position_ids));
}

// --- The cases of the seed, and of the tests before it
// ------------------------------------------------

TEST(PrepareTest, EveryRankHasTheSameCount) {
  const struct {
    int samples, ranks;
    size_t each;
  } kCases[] = {{4, 2, 2}, {5, 2, 3}, {7, 1, 7}, {11, 4, 3}};
  for (const auto& c : kCases) {
    for (const Balance balance : {Balance::kLockstep, Balance::kRoundRobin}) {
      // Each sample fills a micro-batch.
      const Prepared prepared =
          Prepare(Texts(std::vector<int64_t>(static_cast<size_t>(c.samples), 10)),
                  With(10, c.ranks, balance));
      for (const auto& batches : prepared.batches)
        EXPECT_EQ(batches.size(), c.each) << c.samples << " on " << c.ranks;
    }
  }
}

TEST(PrepareTest, RanksGetTheSameTokens) {
  const Prepared prepared = Prepare(Texts({100, 90, 80, 70}), With(100, 2));
  EXPECT_EQ(TokensOfRank(prepared, 0), 170);
  EXPECT_EQ(TokensOfRank(prepared, 1), 170);
}

TEST(PrepareTest, PacksSoThatNoRankPads) {
  const Prepared prepared = Prepare(Texts({6, 6, 5, 5, 4, 4}), With(12, 4));
  EXPECT_EQ(prepared.report.padding_micro_batches, 0);
  EXPECT_EQ(prepared.report.micro_steps, 1);
}

TEST(PrepareTest, PacksDifferentTemperaturesTogether) {
  TensorSample cold = Text(4), hot = Text(4);
  cold.streams["temperatures"] = at::full({4}, 0.7, at::kFloat);
  hot.streams["temperatures"] = at::full({4}, 1.0, at::kFloat);
  PrepareOptions options = With(8, 1);
  options.streams["temperatures"] = 1.0;

  const Prepared prepared = Prepare({cold, hot}, options);

  ASSERT_EQ(prepared.batches[0].size(), 1u);
  EXPECT_TRUE(at::equal(prepared.batches[0][0].streams.at("temperatures"),
                        at::cat({cold.streams["temperatures"], hot.streams["temperatures"]})));
}

TEST(PrepareTest, MixedSamplesAreOfOneKindAtEveryMicroStep) {
  std::vector<TensorSample> samples = Texts({7, 8, 6, 8, 5});
  for (int i = 0; i < 3; ++i) samples.push_back(Images({8}));
  for (const Balance balance : {Balance::kLockstep, Balance::kRoundRobin}) {
    const Prepared prepared = Prepare(samples, With(8, 4, balance));
    for (size_t step = 0; step < prepared.batches[0].size(); ++step) {
      std::set<std::string> kinds;
      for (const auto& batches : prepared.batches) kinds.insert(batches.at(step).kind);
      EXPECT_EQ(kinds.size(), 1u) << "micro-step " << step;
    }
  }
}

TEST(PrepareTest, ImagePaddingKeepsPixelValues) {
  for (const Balance balance : {Balance::kLockstep, Balance::kRoundRobin}) {
    const Prepared prepared = Prepare({Images({8, 4}), Text(6)}, With(8, 2, balance));

    for (const auto& batches : prepared.batches) {
      const TensorMicroBatch& batch = batches.at(0);
      EXPECT_EQ(batch.kind, "image");
      ASSERT_EQ(batch.tensors.count("pixel_values"), 1u);
      EXPECT_GE(batch.tensors.at("pixel_values").size(0), 4);
      EXPECT_EQ(batch.loss_mask.any().item<bool>(), !batch.padding);
    }
  }
}

TEST(PrepareTest, PaddingIsShortenedToOneImage) {
  const Prepared prepared = Prepare({Images({8, 4, 4})}, With(16, 2));

  const TensorMicroBatch& padding = prepared.batches[1][0];
  ASSERT_TRUE(padding.padding);
  EXPECT_THAT(padding.samples, IsEmpty());
  EXPECT_EQ(padding.tensors.at("pixel_values").size(0), 8);
  EXPECT_EQ(padding.tensors.at("image_grid_thw").size(0), 1);
  EXPECT_EQ(padding.input_ids.numel(), 3);  // the token before, and the image's two
}

TEST(PrepareTest, AllImagesWork) {
  const Prepared prepared = Prepare({Images({4}), Images({8}), Images({4, 4})}, With(8, 2));
  for (const auto& batches : prepared.batches) {
    for (const TensorMicroBatch& batch : batches) EXPECT_EQ(batch.kind, "image");
  }
}

TEST(PrepareTest, PureTextIsWhatItWouldBeWithoutKinds) {
  std::vector<TensorSample> samples = Texts({7, 3, 8, 2, 5, 5, 1});
  const Prepared plain = Prepare(samples, With(8, 3));
  for (TensorSample& sample : samples) sample.kind = "prose";
  const Prepared named = Prepare(samples, With(8, 3));
  for (size_t rank = 0; rank < 3; ++rank) {
    ASSERT_EQ(plain.batches[rank].size(), named.batches[rank].size());
    for (size_t step = 0; step < plain.batches[rank].size(); ++step) {
      EXPECT_EQ(plain.batches[rank][step].samples, named.batches[rank][step].samples);
      EXPECT_TRUE(plain.batches[rank][step].tensors.empty());
    }
  }
}

TEST(PrepareTest, NoSamplesGiveEmptyLists) {
  const Prepared prepared = Prepare({}, With(8, 3));
  EXPECT_THAT(prepared.batches, ElementsAre(IsEmpty(), IsEmpty(), IsEmpty()));
  EXPECT_EQ(prepared.report.micro_steps, 0);
}

TEST(PrepareTest, OneRankAloneIsWhatAllTogetherGiveIt) {
  std::vector<TensorSample> samples = {Text(7), Images({8, 4}), Text(3), Images({4}), Text(8)};
  const Prepared all = Prepare(samples, With(8, 3));
  for (int rank = 0; rank < 3; ++rank) {
    PrepareOptions options = With(8, 3);
    options.only_rank = rank;
    const Prepared one = Prepare(samples, options);
    const auto& mine = one.batches[static_cast<size_t>(rank)];
    ASSERT_EQ(mine.size(), all.batches[static_cast<size_t>(rank)].size());
    for (size_t step = 0; step < mine.size(); ++step) {
      EXPECT_TRUE(
          at::equal(mine[step].input_ids, all.batches[static_cast<size_t>(rank)][step].input_ids));
    }
    EXPECT_EQ(one.report.padding_tokens, all.report.padding_tokens);
    EXPECT_EQ(one.batches[static_cast<size_t>((rank + 1) % 3)].size(), 0u);
  }
}

// --- Streams and padding to a multiple
// ----------------------------------------------------------------

TEST(PrepareTest, StreamsAreFilledForSamplesThatLackThem) {
  TensorSample with = Text(2);
  with.streams["advantages"] = at::tensor({0.5, 0.25}, at::kDouble);
  PrepareOptions options = With(8, 1);
  options.streams["advantages"] = -1.0;
  options.pad_to_multiple_of = 8;

  const TensorMicroBatch batch = Prepare({with, Text(3)}, options).batches[0][0];

  // Text(3) comes first: the longest does.
  EXPECT_TRUE(at::equal(batch.streams.at("advantages"),
                        at::tensor({-1., -1., -1., 0.5, 0.25, -1., -1., -1.}, at::kDouble)) ||
              at::equal(batch.streams.at("advantages"),
                        at::tensor({0.5, 0.25, -1., -1., -1., -1., -1., -1.}, at::kDouble)));
}

TEST(PrepareTest, PadsToAMultiple) {
  PrepareOptions options = With(16, 1);
  options.pad_to_multiple_of = 8;
  options.pad_token_id = 7;

  const Prepared prepared = Prepare({Text(5)}, options);

  const TensorMicroBatch& batch = prepared.batches[0][0];
  EXPECT_TRUE(
      at::equal(batch.input_ids, at::tensor({100, 101, 102, 103, 104, 7, 7, 7}, at::kLong)));
  EXPECT_THAT(batch.seq_lens, ElementsAre(8));
  EXPECT_EQ(batch.loss_mask.sum().item<int64_t>(), 4);
  EXPECT_EQ(prepared.report.padding_tokens, 3);
}

// --- The cut
// ------------------------------------------------------------------------------------------

TEST(PrepareTest, LongTextIsCutAndCounted) {
  const Prepared prepared = Prepare({Text(13), Text(8)}, With(8, 1));
  EXPECT_EQ(prepared.report.truncated_samples, 1);
  EXPECT_EQ(prepared.report.truncated_tokens, 5);
  EXPECT_EQ(prepared.report.tokens, 16);
}

TEST(PrepareTest, TheCutNeverSplitsAnImage) {
  // Tokens: t IIII t II t. Seven would end inside the second image.
  const Prepared prepared = Prepare({Images({16, 8})}, With(7, 1));

  const TensorMicroBatch& batch = prepared.batches[0][0];
  EXPECT_EQ(batch.input_ids.numel(), 6);
  EXPECT_EQ(batch.tensors.at("pixel_values").size(0), 16);
  EXPECT_EQ(batch.tensors.at("image_grid_thw").size(0), 1);
  EXPECT_EQ(prepared.report.truncated_tokens, 3);
}

TEST(PrepareTest, ASampleThatLosesAllItsImagesIsText) {
  const Prepared prepared = Prepare({Images({16})}, With(3, 1));

  const TensorMicroBatch& batch = prepared.batches[0][0];
  EXPECT_EQ(batch.kind, "text");
  EXPECT_EQ(batch.input_ids.numel(), 1);
  EXPECT_TRUE(batch.tensors.empty());
}

TEST(PrepareTest, ASampleThatBeginsWithTooLongAnImageIsDroppedAndCounted) {
  TensorSample sample = Images({16});
  for (at::Tensor* tensor :
       {&sample.input_ids, &sample.loss_mask, &sample.streams["mm_token_type_ids"]}) {
    *tensor = tensor->narrow(0, 1, 4);  // its first token is the image's
  }

  const Prepared prepared = Prepare({sample, Text(2)}, With(3, 1));

  EXPECT_EQ(prepared.report.dropped_samples, 1);
  EXPECT_EQ(prepared.report.truncated_tokens, 4);
  EXPECT_THAT(prepared.batches[0][0].samples, ElementsAre(1));
}

// --- Samples that may wait
// ----------------------------------------------------------------------------

TEST(PrepareTest, SamplesThatMayWaitAreHeldRatherThanPadded) {
  std::vector<TensorSample> samples = Texts({8, 8, 8});
  for (TensorSample& sample : samples) sample.may_wait = true;

  const Prepared prepared = Prepare(samples, With(8, 2));

  EXPECT_EQ(prepared.report.micro_steps, 1);
  EXPECT_EQ(prepared.report.padding_micro_batches, 0);
  EXPECT_EQ(prepared.report.tokens, 16);
  ASSERT_EQ(prepared.held.size(), 1u);
  for (const auto& batches : prepared.batches)
    EXPECT_THAT(batches.at(0).samples, Not(::testing::Contains(prepared.held[0])));
}

TEST(PrepareTest, OneSampleThatMayNotWaitTakesItsStepAlong) {
  std::vector<TensorSample> samples = Texts({8, 8, 7});
  samples[0].may_wait = samples[1].may_wait = true;

  const Prepared prepared = Prepare(samples, With(8, 2));

  EXPECT_THAT(prepared.held, IsEmpty());
  EXPECT_EQ(prepared.report.micro_steps, 2);
}

// --- Errors
// -------------------------------------------------------------------------------------------

TEST(PrepareTest, ErrorsNameTheSampleAndTheField) {
  TensorSample short_mask = Text(3);
  short_mask.loss_mask = at::ones({2}, at::kBool);
  TensorSample float_ids = Text(3);
  float_ids.input_ids = at::zeros({3});
  TensorSample undeclared = Text(3);
  undeclared.streams["advantages"] = at::zeros({3});
  TensorSample other_pixels = Images({4}, 100, 5);
  TensorSample too_few_pixels = Images({8});
  too_few_pixels.tensors["pixel_values"] = at::zeros({7, 3});
  TensorSample no_types = Images({8});
  no_types.streams.clear();
  TensorSample empty = Text(1);
  empty.input_ids = at::zeros({0}, at::kLong);
  TensorSample unknown_cut = Text(9);
  unknown_cut.tensors["audio"] = at::zeros({4, 2});
  const struct {
    TensorSample sample;
    std::string message;
  } kCases[] = {
      {short_mask, "sample 1: loss_mask has shape [2], but input_ids has 3 tokens"},
      {float_ids, "sample 1: input_ids must be of an integer dtype, not Float"},
      {undeclared, "sample 1: advantages is not declared in streams"},
      {other_pixels,
       "pixel_values is Float [4, 5] on cpu in sample 1 and Float [4, 3] on cpu in sample 0"},
      {too_few_pixels, "sample 1: pixel_values has 7 rows, but image_grid_thw counts 8 patches"},
      {no_types, "sample 1 has image_grid_thw but no mm_token_type_ids"},
      {empty, "sample 1 has no tokens"},
      {unknown_cut, "how audio is cut with them is not known"},
  };
  for (const auto& c : kCases) {
    EXPECT_THAT(PrepareMessage({Images({4}), c.sample}, With(8, 2)), HasSubstr(c.message));
  }
}

TEST(PrepareTest, ErrorsNameTheOption) {
  EXPECT_THAT(PrepareMessage({Text(1)}, With(0, 1)),
              HasSubstr("seq_len must be at least 1, not 0"));
  EXPECT_THAT(PrepareMessage({Text(1)}, With(8, 0)), HasSubstr("ranks must be at least 1, not 0"));
  PrepareOptions options = With(10, 1);
  options.pad_to_multiple_of = 4;
  EXPECT_THAT(PrepareMessage({Text(1)}, options),
              HasSubstr("pad_to_multiple_of (4) must divide seq_len (10)"));
}

// --- Every guarantee, on random cases
// -----------------------------------------------------------------

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
  c.options.streams["advantages"] = 0.5;
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
    sample.may_wait = draw(0, 1) == 0;
    c.samples.push_back(std::move(sample));
  }
  return c;
}

// Where the tokens of one sequence in a micro-batch are what its sample holds, in all fields.
void ExpectSampleAt(const TensorMicroBatch& batch, int64_t begin, int64_t tokens,
                    const TensorSample& sample) {
  const auto part = [&](const at::Tensor& t) { return t.narrow(0, begin, tokens); };
  EXPECT_TRUE(at::equal(part(batch.input_ids), sample.input_ids.narrow(0, 0, tokens)));
  EXPECT_TRUE(at::equal(part(batch.position_ids), at::arange(tokens, at::kLong)));
  EXPECT_TRUE(at::equal(part(batch.loss_mask), sample.loss_mask.narrow(0, 0, tokens)));
  const auto stream = sample.streams.find("advantages");
  if (batch.streams.count("advantages") == 0) return;
  const at::Tensor expected = stream != sample.streams.end() ? stream->second.narrow(0, 0, tokens)
                                                             : at::full({tokens}, 0.5, at::kFloat);
  EXPECT_TRUE(at::equal(part(batch.streams.at("advantages")), expected));
}

// The tokens of the sample that this sequence holds: without those that only pad to a multiple.
int64_t RealTokens(const TensorMicroBatch& batch, int64_t begin, int64_t length,
                   const TensorSample& sample) {
  int64_t tokens = std::min(length, sample.input_ids.numel());
  const at::Tensor here = batch.input_ids.narrow(0, begin, tokens);
  return here.eq(sample.input_ids.narrow(0, 0, tokens)).sum().item<int64_t>();
}

void ExpectGuarantees(const RandomCase& c, const Prepared& prepared) {
  ASSERT_EQ(prepared.batches.size(), static_cast<size_t>(c.options.ranks));
  std::map<int64_t, int> seen;
  int64_t tokens = 0, length_of_all = 0;
  for (const auto& batches : prepared.batches) {
    ASSERT_EQ(batches.size(), static_cast<size_t>(prepared.report.micro_steps));
    for (size_t step = 0; step < batches.size(); ++step) {
      const TensorMicroBatch& batch = batches[step];
      const int64_t length = batch.input_ids.numel();
      length_of_all += length;
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
      if (batch.padding) {
        EXPECT_FALSE(batch.loss_mask.any().item<bool>());
        EXPECT_THAT(batch.samples, IsEmpty());
        continue;
      }
      ASSERT_EQ(batch.samples.size(), batch.seq_lens.size());
      int64_t begin = 0, rows = 0;
      for (size_t i = 0; i < batch.samples.size(); ++i) {
        const TensorSample& sample = c.samples[static_cast<size_t>(batch.samples[i])];
        ++seen[batch.samples[i]];
        const int64_t real = RealTokens(batch, begin, batch.seq_lens[i], sample);
        ExpectSampleAt(batch, begin, real, sample);
        tokens += real;
        begin += batch.seq_lens[i];
        if (batch.kind != "image") continue;
        // Each sample's pixels are its own first rows, in the order of the samples.
        const int64_t images = batch.streams.at("mm_token_type_ids")
                                   .narrow(0, begin - batch.seq_lens[i], real)
                                   .eq(1)
                                   .sum()
                                   .item<int64_t>();
        EXPECT_TRUE(at::equal(batch.tensors.at("pixel_values").narrow(0, rows, 4 * images),
                              sample.tensors.at("pixel_values").narrow(0, 0, 4 * images)));
        rows += 4 * images;
      }
    }
  }
  int64_t given = 0;
  for (const TensorSample& sample : c.samples) given += sample.input_ids.numel();
  for (const int64_t i : prepared.held) {
    EXPECT_TRUE(c.samples[static_cast<size_t>(i)].may_wait);
    EXPECT_EQ(seen.count(i), 0u);
    given -= c.samples[static_cast<size_t>(i)].input_ids.numel();
  }
  EXPECT_EQ(tokens, prepared.report.tokens);
  EXPECT_EQ(given, prepared.report.tokens + prepared.report.truncated_tokens);
  EXPECT_EQ(length_of_all, prepared.report.tokens + prepared.report.padding_tokens);
  EXPECT_EQ(
      seen.size() + prepared.held.size() + static_cast<size_t>(prepared.report.dropped_samples),
      c.samples.size());
  for (const auto& [sample, times] : seen) EXPECT_EQ(times, 1) << "sample " << sample;
}

TEST(PrepareTest, EveryGuaranteeHoldsInRandomCases) {
  for (unsigned seed = 0; seed < 10000; ++seed) {
    std::mt19937 random(seed);
    const RandomCase c = MakeCase(random);
    ExpectGuarantees(c, Prepare(c.samples, c.options));
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace lockstep::batching
