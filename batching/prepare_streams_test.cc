// Tests per-token values: for padding, for samples that lack them, and of any rank; and tensors
// whose rows follow no declared count.

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "ATen/ops/arange.h"
#include "ATen/ops/equal.h"
#include "ATen/ops/full.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/tensor.h"
#include "ATen/ops/zeros_like.h"
#include "batching/prepare.h"
#include "batching/testing/test_samples.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/message_of.h"

namespace lockstep::batching {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using tests::MessageOf;

TEST(PrepareStreams, AreFilledForSamplesThatLackThemAndForPadding) {
  TensorSample with = Text(2);
  with.streams["advantages"] = at::tensor({0.5, 0.25}, at::kDouble);
  PrepareOptions options = With(8, 1);
  options.streams["advantages"] = {-1.0, 7.0};
  options.pad_to_multiple_of = 8;

  const TensorMicroBatch batch = Prepare({with, Text(3)}, options).batches[0][0];

  EXPECT_EQ(batch.padding_tokens, 3);
  EXPECT_THAT(batch.samples, ElementsAre(1, 0)) << "the longest comes first";
  EXPECT_TRUE(at::equal(batch.streams.at("advantages"),
                        at::tensor({-1., -1., -1., 0.5, 0.25, 7., 7., 7.}, at::kDouble)));
}

// A loss that weighs tokens by streams alone, as upstream's sum of three components.
double LossWithoutMask(const TensorMicroBatch& batch) {
  return batch.streams.at("advantages").mul(batch.streams.at("rl_weights")).sum().item<double>();
}

// Three samples of 4 tokens with advantages of 1, 2 and 3. Without rl_weights, which are 1.
std::vector<TensorSample> Rollouts() {
  std::vector<TensorSample> samples;
  for (int64_t i = 1; i <= 3; ++i) {
    samples.push_back(Images({8}, 100 * i));
    samples.back().streams["advantages"] = at::full({4}, static_cast<double>(i), at::kFloat);
  }
  return samples;
}

PrepareOptions ForRollouts(Balance balance) {
  PrepareOptions options = With(12, 4, balance);
  options.pad_to_multiple_of = 6;
  options.streams["advantages"] = {0.0};
  options.streams["rl_weights"] = {1.0};
  return options;
}

double SumOverRanks(const Prepared& prepared) {
  double sum = 0;
  for (const auto& batches : prepared.batches) {
    for (const TensorMicroBatch& batch : batches) sum += LossWithoutMask(batch);
  }
  return sum;
}

// The failure: copies whose mask alone is cleared still train where the loss reads no mask.
TEST(PrepareStreams, CopiesWithAClearedMaskStillTrain) {
  const std::vector<TensorSample> samples = Rollouts();
  Prepared prepared = Prepare(samples, ForRollouts(Balance::kRoundRobin));
  const double expected = SumOverRanks(prepared);
  for (auto& batches : prepared.batches) {
    for (TensorMicroBatch& batch : batches) {
      if (!batch.padding) continue;
      // Makes a copy with a cleared mask, and with the streams of the original.
      batch = prepared.batches[0][0];
      batch.padding = true;
      batch.loss_mask = at::zeros_like(batch.loss_mask);
    }
  }
  ASSERT_EQ(prepared.report.padding_micro_batches, 3);
  EXPECT_EQ(SumOverRanks(prepared), 4 * expected);
}

TEST(PrepareStreams, PaddingTrainsNothingWhereALossReadsNoMask) {
  for (const Balance balance : {Balance::kLockstep, Balance::kRoundRobin}) {
    const Prepared prepared = Prepare(Rollouts(), ForRollouts(balance));

    ASSERT_GT(prepared.report.padding_micro_batches, 0);
    EXPECT_EQ(SumOverRanks(prepared), 4 * (1 + 2 + 3));
    for (const auto& batches : prepared.batches) {
      for (const TensorMicroBatch& batch : batches) {
        if (!batch.padding) continue;
        EXPECT_EQ(batch.padding_tokens, batch.input_ids.numel());
        EXPECT_FALSE(batch.streams.at("advantages").any().item<bool>());
        EXPECT_FALSE(batch.streams.at("rl_weights").any().item<bool>());
        // The tower still runs, and its features still have their placeholders.
        EXPECT_EQ(4 * batch.streams.at("mm_token_type_ids").eq(1).sum().item<int64_t>(),
                  batch.tensors.at("pixel_values").size(0));
      }
    }
  }
}

// The experts of each token in 2 layers, 3 for each: no two values alike.
at::Tensor Experts(int64_t tokens, int64_t first) {
  return at::arange(first, first + 6 * tokens, at::kInt).view({tokens, 2, 3});
}

TEST(PrepareStreams, OfAnyRankAreCutPaddedAndPackedWithTheirTokens) {
  TensorSample longest = Text(9, 10), image = Images({8}, 20);
  longest.streams["experts"] = Experts(9, 1000);
  image.streams["experts"] = Experts(4, 2000);
  PrepareOptions options = With(8, 2);
  options.pad_to_multiple_of = 8;
  options.streams["experts"] = {-1, -2};

  const Prepared prepared = Prepare({longest, image, Text(2, 30)}, options);

  int64_t real = 0;
  for (const auto& batches : prepared.batches) {
    for (const TensorMicroBatch& batch : batches) {
      const at::Tensor experts = batch.streams.at("experts");
      EXPECT_EQ(experts.scalar_type(), at::kInt);
      ASSERT_THAT(experts.sizes(), ElementsAre(batch.input_ids.numel(), 2, 3));
      int64_t begin = 0;
      for (const int64_t i : batch.samples) {
        const int64_t tokens = i == 0 ? 8 : i == 1 ? 4 : 2;
        const at::Tensor expected = i == 0   ? Experts(9, 1000).narrow(0, 0, 8)
                                    : i == 1 ? Experts(4, 2000)
                                             : at::full({2, 2, 3}, -1, at::kInt);
        EXPECT_TRUE(at::equal(experts.narrow(0, begin, tokens), expected)) << "sample " << i;
        begin += tokens;
        ++real;
      }
      EXPECT_EQ(batch.padding_tokens, batch.input_ids.numel() - begin);
      EXPECT_TRUE(experts.narrow(0, begin, batch.padding_tokens).eq(-2).all().item<bool>());
    }
  }
  EXPECT_EQ(real, 3);
}

TEST(PrepareStreams, ARowForTheWholeSampleSurvivesTheCut) {
  TensorSample sample = Text(9);
  sample.tensors["reward"] = at::full({1, 2}, 5.0);

  const TensorMicroBatch batch = Prepare({sample}, With(8, 1)).batches[0][0];

  EXPECT_EQ(batch.input_ids.numel(), 8);
  EXPECT_TRUE(at::equal(batch.tensors.at("reward"), at::full({1, 2}, 5.0)));
}

// It may describe the tokens: the lengths of a pair's two answers, say.
TEST(PrepareStreams, ACopyOfASampleWithARowForTheWholeIsWhole) {
  TensorSample sample = Text(6);
  const TensorMicroBatch plain = Prepare({sample}, With(8, 2)).batches[1][0];
  sample.tensors["lengths"] = at::full({1, 2}, 3);

  const TensorMicroBatch copy = Prepare({sample}, With(8, 2)).batches[1][0];

  ASSERT_TRUE(plain.padding && copy.padding);
  EXPECT_EQ(plain.input_ids.numel(), 1);
  EXPECT_EQ(copy.input_ids.numel(), 6);
}

TEST(PrepareStreams, RowsOfTheirOwnAreDeclared) {
  TensorSample sample = Text(4);
  sample.tensors["clips"] = at::ones({3, 2});
  PrepareOptions options = With(8, 1);
  options.pad_to_multiple_of = 8;
  // The failure: 8 tokens, 3 rows, and no error.
  EXPECT_THAT(
      MessageOf([&] { Prepare({sample}, options); }),
      HasSubstr(
          "sample 0: clips has 3 rows, which follow no declared count: a tensor has 1 row for "
          "the whole sample, and a stream a row for each of its 4 tokens; declare values per "
          "token in streams, or name the tensor in own_rows"));
  options.own_rows = {"clips"};

  const TensorMicroBatch batch = Prepare({sample, sample}, options).batches[0][0];

  EXPECT_EQ(batch.tensors.at("clips").size(0), 6);
}

TEST(PrepareStreams, ErrorsNameTheSampleAndTheStream) {
  const auto message = [](const at::Tensor& one, const at::Tensor& two) {
    PrepareOptions options = With(8, 1);
    options.streams["experts"] = {0.0, 0.5};
    TensorSample first = Text(2), second = Text(3);
    first.streams["experts"] = one;
    second.streams["experts"] = two;
    return MessageOf([&] { Prepare({first, second}, options); });
  };
  EXPECT_THAT(message(at::ones({2, 4}), at::ones({3, 5})),
              HasSubstr("experts is Float [5] per token in sample 1 and Float [4] per token in "
                        "sample 0; it must be of one dtype and shape"));
  EXPECT_THAT(message(at::ones({2, 4}), at::ones({3})),
              HasSubstr("experts is Float [] per token in sample 1 and Float [4]"));
  EXPECT_THAT(message(at::ones({2}), at::ones({3}).to(at::kDouble)),
              HasSubstr("experts is Double [] per token in sample 1 and Float []"));
  EXPECT_THAT(message(at::ones({2, 4}), at::ones({4, 4})),
              HasSubstr("sample 1: experts has shape [4, 4], but input_ids has 3 tokens"));
  EXPECT_THAT(message(at::ones({2}).to(at::kLong), at::ones({3}).to(at::kLong)),
              HasSubstr("streams.experts.padding = 0.5 would become 0; experts is Long"));
}

struct Fill {
  c10::Scalar value;
  at::ScalarType dtype;
  std::string problem;  // empty: the stream holds the value
};

TEST(PrepareStreams, AFillThatTheDtypeCannotHoldIsAnError) {
  // The failure: the fill of a tensor rounds.
  ASSERT_EQ(at::full({}, 16777217.0, at::kFloat).item<double>(), 16777216);
  ASSERT_EQ(at::full({}, 2, at::kBool).item<double>(), 1);
  const double inf = std::numeric_limits<double>::infinity();
  const std::vector<Fill> fills = {
      {std::ldexp(1.0, 63), at::kLong,
       "9.223372036854776e+18 does not fit; the dtype holds whole numbers from -2^63 to"},
      {-std::ldexp(1.0, 63), at::kLong, ""},
      {std::numeric_limits<int64_t>::max(), at::kLong, ""},
      {16777216.0, at::kFloat, ""},
      {16777217.0, at::kFloat, "16777217 would become 16777216; x is Float"},
      {-16777217.0, at::kFloat, "-16777217 would become -16777216; x is Float"},
      {16777217.0, at::kDouble, ""},
      {257.0, at::kBFloat16, "257 would become 256; x is BFloat16"},
      {0.1, at::kBFloat16, ""},
      {-1e4, at::kBFloat16, ""},  // a mask, not a count
      {-1e9, at::kBFloat16, ""},
      {2049, at::kHalf, "2049 would become 2048; x is Half"},
      {65536.0, at::kHalf, "65536 would become inf; x is Half"},
      {0.1, at::kFloat, ""},
      {1e300, at::kFloat, "1e+300 would become inf; x is Float"},
      {-1e300, at::kFloat, "-1e+300 would become -inf; x is Float"},
      {1e30, at::kFloat, ""},
      {inf, at::kFloat, ""},
      {-inf, at::kHalf, ""},
      {std::nan(""), at::kBFloat16, ""},
      {inf, at::kLong, "inf is not a whole number; x is Long"},
      {std::nan(""), at::kInt, "nan is not a whole number; x is Int"},
      {127, at::kChar, ""},
      {-128, at::kChar, ""},
      {300, at::kChar,
       "300 does not fit; the dtype holds whole numbers from -2^7 to 2^7 - 1; x is Char"},
      {-129, at::kChar, "-129 does not fit"},
      {-1, at::kByte,
       "-1 does not fit; the dtype holds whole numbers from 0 to 2^8 - 1; x is Byte"},
      {255, at::kByte, ""},
      {0.5, at::kByte, "0.5 would become 0; x is Byte"},
      {-1.5, at::kShort, "-1.5 would become -1; x is Short"},
      {true, at::kBool, ""},
      {1.0, at::kBool, ""},
      {2, at::kBool, "2 would become true; a bool is false (0) or true (1); x is Bool"},
      {0.5, at::kBool, "0.5 would become true"},
      {std::nan(""), at::kBool, "nan would become true"},
  };
  for (const Fill& fill : fills) {
    TensorSample with = Text(2);
    with.streams["x"] = at::ones({2}).to(fill.dtype);
    for (const bool is_padding : {false, true}) {
      PrepareOptions options = With(8, 1);
      options.pad_to_multiple_of = 8;
      options.streams["x"] = {is_padding ? 0 : fill.value, is_padding ? fill.value : 0};
      at::Tensor packed;
      const std::string message = MessageOf([&] {
        packed = Prepare({with, Text(3)}, options).batches[0][0].streams.at("x");
      });

      if (fill.problem.empty()) {
        EXPECT_EQ(message, "no error") << fill.value << " in " << fill.dtype;
      } else {
        EXPECT_THAT(message,
                    HasSubstr(is_padding ? "streams.x.padding = " : "streams.x.absent = "));
        EXPECT_THAT(message, HasSubstr(fill.problem));
      }
    }
  }
}

TEST(PrepareStreams, AFillOfAStreamThatNoSampleHasIsOfFloat32OrBool) {
  const auto message = [](const StreamFill& fill) {
    PrepareOptions options = With(8, 1);
    options.streams["x"] = fill;
    return MessageOf([&] { Prepare({Text(2)}, options); });
  };

  EXPECT_EQ(message({true, false}), "no error");
  EXPECT_THAT(message({16777217, 0}),
              HasSubstr("16777217 would become 16777216; x is Float, as no sample has it"));
  EXPECT_THAT(message({true, 2}), HasSubstr("x is Bool, as no sample has it"));
}

}  // namespace
}  // namespace lockstep::batching
