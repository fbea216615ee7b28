#include "batching/outline.h"

#include <functional>
#include <string>
#include <vector>

#include "ATen/ops/tensor.h"
#include "ATen/ops/zeros.h"
#include "batching/prepare.h"
#include "batching/testing/test_samples.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/message_of.h"

namespace lockstep::batching {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using tests::MessageOf;

TEST(Outline, HoldsSizesAndNoValues) {
  TensorSample sample = Images({4, 8});
  sample.loss_mask = at::tensor({1, 1, 1, 0, 1, 1}, at::kLong);  // the first is not predicted
  ASSERT_EQ(sample.input_ids.numel(), 6);

  const Outline outline = Describe(sample, 0, With(100, 1));

  EXPECT_EQ(outline.tokens, 6);
  EXPECT_THAT(outline.loss, ElementsAre(Pair(1, 3), Pair(4, 6)));
  EXPECT_THAT(outline.tensors.at("pixel_values").shape, ElementsAre(12, 3));
  EXPECT_THAT(outline.tensors.at("image_grid_thw").shape, ElementsAre(2, 3));
  EXPECT_EQ(outline.streams.at("mm_token_type_ids").dtype, at::kLong);
  const ItemsOutline& images = outline.items.at("image");
  EXPECT_TRUE(images.located);
  ASSERT_EQ(images.ranges.size(), 2u);
  EXPECT_EQ(images.ranges[0].rows, 4);
  EXPECT_EQ(images.ranges[1].rows, 8);
  EXPECT_EQ(Difference(outline, outline), "");
}

TEST(Outline, ImagesWithoutPlaceholdersAreNotLocated) {
  TensorSample sample = Images({4});
  sample.streams.clear();

  const Outline outline = Describe(sample, 0, With(100, 1));

  EXPECT_FALSE(outline.items.at("image").located);
  EXPECT_EQ(outline.items.at("image").ranges[0].rows, 4);
}

// A whole plan would pack another sample than the one that it was made for.
TEST(Outline, ASampleThatIsNotAsItsIndexSaysIsAnError) {
  const struct {
    const char* message;
    std::function<void(TensorSample&)> change;
  } kCases[] = {
      {"tokens: 6 and 7",
       [](TensorSample& s) {
         s = Images({4, 4, 4});
       }},
      {"tokens with a loss: {1-6} and {1-2, 3-6}",
       [](TensorSample& s) {
         s.loss_mask = at::tensor({1, 1, 0, 1, 1, 1}, at::kLong);
       }},
      {"kind: \"\" and \"photo\"", [](TensorSample& s) { s.kind = "photo"; }},
      {"pixel_values: Float [12, 3] and Float [12, 5]",
       [](TensorSample& s) {
         s = Images({4, 8}, 100, 5);
       }},
      {"extra: none and Float [2]", [](TensorSample& s) { s.tensors["extra"] = at::zeros({2}); }},
      {"advantages: none and Float",
       [](TensorSample& s) { s.streams["advantages"] = at::zeros({6}); }},
      {"image: 4 rows at 1-2, 8 rows at 3-5 and 8 rows at",
       [](TensorSample& s) {
         s = Images({8, 4});
       }},
  };
  PrepareOptions options = With(100, 1);
  options.streams["advantages"] = {0.0};
  const TensorSample sample = Images({4, 8});
  const std::vector<Outline> index = {Describe(Text(9), 0, options), Describe(sample, 1, options)};
  for (const auto& [message, change] : kCases) {
    TensorSample changed = sample;
    change(changed);
    const auto load = [&](int64_t i) { return i == 0 ? Text(9) : changed; };

    const std::string error = MessageOf([&] { PrepareFromIndex(index, load, options); });

    EXPECT_THAT(error, HasSubstr("batching: sample 1 is not the one that the index describes; "));
    EXPECT_THAT(error, HasSubstr(message));
  }
}

TEST(Outline, AnIndexThatContradictsItselfIsAnError) {
  const struct {
    const char* message;
    std::function<void(Outline&)> change;
  } kCases[] = {
      {"tokens must be at least 1", [](Outline& o) { o.tokens = 0; }},
      {"loss must hold ascending runs",
       [](Outline& o) {
         o.loss = {{1, 7}};
       }},
      {"loss must hold ascending runs",
       [](Outline& o) {
         o.loss = {{3, 3}};
       }},
      {"loss must hold ascending runs",
       [](Outline& o) {
         o.loss = {{1, 3}, {2, 4}};
       }},
      {"loss must hold ascending runs",
       [](Outline& o) {
         o.loss = {{-2, 2}};
       }},
      {"without token 0, which no token predicts",
       [](Outline& o) {
         o.loss = {{0, 2}};
       }},
      {"values is not declared in streams",
       [](Outline& o) {
         o.streams["values"] = {at::kFloat, {6}};
       }},
      {"mm_token_type_ids must have a shape that begins with the number of tokens",
       [](Outline& o) { o.streams["mm_token_type_ids"].shape = {7}; }},
      {"mm_token_type_ids must have a shape that begins with the number of tokens",
       [](Outline& o) { o.streams["mm_token_type_ids"].shape = {}; }},
      {"pixel_values must have a shape", [](Outline& o) { o.tensors["pixel_values"].shape = {}; }},
      {"pixel_values must have a shape",
       [](Outline& o) { o.tensors["pixel_values"].shape = {-1}; }},
      {"image must be among the items", [](Outline& o) { o.items.clear(); }},
      {"image must be among the items", [](Outline& o) { o.tensors.erase("image_grid_thw"); }},
      {"image must have as many items and rows",
       [](Outline& o) { o.tensors.erase("pixel_values"); }},
      {"image must have as many items and rows",
       [](Outline& o) {
         o.tensors["pixel_values"].shape = {11, 3};
       }},
      {"image must have items of one or more rows",
       [](Outline& o) { o.items["image"].ranges[0].rows = 0; }},
      {"image must have items one behind the other",
       [](Outline& o) { o.items["image"].ranges[1].begin = 0; }},
      {"image must have items one behind the other",
       [](Outline& o) { o.items["image"].ranges[1].end = 7; }},
  };
  const PrepareOptions options = With(100, 1);
  const Outline good = Describe(Images({4, 8}), 0, options);
  CheckOutline(good, 0, options);
  for (const auto& [message, change] : kCases) {
    Outline bad = good;
    change(bad);

    const std::string error = MessageOf([&] {
      PrepareFromIndex(
          {bad},
          [](int64_t) {
            return Images({4, 8});
          },
          options);
    });

    EXPECT_THAT(error, HasSubstr("batching: sample 0"));
    EXPECT_THAT(error, HasSubstr(message));
  }
}

}  // namespace
}  // namespace lockstep::batching
