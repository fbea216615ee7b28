#include "mimo/batch/reads.h"

#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::mimo {
namespace {

using ::testing::HasSubstr;

Reads Plan(const std::vector<int64_t>& dp_sizes, const ReadOptions& options) {
  absl::StatusOr<Reads> reads = PlanReads(dp_sizes, options);
  EXPECT_TRUE(reads.ok()) << reads.status();
  return *reads;
}

TEST(PlanReads, HeaderExample) {
  const Reads reads = Plan({3, 2}, {.micro_batch_size = 12, .num_samples = 54});

  EXPECT_EQ(reads.num_groups, 6);
  EXPECT_EQ(reads.samples_per_group, 2);
  EXPECT_EQ(reads.num_micro_batches, 4);
  EXPECT_EQ(*PositionsOf(reads, 1, {.dp_rank = 2, .dp_size = 3}), (Range{20, 24}));
}

// Section 2.6 of the report: 54 samples, micro-batches of 8, a grid of 4: each group has 6 windows.
TEST(PlanReads, EveryGroupHasAsManyWindows) {
  const Reads reads = Plan({4, 2}, {.micro_batch_size = 8, .num_samples = 54});

  EXPECT_EQ(reads.num_micro_batches, 6);
  for (int64_t group = 0; group < 4; ++group) {
    EXPECT_EQ(PositionsOf(reads, 5, {group, 4})->size(), 2);
    EXPECT_EQ(PositionsOf(reads, 6, {group, 4}).status().code(), absl::StatusCode::kOutOfRange);
  }
}

TEST(PlanReads, ReplicasOfEveryModuleReadTheMicroBatchInItsOrder) {
  const std::vector<int64_t> dp_sizes = {1, 2, 3, 4, 6};
  const Reads reads = Plan(dp_sizes, {.micro_batch_size = 24, .num_samples = 100});

  for (int64_t dp_size : dp_sizes) {
    int64_t next = 0;
    for (int64_t m = 0; m < reads.num_micro_batches; ++m) {
      for (int64_t dp_rank = 0; dp_rank < dp_size; ++dp_rank) {
        const Range positions = *PositionsOf(reads, m, {dp_rank, dp_size});
        EXPECT_EQ(positions.begin, next);
        next = positions.end;
      }
    }
    EXPECT_EQ(next, 96) << dp_size;
  }
}

// A rank reads the samples that its module would have kept of the whole micro-batch, so they are
// not cut again.
TEST(PlanReads, IsWhatSlicingWouldKeep) {
  const Reads reads = Plan({3, 2}, {.micro_batch_size = 6, .num_samples = 6});

  for (int64_t dp_size : {2, 3}) {
    for (int64_t dp_rank = 0; dp_rank < dp_size; ++dp_rank) {
      EXPECT_EQ(*PositionsOf(reads, 0, {dp_rank, dp_size}), *SamplesOfShard(6, dp_rank, dp_size));
    }
  }
}

TEST(PlanReads, AModuleReadsEachSampleOnceInsteadOfOnceForEachReplica) {
  const Reads reads = Plan({8, 1}, {.micro_batch_size = 16, .num_samples = 16});

  int64_t read = 0;
  for (int64_t dp_rank = 0; dp_rank < 8; ++dp_rank) {
    read += PositionsOf(reads, 0, {dp_rank, 8})->size();
  }

  EXPECT_EQ(read, 16);  // by default each of the 8 replicas reads all 16
}

TEST(PlanReads, ATopologyGivesTheSizesOfAllModules) {
  const absl::StatusOr<Topology> topology = Topology::Make(
      5, {{.name = "vision", .dp = 3}, {.name = "language", .dp = 2, .first_rank = 3}});

  EXPECT_EQ(PlanReads(*topology, {.micro_batch_size = 6, .num_samples = 6})->num_groups, 6);
}

TEST(PlanReads, OneReplicaReadsAll) {
  const Reads reads = Plan({1}, {.micro_batch_size = 1, .num_samples = 1});

  EXPECT_EQ(*PositionsOf(reads, 0, {0, 1}), (Range{0, 1}));
}

TEST(PlanReads, ErrorsNameEachRule) {
  const auto message = [](const std::vector<int64_t>& dp_sizes, const ReadOptions& options) {
    return std::string(PlanReads(dp_sizes, options).status().message());
  };

  EXPECT_EQ(
      message({2, 3}, {.micro_batch_size = 8, .num_samples = 8}),
      "mimo: reads: micro_batch_size 8 is not divisible by 6, the least common multiple of the dp"
      " sizes; use 6 or 12");
  EXPECT_EQ(message({}, {.micro_batch_size = 1, .num_samples = 1}),
            "mimo: reads: there is no dp size");
  EXPECT_EQ(message({0}, {.micro_batch_size = 1, .num_samples = 1}),
            "mimo: reads: a dp size is 0; it must be positive");
  EXPECT_EQ(message({1}, {.micro_batch_size = 4, .num_samples = 3}),
            "mimo: reads: the dataset has 3 samples, less than the micro_batch_size 4");
  EXPECT_THAT(message({1}, {.micro_batch_size = 1, .num_samples = 1, .drop_last = false}),
              HasSubstr("drop_last is false"));
  EXPECT_THAT(message({1}, {.micro_batch_size = 0, .num_samples = 1}),
              HasSubstr("micro_batch_size is 0; it must be positive"));
  EXPECT_THAT(message({(int64_t{1} << 61) - 1, (int64_t{1} << 61) - 3},
                      {.micro_batch_size = 1, .num_samples = 1}),
              HasSubstr("exceeds 64 bits"));
  EXPECT_THAT(message({}, {.micro_batch_size = 0, .num_samples = -1, .drop_last = false}),
              HasSubstr("4 rules are broken:"));
}

TEST(GroupsOf, ErrorsNameTheReplica) {
  const Reads reads = Plan({4}, {.micro_batch_size = 8, .num_samples = 8});

  EXPECT_EQ(*GroupsOf(reads, {1, 2}), (Range{2, 4}));
  EXPECT_EQ(GroupsOf(reads, {0, 3}).status().message(),
            "mimo: dp_size 3 does not divide the grid of 4 groups of these reads");
  EXPECT_EQ(GroupsOf(reads, {2, 2}).status().message(),
            "mimo: dp_rank is 2; with dp_size 2 it is from 0 to 1");
  EXPECT_FALSE(GroupsOf(reads, {0, 0}).ok());
  EXPECT_FALSE(PositionsOf(reads, 0, {-1, 2}).ok());
}

}  // namespace
}  // namespace lockstep::mimo
