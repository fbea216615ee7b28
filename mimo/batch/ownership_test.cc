#include "mimo/batch/ownership.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::mimo {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Ownership Make(const std::vector<int64_t>& items, const std::vector<int64_t>& tokens) {
  absl::StatusOr<Ownership> ownership = MakeOwnership(items, tokens);
  EXPECT_TRUE(ownership.ok()) << ownership.status();
  return *ownership;
}

TEST(MakeOwnership, HeaderExample) {
  const Ownership images = Make({0, 0, 2, 1}, {4, 6, 9});

  EXPECT_EQ(*RowsOfShard(images, RowsOf::kItems, 0, 2), (Range{0, 0}));
  EXPECT_EQ(*RowsOfShard(images, RowsOf::kTokens, 1, 2), (Range{0, 19}));
}

TEST(MakeOwnership, RowsFollowTheirSamples) {
  const Ownership images = Make({1, 0, 2, 1}, {4, 6, 9, 1});

  EXPECT_EQ(RowsOfSamples(images, RowsOf::kSamples, {1, 3}), (Range{1, 3}));
  EXPECT_EQ(RowsOfSamples(images, RowsOf::kItems, {1, 3}), (Range{1, 3}));
  EXPECT_EQ(RowsOfSamples(images, RowsOf::kTokens, {1, 3}), (Range{4, 19}));
  EXPECT_EQ(RowsOfSamples(images, RowsOf::kTokens, {1, 2}), (Range{4, 4}));
  EXPECT_EQ(NumRows(images, RowsOf::kSamples), 4);
  EXPECT_EQ(NumRows(images, RowsOf::kItems), 4);
  EXPECT_EQ(NumRows(images, RowsOf::kTokens), 20);
}

// Megatron-Bridge's issue 4986: cut by rows, the replica with samples 0 and 1 gets sample 2's
// image.
TEST(MakeOwnership, AShardOfSamplesWithoutImagesHasNone) {
  const Ownership images = *OwnershipOfItems(4, {2, 3}, {1, 1});

  EXPECT_EQ(*RowsOfShard(images, RowsOf::kItems, 0, 2), (Range{0, 0}));
  EXPECT_EQ(*RowsOfShard(images, RowsOf::kItems, 1, 2), (Range{0, 2}));
}

TEST(MakeOwnership, EmptyTablesHaveNoRows) {
  const Ownership nothing;
  const Ownership no_items = Make({0, 0}, {});

  for (const Ownership& ownership : {nothing, no_items}) {
    EXPECT_TRUE(ValidateOwnership(ownership).ok());
    EXPECT_EQ(NumRows(ownership, RowsOf::kItems), 0);
    EXPECT_EQ(NumRows(ownership, RowsOf::kTokens), 0);
    EXPECT_EQ(*RowsOfShard(ownership, RowsOf::kTokens, 1, 2), (Range{0, 0}));
  }
  EXPECT_EQ(Make({}, {}), nothing);
  EXPECT_EQ(UniformOwnership(0), nothing);
}

TEST(MakeOwnership, UniformSamplesHaveOneItemEach) {
  EXPECT_EQ(UniformOwnership(3, 5), Make({1, 1, 1}, {5, 5, 5}));
  EXPECT_EQ(UniformOwnership(2, 0), Make({1, 1}, {0, 0}));
}

