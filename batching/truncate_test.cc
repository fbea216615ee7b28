#include "batching/truncate.h"

#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::batching {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Two images of 4 patches, 2 tokens each; the second image's placeholders start at token 4.
const std::vector<int64_t> kTwoImages = {0, 1, 1, 0, 1, 1, 0};

PlaceholderRanges RangesOf(const std::vector<int64_t>& types, int64_t type,
                           const std::vector<int64_t>& rows) {
  const absl::StatusOr<PlaceholderRanges> ranges = PlaceholdersByRows(types, type, rows);
  EXPECT_TRUE(ranges.ok()) << ranges.status();
  return ranges.ok() ? *ranges : PlaceholderRanges{};
}

TEST(CutSample, HeaderExample) {
  const std::vector<int64_t> types = {0, 1, 1, 0, 1, 1, 0};
  absl::StatusOr<PlaceholderRanges> images = PlaceholdersByRows(types, 1, {4, 4});
  ASSERT_TRUE(images.ok()) << images.status();
  Cut cut = CutSample({*images}, 5);

  EXPECT_EQ(cut.tokens, 4);
  EXPECT_THAT(cut.items, ElementsAre(1));
}

TEST(CutSample, NeverSplitsAnImage) {
  const struct {
    int64_t max_tokens, tokens, images;
  } kCases[] = {{7, 7, 2}, {6, 6, 2}, {5, 4, 1}, {4, 4, 1},
                {3, 3, 1}, {2, 1, 0}, {1, 1, 0}, {0, 0, 0}};
  for (const auto& c : kCases) {
    const Cut cut = CutSample({RangesOf(kTwoImages, 1, {4, 4})}, c.max_tokens);
    EXPECT_EQ(cut.tokens, c.tokens) << c.max_tokens;
    EXPECT_THAT(cut.items, ElementsAre(c.images)) << c.max_tokens;
  }
}

TEST(CutSample, ImagesMayDifferInSize) {
  const PlaceholderRanges ranges = RangesOf({1, 0, 1, 1, 1, 0}, 1, {4, 12});

  EXPECT_EQ(ranges[1].rows, 12);
  EXPECT_THAT(CutSample({ranges}, 5).items, ElementsAre(2));
  EXPECT_THAT(CutSample({ranges}, 4).items, ElementsAre(1));
  EXPECT_EQ(CutSample({ranges}, 4).tokens, 2);
}

TEST(CutSample, TextIsCutAnywhere) { EXPECT_EQ(CutSample({}, 3).tokens, 3); }

TEST(CutSample, CutsAllModalitiesAtOnePosition) {
  // A video of tokens 0, 1 and 5, with an image between its frames; then an image of its own.
  const std::vector<int64_t> types = {2, 2, 1, 1, 0, 2, 1, 1};
  const std::vector<PlaceholderRanges> both = {RangesOf(types, 1, {2, 2}), RangesOf(types, 2, {3})};

  EXPECT_THAT(CutSample(both, 8).items, ElementsAre(2, 1));
  EXPECT_EQ(CutSample(both, 7).tokens, 6);
  EXPECT_THAT(CutSample(both, 7).items, ElementsAre(1, 1));
  EXPECT_EQ(CutSample(both, 5).tokens, 0)
      << "the first image fits, but the video around it does not";
  EXPECT_THAT(CutSample(both, 5).items, ElementsAre(0, 0));
}

TEST(PlaceholdersByRows, ErrorsNameTheContradiction) {
  const struct {
    std::vector<int64_t> types, rows;
    const char* message;
  } kCases[] = {
      {{0, 1, 1}, {}, "the tokens have 2 placeholders, but the grid counts 0 rows"},
      {{0, 0, 0}, {4}, "the tokens have 0 placeholders, but the grid counts 4 rows"},
      {{1, 1, 1}, {4, 4}, "item 0 has 4 of 8 rows, which is not a whole number of 3 placeholders"},
      {{1, 1}, {4, 0}, "item 1 has 0 rows"},
  };
  for (const auto& c : kCases) {
    EXPECT_THAT(std::string(PlaceholdersByRows(c.types, 1, c.rows).status().message()),
                HasSubstr(c.message));
  }
  EXPECT_THAT(
      std::string(PlaceholdersByRuns({3, 3, 0, 3}, 3, 3).status().message()),
      HasSubstr("the tokens have 2 runs of placeholders, but there are 3 items; each item needs"));
}

TEST(PlaceholdersByRuns, ARunOfPlaceholdersIsOneItem) {
  const absl::StatusOr<PlaceholderRanges> clips = PlaceholdersByRuns({3, 0, 3, 3, 3, 1}, 3, 2);

  ASSERT_TRUE(clips.ok()) << clips.status();
  EXPECT_EQ(clips->at(0).end, 1);
  EXPECT_EQ(clips->at(1).begin, 2);
  EXPECT_EQ(clips->at(1).end, 5);
  EXPECT_EQ(clips->at(1).rows, 1);
}

TEST(ShortestCut, KeepsAnItemOfEachModality) {
  const PlaceholderRanges images = RangesOf(kTwoImages, 1, {4, 4});
  EXPECT_EQ(ShortestCut({images}).tokens, 3);
  EXPECT_THAT(ShortestCut({images}).items, ElementsAre(1));
  EXPECT_EQ(ShortestCut({}).tokens, 1);
  EXPECT_EQ(ShortestCut({PlaceholderRanges{}}).tokens, 1);

  // Two images before the first video: both are kept whole.
  const std::vector<int64_t> types = {1, 0, 1, 2, 0, 2, 1};
  const std::vector<PlaceholderRanges> both = {RangesOf(types, 1, {4, 4, 4}),
                                               RangesOf(types, 2, {8})};
  EXPECT_EQ(ShortestCut(both).tokens, 6);
  EXPECT_THAT(ShortestCut(both).items, ElementsAre(2, 1));
}

TEST(ShortestCut, SplitsNoItemOfAnotherModality) {
  // The image is whole after token 2, but inside the video.
  const std::vector<int64_t> types = {2, 1, 2, 0, 0};
  EXPECT_EQ(ShortestCut({RangesOf(types, 1, {4}), RangesOf(types, 2, {8})}).tokens, 3);
}

}  // namespace
}  // namespace lockstep::batching
