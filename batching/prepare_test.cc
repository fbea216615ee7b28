#include "batching/prepare.h"

#include <cstdint>
#include <future>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ATen/ops/cat.h"
#include "ATen/ops/equal.h"
#include "ATen/ops/full.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/tensor.h"
#include "ATen/ops/zeros.h"
#include "batching/testing/test_samples.h"
#include "c10/core/Allocator.h"
#include "c10/util/ThreadLocalDebugInfo.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/message_of.h"

namespace lockstep::batching {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;
using tests::MessageOf;

std::string PrepareMessage(const std::vector<TensorSample>& samples,
                           const PrepareOptions& options) {
  return MessageOf([&] { Prepare(samples, options); });
}

int64_t TokensOfRank(const Prepared& prepared, size_t rank) {
  int64_t tokens = 0;
  for (const TensorMicroBatch& batch : prepared.batches[rank]) tokens += batch.input_ids.numel();
  return tokens;
}

TEST(Prepare, HeaderExample) {
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

TEST(Prepare, PacksSamplesBehindOneAnotherWithTheirOwnPositions) {
  const Prepared prepared = Prepare({Text(3, 10), Text(2, 20)}, With(8, 1));

  const TensorMicroBatch& batch = prepared.batches[0].at(0);
  EXPECT_THAT(batch.samples, ElementsAre(0, 1));
  EXPECT_THAT(batch.seq_lens, ElementsAre(3, 2));
  EXPECT_TRUE(at::equal(batch.input_ids, at::tensor({10, 11, 12, 20, 21}, at::kLong)));
  EXPECT_TRUE(at::equal(batch.position_ids, at::tensor({0, 1, 2, 0, 1}, at::kLong)));
  EXPECT_TRUE(at::equal(batch.cu_seqlens, at::tensor({0, 3, 5}, at::kInt)));
  EXPECT_TRUE(at::equal(batch.loss_mask, at::tensor({0, 1, 1, 0, 1}, at::kLong).to(at::kBool)));
}

TEST(Prepare, KeepsPositionsThatASampleBrings) {
  TensorSample sample = Text(3);
  sample.position_ids = at::tensor({5, 6, 9}, at::kLong);

  const Prepared prepared = Prepare({sample}, With(8, 1));

  EXPECT_TRUE(at::equal(prepared.batches[0][0].position_ids, sample.position_ids));
}

TEST(Prepare, PositionsOfThreeAxesArePackedWithThoseOfOne) {
  TensorSample picture = Text(3);
  picture.position_ids = at::tensor({0, 1, 1, 0, 1, 2, 0, 3, 1}, at::kLong).view({3, 3});
  TensorSample text = Text(2);
  text.position_ids = at::tensor({4, 5}, at::kLong);
  PrepareOptions options = With(8, 1);
  options.pad_to_multiple_of = 8;

  const Prepared prepared = Prepare({picture, text, Text(2)}, options);

  const at::Tensor expected = at::tensor({0, 1, 1, 4, 5, 0, 1, 0,  //
                                          0, 1, 2, 4, 5, 0, 1, 0,  //
                                          0, 3, 1, 4, 5, 0, 1, 0},
                                         at::kLong);
  EXPECT_TRUE(at::equal(prepared.batches[0][0].position_ids, expected.view({3, 8})));
}

// --- The cases of the seed, and of the tests before it -------------------------------------------

TEST(Prepare, EveryRankHasTheSameCount) {
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

TEST(Prepare, RanksGetTheSameTokens) {
  const Prepared prepared = Prepare(Texts({100, 90, 80, 70}), With(100, 2));
  EXPECT_EQ(TokensOfRank(prepared, 0), 170);
  EXPECT_EQ(TokensOfRank(prepared, 1), 170);
}

TEST(Prepare, PacksSoThatNoRankPads) {
  const Prepared prepared = Prepare(Texts({6, 6, 5, 5, 4, 4}), With(12, 4));
  EXPECT_EQ(prepared.report.padding_micro_batches, 0);
  EXPECT_EQ(prepared.report.micro_steps, 1);
}

TEST(Prepare, PacksDifferentTemperaturesTogether) {
  TensorSample cold = Text(4), hot = Text(4);
  cold.streams["temperatures"] = at::full({4}, 0.7, at::kFloat);
  hot.streams["temperatures"] = at::full({4}, 1.0, at::kFloat);
  PrepareOptions options = With(8, 1);
  options.streams["temperatures"] = {1.0};

  const Prepared prepared = Prepare({cold, hot}, options);

  ASSERT_EQ(prepared.batches[0].size(), 1u);
  EXPECT_TRUE(at::equal(prepared.batches[0][0].streams.at("temperatures"),
                        at::cat({cold.streams["temperatures"], hot.streams["temperatures"]})));
}

TEST(Prepare, MixedSamplesAreOfOneKindAtEveryMicroStep) {
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

TEST(Prepare, ImagePaddingKeepsPixelValues) {
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

TEST(Prepare, PaddingIsShortenedToOneImage) {
  const Prepared prepared = Prepare({Images({8, 4, 4})}, With(16, 2));

  const TensorMicroBatch& padding = prepared.batches[1][0];
  ASSERT_TRUE(padding.padding);
  EXPECT_THAT(padding.samples, IsEmpty());
  EXPECT_EQ(padding.tensors.at("pixel_values").size(0), 8);
  EXPECT_EQ(padding.tensors.at("image_grid_thw").size(0), 1);
  EXPECT_EQ(padding.input_ids.numel(), 3);  // the token before, and the image's two
}

TEST(Prepare, TextRidesInImageBatches) {
  const std::vector<TensorSample> samples = {Text(2, 50), Images({4}, 10)};
  PrepareOptions apart = With(8, 2);
  apart.mix_kinds = false;
  EXPECT_EQ(Prepare(samples, apart).report.micro_steps, 2);
  EXPECT_EQ(Prepare(samples, apart).report.padding_micro_batches, 2);

  const Prepared prepared = Prepare(samples, With(8, 2));

  EXPECT_EQ(prepared.report.micro_steps, 1);
  EXPECT_EQ(prepared.report.padding_micro_batches, 1);
  const bool first_pads = prepared.batches[0][0].padding;
  const TensorMicroBatch& real = prepared.batches[first_pads ? 1 : 0][0];
  const TensorMicroBatch& padding = prepared.batches[first_pads ? 0 : 1][0];
  EXPECT_EQ(real.kind, "image");
  EXPECT_THAT(real.samples, ElementsAre(1, 0));
  EXPECT_TRUE(at::equal(real.input_ids, at::tensor({10, 11, 12, 50, 51}, at::kLong)));
  EXPECT_TRUE(at::equal(real.position_ids, at::tensor({0, 1, 2, 0, 1}, at::kLong)));
  EXPECT_TRUE(
      at::equal(real.streams.at("mm_token_type_ids"), at::tensor({0, 1, 0, 0, 0}, at::kLong)));
  EXPECT_EQ(real.tensors.at("pixel_values").size(0), 4);
  EXPECT_EQ(padding.kind, "image");
  EXPECT_EQ(padding.tensors.at("pixel_values").size(0), 4);
}

TEST(Prepare, RidesOnlyWhereNoTensorIsMissing) {
  const auto kinds = [](const std::vector<TensorSample>& samples) {
    std::vector<std::string> names;
    const Prepared prepared = Prepare(samples, With(16, 1));
    for (const TensorMicroBatch& batch : prepared.batches[0]) names.push_back(batch.kind);
    return names;
  };
  TensorSample rewarded = Images({4}), code = Text(2), no_grid = Text(4), text_reward = Text(2);
  rewarded.tensors["reward"] = text_reward.tensors["reward"] = at::ones({1});
  code.kind = "code";
  no_grid.tensors["pixel_values"] = at::ones({1, 3});
  TensorSample video = Images({4});
  for (const auto& [image, name] :
       {std::pair("pixel_values", "pixel_values_videos"), {"image_grid_thw", "video_grid_thw"}}) {
    video.tensors[name] = video.tensors[image];
    video.tensors.erase(image);
  }
  video.streams["mm_token_type_ids"] = at::tensor({0, 2, 0}, at::kLong);
  TensorSample both = Images({4, 4});
  both.tensors["pixel_values"] = both.tensors["pixel_values"].narrow(0, 0, 4);
  both.tensors["image_grid_thw"] = both.tensors["image_grid_thw"].narrow(0, 0, 1);
  both.tensors["pixel_values_videos"] = both.tensors["pixel_values"];
  both.tensors["video_grid_thw"] = both.tensors["image_grid_thw"];
  both.streams["mm_token_type_ids"] = at::tensor({0, 1, 0, 2, 0}, at::kLong);

  EXPECT_THAT(kinds({Images({4}), Text(2)}), ElementsAre("image"));
  EXPECT_THAT(kinds({both, video, Images({4}), Text(2)}), ElementsAre("image+video"));
  EXPECT_THAT(kinds({video, Images({4})}), ElementsAre("image", "video"));
  EXPECT_THAT(kinds({rewarded, Text(2)}), ElementsAre("image", "text"));
  EXPECT_THAT(kinds({rewarded, text_reward}), ElementsAre("image"));
  EXPECT_THAT(kinds({Images({4}), code}), ElementsAre("code", "image"));
  EXPECT_THAT(kinds({no_grid, Text(2)}), ElementsAre("image", "text"));
  EXPECT_THAT(kinds({both, Images({4}, 100, 5)}), ElementsAre("image", "image+video"));
}

TEST(Prepare, AllImagesWork) {
  const Prepared prepared = Prepare({Images({4}), Images({8}), Images({4, 4})}, With(8, 2));
  for (const auto& batches : prepared.batches) {
    for (const TensorMicroBatch& batch : batches) EXPECT_EQ(batch.kind, "image");
  }
}

TEST(Prepare, PureTextIsWhatItWouldBeWithoutKinds) {
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

TEST(Prepare, NoSamplesGiveEmptyLists) {
  const Prepared prepared = Prepare({}, With(8, 3));
  EXPECT_THAT(prepared.batches, ElementsAre(IsEmpty(), IsEmpty(), IsEmpty()));
  EXPECT_EQ(prepared.report.micro_steps, 0);
}

TEST(Prepare, OneRankAloneIsWhatAllTogetherGiveIt) {
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
    EXPECT_EQ(one.report.fingerprint, all.report.fingerprint);
    EXPECT_EQ(one.batches[static_cast<size_t>((rank + 1) % 3)].size(), 0u);
  }
}

TEST(Prepare, TheFingerprintTellsPlansApart) {
  std::set<uint64_t> fingerprints;
  fingerprints.insert(Prepare({Text(5), Text(3)}, With(8, 2)).report.fingerprint);
  fingerprints.insert(Prepare({Text(3), Text(5)}, With(8, 2)).report.fingerprint);
  fingerprints.insert(Prepare({Text(5), Text(4)}, With(8, 2)).report.fingerprint);
  fingerprints.insert(Prepare({Text(5), Text(3)}, With(8, 1)).report.fingerprint);
  fingerprints.insert(Prepare({Text(5), Images({4})}, With(8, 2)).report.fingerprint);
  fingerprints.insert(Prepare({}, With(8, 2)).report.fingerprint);
  EXPECT_EQ(fingerprints.size(), 6u);
}

// --- Padding to a multiple -----------------------------------------------------------

TEST(Prepare, PadsToAMultiple) {
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

// --- Samples that may wait -----------------------------------------------------------------------

TEST(Prepare, SamplesThatMayWaitAreHeldRatherThanPadded) {
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

TEST(Prepare, OneSampleThatMayNotWaitTakesItsStepAlong) {
  std::vector<TensorSample> samples = Texts({8, 8, 7});
  samples[0].may_wait = samples[1].may_wait = true;

  const Prepared prepared = Prepare(samples, With(8, 2));

  EXPECT_THAT(prepared.held, IsEmpty());
  EXPECT_EQ(prepared.report.micro_steps, 2);
}

// --- How it is done ------------------------------------------------------------------------------

// Bytes of each allocation of this thread, as reported to the profiler.
class Allocations : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    if (bytes > 0) sizes.push_back(bytes);  // below 0: freed
  }
  bool memoryProfilingEnabled() const override { return true; }

  std::vector<int64_t> sizes;
};

TEST(Prepare, EveryOutputIsAllocatedOnce) {
  // 64 images of 64 tokens each fill one micro-batch.
  std::vector<TensorSample> samples;
  for (int i = 0; i < 64; ++i) {
    samples.push_back(Images({4 * 62}, 1000 * i));
    samples.back().streams["advantages"] = at::full({64}, 0.5, at::kFloat);
  }
  PrepareOptions options = With(4096, 1);
  options.streams["advantages"] = {0.0};
  const auto allocations = std::make_shared<Allocations>();

  {
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, allocations);
    const Prepared prepared = Prepare(samples, options);
    ASSERT_EQ(prepared.batches[0].at(0).input_ids.numel(), 4096);
  }

  // loss_mask; advantages; input_ids, position_ids and mm_token_type_ids; pixel_values.
  std::vector<int64_t> large;
  for (const int64_t bytes : allocations->sizes) {
    if (bytes >= 4096) large.push_back(bytes);
  }
  EXPECT_THAT(large, UnorderedElementsAre(4096, 4 * 4096, 8 * 4096, 8 * 4096, 8 * 4096,
                                          64 * 4 * 62 * 3 * 4));
}

TEST(Prepare, InTheBackgroundIsOnAnotherThreadWhileThisOneGoesOn) {
  std::promise<void> trained;
  std::shared_future<void> after_training = trained.get_future().share();
  std::thread::id thread;
  PrepareOptions options = With(8, 2);
  options.sequence_cost = [&](int64_t tokens) {
    after_training.wait();  // on the caller's thread this would wait forever
    thread = std::this_thread::get_id();
    return static_cast<double>(tokens);
  };

  std::future<Prepared> next = PrepareInBackground(Texts({8, 7}), options);
  trained.set_value();
  const Prepared prepared = next.get();

  EXPECT_NE(thread, std::this_thread::get_id());
  EXPECT_EQ(prepared.report.tokens, 15);
  EXPECT_TRUE(at::equal(prepared.batches[0][0].input_ids, Text(8).input_ids));
}

TEST(Prepare, AnErrorInTheBackgroundComesWithTheResult) {
  std::future<Prepared> next = PrepareInBackground({Text(1)}, With(0, 1));
  EXPECT_THAT(MessageOf([&] { next.get(); }), HasSubstr("seq_len must be from 1"));
}

// --- Errors --------------------------------------------------------------------------------------

TEST(Prepare, ErrorsNameTheSampleAndTheField) {
  TensorSample short_mask = Text(3);
  short_mask.loss_mask = at::ones({2}, at::kBool);
  TensorSample float_ids = Text(3);
  float_ids.input_ids = at::zeros({3});
  TensorSample half_mask = Text(3), nan_mask = Text(3);
  half_mask.loss_mask = at::tensor({1.0, 0.5, 0.0});
  nan_mask.loss_mask = at::tensor({1.0, std::nan(""), 0.0});
  TensorSample undeclared = Text(3);
  undeclared.streams["advantages"] = at::zeros({3});
  TensorSample other_pixels = Images({4}, 100, 5);
  TensorSample too_few_pixels = Images({8});
  too_few_pixels.tensors["pixel_values"] = at::zeros({7, 3});
  TensorSample no_types = Images({32});
  no_types.streams.clear();
  TensorSample empty = Text(1);
  empty.input_ids = at::zeros({0}, at::kLong);
  TensorSample no_pixels = Text(3);
  no_pixels.kind = "image";
  TensorSample float_positions = Text(3);
  float_positions.position_ids = at::zeros({3});
  TensorSample float_types = Images({8});
  float_types.streams["mm_token_type_ids"] =
      float_types.streams["mm_token_type_ids"].to(at::kFloat);
  TensorSample negative_grid = Images({8});
  negative_grid.tensors["image_grid_thw"] = at::tensor({1, -2, -4}, at::kLong).view({1, 3});
  TensorSample unknown_cut = Text(9);
  unknown_cut.tensors["audio"] = at::zeros({4, 2});
  TensorSample lost = Images({64});
  lost.kind = "image";
  TensorSample two_runs = Text(9);
  two_runs.tensors["input_features"] = at::zeros({1, 2, 5});
  two_runs.streams["mm_token_type_ids"] = at::tensor({3, 0, 3, 0, 0, 0, 0, 0, 0}, at::kLong);
  TensorSample short_mel = Text(3);
  short_mel.tensors["input_features"] = at::zeros({1, 2, 5});
  short_mel.tensors["feature_attention_mask"] = at::zeros({2, 5});
  const struct {
    TensorSample sample;
    std::string message;
  } kCases[] = {
      {short_mask, "sample 1: loss_mask has shape [2], but input_ids has 3 tokens"},
      {half_mask, "sample 1: loss_mask holds 0.5; each element must be 0, 1, true or false"},
      {nan_mask, "sample 1: loss_mask holds nan; each element"},
      {float_ids, "sample 1: input_ids must be of an integer dtype, not Float"},
      {undeclared, "sample 1: advantages is not declared in streams"},
      {other_pixels,
       "pixel_values is Float [4, 5] on cpu in sample 1 and Float [4, 3] on cpu in sample 0"},
      {too_few_pixels, "sample 1: pixel_values has 7 rows, but image_grid_thw counts 8 patches"},
      {no_types,
       "sample 1 has 10 tokens, more than seq_len = 8, and pixel_values, but its placeholder "
       "tokens are unknown; give the sample mm_token_type_ids or set image_token_id"},
      {empty, "sample 1 has no tokens"},
      {no_pixels,
       "sample 0 has image_grid_thw and sample 1 has none, but both are of kind \"image\""},
      {float_positions, "sample 1: position_ids must be of an integer dtype, not Float"},
      {float_types, "sample 1: mm_token_type_ids must be of an integer dtype, not Float"},
      {negative_grid, "sample 1: image_grid_thw holds -4; times, heights and widths are above 0"},
      {unknown_cut,
       "sample 1 has 9 tokens, more than seq_len = 8, but it is unknown which rows of audio belong "
       "to which tokens"},
      {lost, "sample 1 of kind \"image\" loses all rows of image_grid_thw when it is cut"},
      {two_runs,
       "sample 1: input_features: the tokens have 2 runs of placeholders, but there are 1 items"},
      {short_mel, "sample 1: feature_attention_mask has 2 rows and input_features 1"},
  };
  for (const auto& c : kCases) {
    PrepareOptions options = With(8, 2);
    options.own_rows = {"audio"};
    EXPECT_THAT(PrepareMessage({Images({4}), c.sample}, options), HasSubstr(c.message));
  }
}

TEST(Prepare, ErrorsNameTheOption) {
  EXPECT_THAT(PrepareMessage({Text(1)}, With(0, 1)),
              HasSubstr("seq_len must be from 1 to 2147483647, not 0"));
  EXPECT_THAT(PrepareMessage({Text(1)}, With(8, 0)),
              HasSubstr("ranks must be from 1 to 1048576, not 0"));
  TensorSample whole = Text(1);
  whole.streams["turns"] = at::zeros({1}, at::kLong);
  PrepareOptions half = With(8, 1);
  half.streams["turns"] = {0.5};
  EXPECT_THAT(PrepareMessage({whole}, half),
              HasSubstr("streams.turns.absent = 0.5 would become 0; turns is Long"));
  EXPECT_THAT(PrepareMessage({Text(1)}, With(int64_t{1} << 53, 1)), HasSubstr("seq_len must be"));
  PrepareOptions wrong_rank = With(8, 2);
  wrong_rank.only_rank = 2;
  EXPECT_THAT(PrepareMessage({Text(1)}, wrong_rank),
              HasSubstr("rank 2 is not one of 2 ranks (0 to 1)"));
  PrepareOptions wrong_cost = With(3, 1);
  wrong_cost.sequence_cost = [](int64_t tokens) { return tokens == 2 ? std::nan("") : 1.0; };
  TensorSample dropped = Images({16});  // begins with an image that does not fit
  for (at::Tensor* tensor :
       {&dropped.input_ids, &dropped.loss_mask, &dropped.streams["mm_token_type_ids"]})
    *tensor = tensor->narrow(0, 1, 4);
  EXPECT_THAT(PrepareMessage({dropped, Text(2)}, wrong_cost),
              HasSubstr("sample 1, of 2 tokens, costs nan; a cost is a finite number from 0 on"));
  PrepareOptions options = With(10, 1);
  options.pad_to_multiple_of = 4;
  EXPECT_THAT(PrepareMessage({Text(1)}, options),
              HasSubstr("pad_to_multiple_of (4) must divide seq_len (10)"));
}

}  // namespace
}  // namespace lockstep::batching
