#include "sharding/agreement/lockstep.h"

#include <atomic>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sharding/testing/thread_collective.h"

namespace lockstep::sharding {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Yields first, first + 1, ... `count` times.
std::function<std::optional<int>()> Count(int count, int first = 0) {
  return [=, i = 0]() mutable -> std::optional<int> {
    if (i == count) return std::nullopt;
    return first + i++;
  };
}

// The way in which one rank left the loop.
struct Exit {
  std::vector<int> batches;
  std::vector<bool> real;
  int64_t steps = 0;
  int64_t filled = 0;
  int64_t dropped = 0;
  absl::Status status;
};

Exit RunLoop(Lockstep<int>& loop, const std::function<void(int64_t step)>& body = nullptr) {
  Exit exit;
  while (true) {
    absl::StatusOr<std::optional<Lockstep<int>::Step>> step = loop.Next();
    if (!step.ok()) {
      exit.status = step.status();
      break;
    }
    if (!step->has_value()) break;
    exit.batches.push_back((*step)->batch);
    exit.real.push_back((*step)->real);
    if (body) body(loop.steps() - 1);
  }
  exit.steps = loop.steps();
  exit.filled = loop.filled();
  if (exit.status.ok()) exit.dropped = loop.CountDropped(1000).value_or(-1);
  return exit;
}

// Every rank of `lengths` iterates so many batches.
std::vector<Exit> RunRanks(const std::vector<int>& lengths, Lockstep<int>::Options options) {
  std::vector<Exit> exits(lengths.size());
  RunAsThreads(static_cast<int>(lengths.size()), [&](Collective& collective) {
    const size_t rank = static_cast<size_t>(collective.rank());
    Lockstep<int> loop(&collective, Count(lengths[rank], 1000 * static_cast<int>(rank)), options);
    exits[rank] = RunLoop(loop);
  });
  return exits;
}

TEST(Lockstep, HeaderExample) {
  std::atomic<int> trained{0};
  RunAsThreads(2, [&](Collective& collective) {
    const auto train = [&]() -> absl::Status {
      Lockstep<int> loop(&collective, Count(collective.rank() == 0 ? 5 : 3));
      while (true) {
        absl::StatusOr<std::optional<Lockstep<int>::Step>> step = loop.Next();
        if (!step.ok()) return step.status();
        if (!step->has_value()) break;
        ++trained;
      }
      return absl::OkStatus();
    };
    EXPECT_TRUE(train().ok());
  });

  EXPECT_EQ(trained, 6);
}

TEST(Lockstep, EveryRankLeavesAtTheShortestRank) {
  const std::vector<Exit> exits = RunRanks({5, 3, 4}, {Policy::kUntilFirst});

  for (const Exit& exit : exits) {
    EXPECT_EQ(exit.steps, 3);
    EXPECT_THAT(exit.real, Each(true));
  }
  EXPECT_EQ(exits[0].dropped, 2);
  EXPECT_EQ(exits[1].dropped, 0);
  EXPECT_EQ(exits[2].dropped, 1);
  EXPECT_THAT(exits[2].batches, ElementsAre(2000, 2001, 2002));
}

TEST(Lockstep, UntilLastRepeatsTheLastBatchOfARankThatRanOut) {
  const std::vector<Exit> exits = RunRanks({2, 4}, {Policy::kUntilLast});

  EXPECT_THAT(exits[0].batches, ElementsAre(0, 1, 1, 1));
  EXPECT_THAT(exits[0].real, ElementsAre(true, true, false, false));
  EXPECT_THAT(exits[1].real, Each(true));
  EXPECT_EQ(exits[0].filled, 2);
  EXPECT_EQ(exits[0].dropped, 0);
}

TEST(Lockstep, UntilLastAsksTheFiller) {
  const auto exits = RunRanks({0, 2}, {Policy::kUntilLast, [](const std::optional<int>& last) {
                                         return last.value_or(-7);
                                       }});

  EXPECT_THAT(exits[0].batches, ElementsAre(-7, -7));
  EXPECT_THAT(exits[0].real, Each(false));
}

TEST(Lockstep, UntilLastFailsOnEveryRankWhereOneHasNothingToRepeat) {
  for (const Exit& exit : RunRanks({0, 2, 0}, {Policy::kUntilLast})) {
    EXPECT_EQ(exit.status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(exit.status.message()),
                AllOf(HasSubstr("ranks {0, 2} have no batch"), HasSubstr("ranks {1} have one")));
  }
}

TEST(Lockstep, OneRankNeedsNoCollective) {
  Lockstep<int> loop(nullptr, Count(3));

  EXPECT_EQ(RunLoop(loop).steps, 3);
  EXPECT_EQ(RunLoop(loop).steps, 3) << "a loop that is over stays over";
}

TEST(Lockstep, AnErrorOfOneRankEndsAllWithThatError) {
  std::vector<absl::Status> statuses(3);
  RunAsThreads(3, [&](Collective& collective) {
    int read = 0;
    Lockstep<int> loop(&collective, [&]() -> std::optional<int> {
      if (collective.rank() == 1 && read == 2) throw std::runtime_error("shard-7.bin is torn");
      return read++;
    });
    statuses[static_cast<size_t>(collective.rank())] = RunLoop(loop).status;
  });

  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
    EXPECT_EQ(status.message(), "sharding: rank 1 failed at step 2: shard-7.bin is torn");
  }
}