TEST(MakeOwnership, RowsOfEachSampleThereAndBack) {
  const Ownership images = Make({1, 0, 2, 1}, {4, 6, 9, 1});

  EXPECT_THAT(RowsPerSample(images, RowsOf::kSamples), ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(RowsPerSample(images, RowsOf::kItems), ElementsAre(1, 0, 2, 1));
  EXPECT_THAT(RowsPerSample(images, RowsOf::kTokens), ElementsAre(4, 0, 15, 1));
  EXPECT_EQ(*OwnershipOfRows({4, 0, 15, 1}), Make({1, 1, 1, 1}, {4, 0, 15, 1}));
  EXPECT_FALSE(OwnershipOfRows({4, -1}).ok());
}

TEST(MakeOwnership, ASliceCountsFromZero) {
  const Ownership images = Make({1, 0, 2, 1}, {4, 6, 9, 1});

  EXPECT_EQ(SliceOwnership(images, {1, 3}), Make({0, 2}, {6, 9}));
  EXPECT_EQ(SliceOwnership(images, {0, 4}), images);
  EXPECT_EQ(SliceOwnership(images, {4, 4}), Ownership{});
}

TEST(MakeOwnership, ErrorsNameThePlace) {
  const int64_t most = std::numeric_limits<int64_t>::max();
  const auto message = [](const auto& result) { return std::string(result.status().message()); };

  EXPECT_EQ(message(MakeOwnership({1, -2}, {})),
            "mimo: ownership: items of sample 1 are -2; a count is not negative");
  EXPECT_EQ(message(MakeOwnership({2}, {most, 1})),
            "mimo: ownership: tokens of item 1 are 1; their sum exceeds 64 bits");
  EXPECT_EQ(message(MakeOwnership({1, 1}, {5})),
            "mimo: ownership: the samples have 2 items in all, but tokens are given for 1");
  EXPECT_EQ(message(OwnershipOfItems(2, {0, 2}, {1, 1})),
            "mimo: ownership: item 1 is of sample 2, but there are 2, counted from 0");
  EXPECT_EQ(message(OwnershipOfItems(2, {-1}, {1})),
            "mimo: ownership: item 0 is of sample -1, but there are 2, counted from 0");
  EXPECT_THAT(message(OwnershipOfItems(2, {1, 0}, {1, 1})),
              HasSubstr("item 1 is of sample 0, the item before it of sample 1; items follow"));
  EXPECT_THAT(message(OwnershipOfItems(-1, {}, {})), HasSubstr("num_samples is -1;"));
  EXPECT_EQ(ValidateOwnership({{0, 2, 1}, {0}}).message(),
            "mimo: ownership: item_offsets[2] is 1, less than the 2 before it");
  EXPECT_EQ(ValidateOwnership({{0, 1}, {1, 2}}).message(),
            "mimo: ownership: token_offsets must begin with 0");
  EXPECT_EQ(ValidateOwnership({{}, {0}}).message(),
            "mimo: ownership: item_offsets must begin with 0");
  EXPECT_EQ(ValidateOwnership({{0, 1}, {}}).message(),
            "mimo: ownership: token_offsets must begin with 0");
}

TEST(TokensOfGrid, CountsMergedPatches) {
  EXPECT_THAT(*TokensOfGrid({1, 4, 6, 2, 2, 2}), ElementsAre(24, 8));
  EXPECT_THAT(*TokensOfGrid({1, 4, 6, 2, 2, 2}, 2), ElementsAre(6, 2));
  EXPECT_THAT(*TokensOfGrid({}), IsEmpty());
}

TEST(TokensOfGrid, ErrorsNameTheRow) {
  const auto message = [](const auto& result) { return std::string(result.status().message()); };

  EXPECT_THAT(message(TokensOfGrid({1, 2})), HasSubstr("has 2 values; rows are of three"));
  EXPECT_THAT(message(TokensOfGrid({1, 2, 2, 1, 0, 2})),
              HasSubstr("row 1 is 1 x 0 x 2; all three"));
  EXPECT_THAT(message(TokensOfGrid({1, 2, 3}, 2)),
              HasSubstr("row 0 is 1 x 2 x 3; height and width"));
  EXPECT_THAT(message(TokensOfGrid({1, 2, 2}, 0)), HasSubstr("merge is 0"));
  EXPECT_THAT(message(TokensOfGrid({int64_t{1} << 40, int64_t{1} << 40, 1})),
              HasSubstr("exceed 64 bits"));
}

TEST(Part, PartsDifferByAtMostOneAndCoverTheRange) {
  EXPECT_EQ(Part({2, 9}, 0, 3), (Range{2, 5}));
  EXPECT_EQ(Part({2, 9}, 1, 3), (Range{5, 7}));
  EXPECT_EQ(Part({2, 9}, 2, 3), (Range{7, 9}));
  EXPECT_EQ(Part({4, 4}, 1, 2), (Range{4, 4}));
  EXPECT_EQ(Part({0, 1}, 1, 2), (Range{1, 1}));
}

TEST(ShardBounds, EvenAndUneven) {
  EXPECT_THAT(*ShardBounds(6, 3), ElementsAre(0, 2, 4, 6));
  EXPECT_THAT(*ShardBounds(7, 3, Division::kUneven), ElementsAre(0, 3, 5, 7));
  EXPECT_THAT(*ShardBounds(1, 3, Division::kUneven), ElementsAre(0, 1, 1, 1));
  EXPECT_THAT(*ShardBounds(0, 2), ElementsAre(0, 0, 0));
  EXPECT_THAT(*ShardBounds(5, 1), ElementsAre(0, 5));
}

TEST(ShardBounds, ErrorsGiveTheNearestSizes) {
  EXPECT_EQ(
      ShardBounds(10, 3).status().message(),
      "mimo: batch size 10 is not divisible by dp_size 3; use 9 or 12, or allow uneven parts");
  EXPECT_EQ(ShardBounds(2, 3).status().message(),
            "mimo: batch size 2 is not divisible by dp_size 3; use 3, or allow uneven parts");
  EXPECT_EQ(ShardBounds(4, 0).status().message(), "mimo: dp_size is 0; it must be positive");
  EXPECT_THAT(std::string(ShardBounds(-1, 1).status().message()), HasSubstr("num_samples is -1;"));
}

TEST(SamplesOfShard, IsTheReplicasPart) {
  EXPECT_EQ(*SamplesOfShard(6, 1, 3), (Range{2, 4}));
  EXPECT_EQ(SamplesOfShard(6, 3, 3).status().message(),
            "mimo: dp_rank is 3; with dp_size 3 it is from 0 to 2");
  EXPECT_FALSE(SamplesOfShard(6, -1, 3).ok());
  EXPECT_FALSE(RowsOfShard(UniformOwnership(6), RowsOf::kItems, 3, 3).ok());
}

}  // namespace
}  // namespace lockstep::mimo
