#include "batching/truncate.h"

#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::batching {
namespace {

using ::testing::HasSubstr;

struct Case {
  std::vector<int64_t> token_types;
  std::vector<int64_t> patches;

  MultimodalSample sample() const { return {token_types, patches}; }
};

// Two images of 4 patches, 2 tokens each; the second block starts at token 4.
Case TwoImages() { return {{0, 1, 1, 0, 1, 1, 0}, {4, 4}}; }

TEST(CutSample, HeaderExample) {
  const Case c = TwoImages();

  const absl::StatusOr<Cut> cut = CutSample(c.sample(), 5);

  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_EQ(cut->tokens, 4);
  EXPECT_EQ(cut->images, 1);
  EXPECT_EQ(cut->patches, 4);
}

TEST(CutSample, NeverSplitsAnImage) {
  const struct {
    int64_t max_tokens;
    int64_t tokens;
    int64_t images;
  } kCases[] = {{7, 7, 2}, {9, 7, 2}, {6, 6, 2}, {5, 4, 1}, {4, 4, 1},
                {3, 3, 1}, {2, 1, 0}, {1, 1, 0}, {0, 0, 0}};
  const Case two = TwoImages();
  for (const auto& c : kCases) {
    const absl::StatusOr<Cut> cut = CutSample(two.sample(), c.max_tokens);
    ASSERT_TRUE(cut.ok());
    EXPECT_EQ(cut->tokens, c.tokens) << c.max_tokens;
    EXPECT_EQ(cut->images, c.images) << c.max_tokens;
    EXPECT_EQ(cut->patches, 4 * c.images) << c.max_tokens;
  }
}

TEST(CutSample, ImagesMayDifferInSize) {
  const Case c = {{1, 0, 1, 1, 1, 0}, {4, 12}};

  EXPECT_EQ(CutSample(c.sample(), 5)->patches, 16);
  EXPECT_EQ(CutSample(c.sample(), 4)->tokens, 2);
  EXPECT_EQ(CutSample(c.sample(), 4)->patches, 4);
}

TEST(CutSample, TextIsCutAnywhere) {
  const Case c = {{0, 0, 0, 0}, {}};

  EXPECT_EQ(CutSample(c.sample(), 3)->tokens, 3);
}

TEST(CutSample, OtherModalitiesAreLeftAlone) {
  const Case c = {{2, 2, 1, 1, 2}, {2}};

  EXPECT_EQ(CutSample(c.sample(), 4)->images, 1);
  EXPECT_EQ((CutSample({c.token_types, std::vector<int64_t>{3}, 2}, 4)->tokens), 0)
      << "a video of tokens 0, 1 and 4 does not fit";
}

TEST(CutSample, ErrorsNameTheContradiction) {
  const struct {
    Case sample;
    const char* message;
  } kCases[] = {
      {{{0, 1, 1}, {}}, "the tokens have 2 image placeholders, but the grid has 0 patches"},
      {{{0, 0, 0}, {4}}, "the tokens have 0 image placeholders, but the grid has 4 patches"},
      {{{1, 1, 1}, {4, 4}},
       "image 0 has 4 of 8 patches, which is no whole number of the 3 placeholders"},
      {{{1, 1}, {4, 0}}, "image 1 has 0 patches"},
  };
  for (const auto& c : kCases) {
    EXPECT_THAT(std::string(CutSample(c.sample.sample(), 2).status().message()),
                HasSubstr(c.message));
  }
}

TEST(CutToImages, KeepsTheFirstImageAndNothingAfterIt) {
  const Case c = TwoImages();

  EXPECT_EQ(CutToImages(c.sample(), 1)->tokens, 3);
  EXPECT_EQ(CutToImages(c.sample(), 1)->patches, 4);
  EXPECT_EQ(CutToImages(c.sample(), 5)->images, 2);
  EXPECT_EQ(CutToImages({std::vector<int64_t>{0, 0}, {}}, 1)->tokens, 1);
}

// Any cut of any sample: whole images, as many as fit, and never a placeholder without its image.
TEST(CutSample, HoldsForRandomSamples) {
  std::mt19937 random(3);
  for (int c = 0; c < 2000; ++c) {
    const int64_t merge = 1 + static_cast<int64_t>(random() % 4);
    Case sample;
    std::vector<int64_t> ends;  // token position after each image
    for (unsigned images = random() % 4; images > 0; --images) {
      for (unsigned text = random() % 4; text > 0; --text) sample.token_types.push_back(0);
      const int64_t tokens = 1 + static_cast<int64_t>(random() % 5);
      sample.token_types.insert(sample.token_types.end(), static_cast<size_t>(tokens), 1);
      sample.patches.push_back(tokens * merge);
      ends.push_back(static_cast<int64_t>(sample.token_types.size()));
    }
    sample.token_types.push_back(0);
    const int64_t max_tokens = static_cast<int64_t>(random() % (sample.token_types.size() + 2));

    const absl::StatusOr<Cut> cut = CutSample(sample.sample(), max_tokens);

    ASSERT_TRUE(cut.ok()) << cut.status();
    EXPECT_LE(cut->tokens, max_tokens);
    int64_t placeholders = 0;
    for (int64_t t = 0; t < cut->tokens; ++t)
      placeholders += sample.token_types[static_cast<size_t>(t)];
    EXPECT_EQ(placeholders * merge, cut->patches);
    int64_t fit = 0;
    for (const int64_t end : ends) fit += end <= max_tokens ? 1 : 0;
    EXPECT_EQ(cut->images, fit);
  }
}

}  // namespace
}  // namespace lockstep::batching