TEST(Lockstep, AnythingThatIsThrownEndsAllRanks) {
  std::vector<absl::Status> statuses(2);
  RunAsThreads(2, [&](Collective& collective) {
    Lockstep<int> loop(&collective, [&]() -> std::optional<int> {
      if (collective.rank() == 1) throw 7;
      return 1;
    });
    statuses[static_cast<size_t>(collective.rank())] = RunLoop(loop).status;
  });

  for (const absl::Status& status : statuses) {
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("rank 1 failed at step 0"), HasSubstr("no std::exception")));
  }
}

TEST(Lockstep, DifferentPoliciesAreNamedOnEveryRank) {
  std::vector<absl::Status> statuses(3);
  RunAsThreads(3, [&](Collective& collective) {
    Lockstep<int>::Options options;
    options.policy = collective.rank() == 1 ? Policy::kUntilLast : Policy::kUntilFirst;
    Lockstep<int> loop(&collective, Count(2 + collective.rank()), options);
    statuses[static_cast<size_t>(collective.rank())] = RunLoop(loop).status;
  });

  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("until_first on ranks {0, 2}, until_last on ranks {1}"));
  }
}

TEST(Lockstep, WithoutReadAheadABatchIsReadWhenItIsDue) {
  std::vector<int> reads;
  RunAsThreads(2, [&](Collective& collective) {
    int read = 0;
    Lockstep<int> loop(
        &collective,
        [&]() -> std::optional<int> { return read < 3 ? std::optional(read++) : std::nullopt; },
        {.read_ahead = false});
    const Exit exit = RunLoop(loop, [&](int64_t step) {
      if (collective.rank() == 0) reads.push_back(read);
      EXPECT_EQ(read, step + 1);
    });
    EXPECT_EQ(exit.steps, 3);
  });

  EXPECT_THAT(reads, ElementsAre(1, 2, 3));
}

TEST(Lockstep, RanksMayDifferInReadAhead) {
  std::vector<Exit> exits(2);
  RunAsThreads(2, [&](Collective& collective) {
    const size_t rank = static_cast<size_t>(collective.rank());
    Lockstep<int> loop(&collective, Count(rank == 0 ? 5 : 3), {.read_ahead = rank == 0});
    exits[rank] = RunLoop(loop);
  });

  EXPECT_EQ(exits[0].steps, 3);
  EXPECT_EQ(exits[1].steps, 3);
}

TEST(Lockstep, BatchesMayBeMoveOnly) {
  using Batch = std::unique_ptr<int>;
  std::vector<int> filled(2);
  RunAsThreads(2, [&](Collective& collective) {
    int read = 0;
    Lockstep<Batch>::Options options;
    options.policy = Policy::kUntilLast;
    options.filler = [](const std::optional<Batch>& last) {
      EXPECT_FALSE(last.has_value());
      return std::make_unique<int>(-1);
    };
    Lockstep<Batch> loop(
        &collective,
        [&]() -> std::optional<Batch> {
          if (read == 1 + collective.rank()) return std::nullopt;
          return std::make_unique<int>(read++);
        },
        options);
    while (true) {
      auto step = loop.Next();
      ASSERT_TRUE(step.ok()) << step.status();
      if (!step->has_value()) break;
      if (*(*step)->batch == -1) ++filled[static_cast<size_t>(collective.rank())];
    }
  });

  EXPECT_THAT(filled, ElementsAre(1, 0));
}

TEST(Lockstep, AnEndlessSourceIsNotReadToItsEnd) {
  int read = 0;
  Lockstep<int> loop(nullptr, [&]() -> std::optional<int> { return read++; });
  ASSERT_TRUE(loop.Next().ok());
  loop.Stop();
  while (loop.Next().value().has_value()) continue;

  EXPECT_EQ(loop.CountDropped(20), std::nullopt);
  EXPECT_EQ(loop.CountDropped(20), std::nullopt);
  EXPECT_LE(read, 30);
}

