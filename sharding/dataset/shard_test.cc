#include "sharding/dataset/shard.h"

#include <cmath>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::sharding {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Shard Make(const ShardOptions& options) {
  absl::StatusOr<Shard> shard = Shard::Make(options);
  EXPECT_TRUE(shard.ok()) << shard.status();
  return *shard;
}

std::vector<int64_t> Take(Shard& shard, int64_t most = 1 << 30) {
  std::vector<int64_t> indices;
  while (static_cast<int64_t>(indices.size()) < most) {
    const std::optional<int64_t> index = shard.Next();
    if (!index.has_value()) break;
    indices.push_back(*index);
  }
  return indices;
}

TEST(Shard, HeaderExample) {
  absl::StatusOr<Shard> shard =
      Shard::Make({.size = 1'000'000'000, .rank = 3, .world = 8, .seed = 1});
  ASSERT_TRUE(shard.ok());
  std::set<int64_t> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(*shard->Next());
  EXPECT_EQ(seen.size(), 1000u);
  EXPECT_GE(*seen.begin(), 0);
  EXPECT_LT(*seen.rbegin(), 1'000'000'000);
  EXPECT_EQ(shard->length(), 125'000'000);
}

void ExpectOneToOne(int64_t size, uint64_t seed, int64_t epoch) {
  const Permutation permutation(size, seed, epoch);
  std::vector<bool> hit(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) {
    const int64_t to = permutation(i);
    ASSERT_TRUE(to >= 0 && to < size && !hit[static_cast<size_t>(to)])
        << size << ": " << i << " to " << to;
    hit[static_cast<size_t>(to)] = true;
  }
}

TEST(Permutation, IsOneToOneForEverySizeTo10000) {
  for (int64_t size = 1; size <= 10'000; ++size) ExpectOneToOne(size, 7, size % 3);
}

TEST(Permutation, IsOneToOneForBigSizes) {
  // At, below and above a power of four, where cycles are walked least and most.
  for (const int64_t size : {1 << 20, (1 << 20) - 1, (1 << 20) + 1, 1'594'323, 3'000'017})
    ExpectOneToOne(size, 11, 4);
}

TEST(Permutation, StaysWithinSizesBeyondThirtyTwoBits) {
  for (const int64_t size : {(int64_t{1} << 40) + 1, int64_t{1} << 53}) {
    const Permutation permutation(size, 5, 2);
    std::set<int64_t> seen;
    for (int64_t i = 0; i < 20'000; ++i) seen.insert(permutation(size - 1 - i * 1'000'003));
    EXPECT_EQ(seen.size(), 20'000u);
    EXPECT_GE(*seen.begin(), 0);
    EXPECT_LT(*seen.rbegin(), size);
  }
}

TEST(Permutation, ShufflesEvenly) {
  // Where the first quarter of the positions goes: each sixteenth of the indices gets about as
  // many.
  constexpr int64_t kSize = 100'003, kBuckets = 16;
  for (const uint64_t seed : {0u, 1u, 2u}) {
    const Permutation permutation(kSize, seed, 0);
    std::vector<double> counts(kBuckets);
    for (int64_t i = 0; i < kSize / 4; ++i)
      ++counts[static_cast<size_t>(permutation(i) * kBuckets / kSize)];
    const double mean = kSize / 4.0 / kBuckets;
    for (const double count : counts)
      EXPECT_NEAR(count, mean, 5 * std::sqrt(mean)) << "seed " << seed;
  }
}

TEST(Permutation, NeighboursAreScattered) {
  const Permutation permutation(10'000, 3, 0);
  int close = 0;
  for (int64_t i = 0; i + 1 < 10'000; ++i)
    close += std::abs(permutation(i) - permutation(i + 1)) < 100 ? 1 : 0;
  // 2 % of pairs of random indices are that close.
  EXPECT_NEAR(close, 200, 75);
}

TEST(Permutation, DiffersBySeedAndEpoch) {
  const auto first_100 = [](uint64_t seed, int64_t epoch) {
    const Permutation permutation(1000, seed, epoch);
    std::vector<int64_t> to;
    for (int64_t i = 0; i < 100; ++i) to.push_back(permutation(i));
    return to;
  };
  EXPECT_EQ(first_100(1, 2), first_100(1, 2));
  EXPECT_NE(first_100(1, 2), first_100(2, 2));
  EXPECT_NE(first_100(1, 2), first_100(1, 3));
  EXPECT_NE(first_100(1, 2), first_100(2, 1));
}

TEST(Permutation, IsTheSameOnEveryMachine) {
  const Permutation permutation(10, 1, 0);
  std::vector<int64_t> to;
  for (int64_t i = 0; i < 10; ++i) to.push_back(permutation(i));
  EXPECT_THAT(to, ElementsAre(3, 9, 4, 0, 7, 8, 5, 6, 1, 2));
}

TEST(Shard, RanksTogetherSeeEverySampleOnce) {
  for (int64_t size = 0; size <= 20; ++size) {
    for (int world = 1; world <= 7; ++world) {
      for (const bool shuffle : {false, true}) {
        std::vector<int> times(static_cast<size_t>(size));
        int64_t shortest = size, longest = 0;
        for (int rank = 0; rank < world; ++rank) {
          Shard shard =
              Make({.size = size, .rank = rank, .world = world, .seed = 5, .shuffle = shuffle});
          const std::vector<int64_t> indices = Take(shard);
          EXPECT_EQ(static_cast<int64_t>(indices.size()), shard.length());
          shortest = std::min(shortest, shard.length());
          longest = std::max(longest, shard.length());
          for (const int64_t i : indices) ++times[static_cast<size_t>(i)];
        }
        EXPECT_THAT(times, Each(1));
        EXPECT_LE(longest - shortest, 1);
      }
    }
  }
}

TEST(Shard, WithoutShuffleRanksTakeTurns) {
  Shard shard = Make({.size = 7, .rank = 1, .world = 3, .shuffle = false});
  EXPECT_THAT(Take(shard), ElementsAre(1, 4));
}

TEST(Shard, DropLeavesTheRestOut) {
  for (int rank = 0; rank < 3; ++rank) {
    Shard shard = Make({.size = 8, .rank = rank, .world = 3, .tail = Tail::kDrop});
    EXPECT_EQ(Take(shard).size(), 2u);
    EXPECT_EQ(shard.dropped(), 2);
    EXPECT_EQ(shard.padded(), 0);
  }
}

TEST(Shard, PadBeginsAgain) {
  int64_t padded = 0;
  for (int rank = 0; rank < 3; ++rank) {
    Shard shard = Make({.size = 7, .rank = rank, .world = 3, .shuffle = false, .tail = Tail::kPad});
    const std::vector<int64_t> indices = Take(shard);
    ASSERT_EQ(indices.size(), 3u);
    EXPECT_EQ(indices.back(), rank == 0 ? 6 : rank - 1);
    padded += shard.padded();
  }
  EXPECT_EQ(padded, 2);
}

TEST(Shard, ResumesOnAnotherWorldSizeWithNoSampleLostOrSeenTwice) {
  for (const int64_t size : {1, 10, 23, 64}) {
    for (const int first_world : {1, 2, 3, 8}) {
      for (const int second_world : {1, 2, 5}) {
        for (int64_t steps = 0; steps <= size / first_world; ++steps) {
          std::vector<int> times(static_cast<size_t>(size));
          int64_t start = -1;
          for (int rank = 0; rank < first_world; ++rank) {
            Shard shard = Make({.size = size, .rank = rank, .world = first_world, .seed = 9});
            for (const int64_t i : Take(shard, steps)) ++times[static_cast<size_t>(i)];
            start = shard.StartAfter(steps);
          }
          for (int rank = 0; rank < second_world; ++rank) {
            Shard shard = Make(
                {.size = size, .rank = rank, .world = second_world, .seed = 9, .start = start});
            for (const int64_t i : Take(shard)) ++times[static_cast<size_t>(i)];
          }
          ASSERT_THAT(times, Each(1))
              << size << " samples, " << first_world << " then " << second_world << " ranks";
        }
      }
    }
  }
}

TEST(Shard, ErrorsNameTheOption) {
  const auto message = [](const ShardOptions& options) {
    return std::string(Shard::Make(options).status().message());
  };
  EXPECT_THAT(message({.size = -1}), HasSubstr("size must be from 0 to 2^53, not -1"));
  EXPECT_THAT(message({.size = 5, .world = 0}), HasSubstr("world must be at least 1, not 0"));
  EXPECT_THAT(message({.size = 5, .rank = 2, .world = 2}),
              HasSubstr("rank must be from 0 to world - 1 = 1, not 2"));
  EXPECT_THAT(message({.size = 5, .epoch = -1}), HasSubstr("epoch must be at least 0"));
  EXPECT_THAT(message({.size = 5, .start = 6}),
              HasSubstr("start must be from 0 to size = 5, not 6"));
}

}  // namespace
}  // namespace lockstep::sharding