TEST(Lockstep, StopEndsEveryRankAtTheSameStep) {
  std::vector<Exit> exits(2);
  RunAsThreads(2, [&](Collective& collective) {
    Lockstep<int> loop(&collective, Count(100));
    exits[static_cast<size_t>(collective.rank())] = RunLoop(loop, [&](int64_t step) {
      if (collective.rank() == 1 && step == 4) loop.Stop();
    });
  });

  EXPECT_EQ(exits[0].steps, exits[1].steps);
  EXPECT_EQ(exits[0].steps, 6) << "the batch that was agreed on before the stop is still taken";
  EXPECT_EQ(exits[0].dropped, 94);
}

// Without the library: ranks that count alone meet fewer times than they should, and one waits in
// vain.
TEST(Lockstep, WithoutItTheLongerRankWaitsForever) {
  std::vector<absl::Status> statuses(2);
  RunAsThreads(
      2,
      [&](Collective& collective) {
        const auto next = Count(collective.rank() == 0 ? 5 : 3);
        auto iterator = next;
        while (iterator().has_value()) {
          const auto forward = collective.StartAllGather("x")->Wait();
          if (!forward.ok()) statuses[static_cast<size_t>(collective.rank())] = forward.status();
        }
      },
      0.2);

  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(statuses[1].ok());
}

// Returns the number of steps that every rank should see, from the lengths only.
int64_t ExpectedSteps(const std::vector<int>& lengths, Policy policy) {
  const auto [least, most] = std::minmax_element(lengths.begin(), lengths.end());
  return policy == Policy::kUntilFirst ? *least : *most;
}

TEST(Lockstep, AllLengthsOfFourRanks) {
  for (int code = 0; code < 5 * 5 * 5 * 5; ++code) {
    const std::vector<int> lengths = {code % 5, code / 5 % 5, code / 25 % 5, code / 125};
    for (const Policy policy : {Policy::kUntilFirst, Policy::kUntilLast}) {
      const std::vector<Exit> exits =
          RunRanks(lengths, {policy, [](const std::optional<int>&) { return -1; }});
      const int64_t steps = ExpectedSteps(lengths, policy);
      for (size_t rank = 0; rank < 4; ++rank) {
        ASSERT_EQ(exits[rank].steps, steps) << ::testing::PrintToString(lengths);
        ASSERT_EQ(exits[rank].steps - exits[rank].filled + exits[rank].dropped, lengths[rank])
            << "every batch is accounted for";
      }
    }
  }
}

TEST(Lockstep, RandomSchedulesWithErrorsAndStopsEndTogether) {
  const unsigned seed = 20261121;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int c = 0; c < 200; ++c) {
    const size_t size = 2 + random() % 7;
    std::vector<int> lengths(size);
    std::vector<int> fails(size);  // at this batch; beyond the length: never
    std::vector<int> stops(size);
    for (size_t r = 0; r < size; ++r) {
      lengths[r] = static_cast<int>(random() % 51);
      fails[r] = random() % 8 == 0 ? static_cast<int>(random() % 51) : 1000;
      stops[r] = random() % 8 == 0 ? static_cast<int>(random() % 51) : 1000;
    }
    const Policy policy = random() % 2 == 0 ? Policy::kUntilFirst : Policy::kUntilLast;
    std::vector<Exit> exits(size);
    RunAsThreads(static_cast<int>(size), [&](Collective& collective) {
      const size_t rank = static_cast<size_t>(collective.rank());
      auto count = Count(lengths[rank]);
      int read = 0;
      Lockstep<int> loop(&collective,
                         [&]() -> std::optional<int> {
                           if (read++ == fails[rank]) throw std::runtime_error("broken");
                           return count();
                         },
                         {policy, [](const std::optional<int>&) { return -1; }});
      Exit& exit = exits[rank];
      while (true) {
        auto step = loop.Next();
        exit.status = step.status();
        if (!step.ok() || !step->has_value()) break;
        if (loop.steps() - 1 == stops[rank]) loop.Stop();
      }
      exit.steps = loop.steps();
    });
    for (const Exit& exit : exits) {
      ASSERT_EQ(exit.steps, exits[0].steps) << "case " << c;
      ASSERT_EQ(exit.status, exits[0].status) << "case " << c;
    }
  }
}

}  // namespace
}  // namespace lockstep::sharding
