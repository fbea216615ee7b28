// Tests gathering in rounds, which larger groups do, with few ranks.

#include <algorithm>
#include <atomic>
#include <bit>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sharding/agreement/gather_texts.h"
#include "sharding/agreement/socket_collective.h"
#include "sharding/testing/socket_ranks.h"

namespace lockstep::sharding {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

void RunInRounds(int size, const std::function<void(int, CollectivePointer)>& body,
                 const std::vector<absl::Duration>& timeouts = {absl::Seconds(20)},
                 const std::vector<int>& ranks = {}) {
  RunSocketRanks(size, body, timeouts, ranks, "127.0.0.1", /*most_at_once=*/1);
}

TEST(Rounds, GatherInTheOrderOfRanksForEverySize) {
  for (int size = 2; size <= 17; ++size) {
    RunInRounds(size, [size](int rank, CollectivePointer collective) {
      EXPECT_FALSE(collective->CanMoveParts());
      std::mt19937 random(static_cast<unsigned>(size));
      for (int step = 0; step < 30; ++step) {
        const size_t length = random() % 40;
        const auto of = [&](int other) {
          return std::string(length, static_cast<char>('a' + (other + step) % 26));
        };
        const auto all = collective->StartAllGather(of(rank))->Wait();
        ASSERT_TRUE(all.ok()) << all.status();
        ASSERT_THAT(*all, SizeIs(size));
        for (int other = 0; other < size; ++other)
          EXPECT_EQ((*all)[static_cast<size_t>(other)], of(other)) << size << " ranks";
      }
    });
  }
}

// The positions that a rank asks for are those that it is connected to.
TEST(Rounds, ConnectARankToTwoForEachRound) {
  for (const int size : {65, 100, 128, 1000, 16'384}) {
    size_t asked = 0;
    const auto exchange =
        [&](const std::string&,
            const std::vector<int>& positions) -> absl::StatusOr<std::vector<std::string>> {
      asked = positions.size();
      EXPECT_TRUE(std::is_sorted(positions.begin(), positions.end()));
      return absl::AbortedError("enough");
    };
    const auto status =
        SocketCollective::Connect(size / 3, size, "127.0.0.1", exchange, absl::Seconds(1));
    EXPECT_EQ(status.status().message(), "enough");
    EXPECT_LE(asked, 2 * std::bit_width(static_cast<size_t>(size) - 1));
    EXPECT_GE(asked, std::bit_width(static_cast<size_t>(size) - 1));
  }
}

TEST(Rounds, SeveralMayBeUnderWayAndBeWaitedForInAnyOrder) {
  RunInRounds(5, [](int rank, CollectivePointer collective) {
    auto first = collective->StartAllGather(absl::StrCat("a", rank));
    auto second = collective->StartAllGather(absl::StrCat("b", rank));
    auto given_up = collective->StartAllGather("x");
    given_up.reset();
    auto third = collective->StartAllGather(absl::StrCat("c", rank));

    EXPECT_THAT(*second->Wait(), ElementsAre("b0", "b1", "b2", "b3", "b4"));
    EXPECT_THAT(*first->Wait(), ElementsAre("a0", "a1", "a2", "a3", "a4"));
    EXPECT_THAT(*third->Wait(), ElementsAre("c0", "c1", "c2", "c3", "c4"));
  });
}

TEST(Rounds, LargeTextsOfDifferentLengthsDoNotBlockEachOther) {
  RunInRounds(6, [](int rank, CollectivePointer collective) {
    const auto of = [](int other) {
      return std::string(static_cast<size_t>(other) << 18, static_cast<char>('a' + other));
    };
    const auto all = GatherTexts(*collective, of(rank));
    ASSERT_TRUE(all.ok()) << all.status();
    for (int other = 0; other < 6; ++other)
      EXPECT_TRUE((*all)[static_cast<size_t>(other)] == of(other));
  });
}

// Ranks end as soon as they have the error, and close connections that others wait at.
TEST(Rounds, EveryRankNamesTheOneThatIsGone) {
  for (const int lost : {0, 3, 8}) {
    RunInRounds(9, [lost](int rank, CollectivePointer collective) {
      ASSERT_TRUE(collective->StartAllGather("x")->Wait().ok());
      if (rank == lost) return;
      const absl::Status status = collective->StartAllGather("x")->Wait().status();
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr(absl::StrCat("sharding: rank ", lost, " was lost: it closed its")));
      // It stays so.
      EXPECT_EQ(collective->StartAllGather("x")->Wait().status(), status);
    });
  }
}

TEST(Rounds, EveryRankNamesTheOneThatDoesNotCome) {
  std::atomic<int> left = 10;
  RunInRounds(11,
              [&](int rank, CollectivePointer collective) {
                if (rank == 6) {
                  while (left > 0) std::this_thread::yield();
                  return;
                }
                const absl::Status status = collective->StartAllGather("x")->Wait().status();
                --left;
                EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
                EXPECT_EQ(std::string(status.message()),
                          "sharding: rank 7 has waited 500ms for ranks that have not come: 6");
              },
              {absl::Milliseconds(500)});
}

TEST(Rounds, ErrorsNameRanksOfTheWorld) {
  const std::vector<int> ranks = {4, 6, 9};
  RunInRounds(
      3,
      [&](int position, CollectivePointer collective) {
        const int rank = ranks[static_cast<size_t>(position)];
        const auto all =
            collective->StartAllGather(std::string(static_cast<size_t>(rank), 'x'))->Wait();
        EXPECT_EQ(all.status().code(), absl::StatusCode::kFailedPrecondition);
        EXPECT_THAT(std::string(all.status().message()),
                    HasSubstr(rank == 4 ? "rank 6 sent 6 bytes where rank 4 sent 4"
                                        : absl::StrCat("rank 4 sent 4 bytes where rank ", rank)));
        if (rank == 6) return;
        EXPECT_THAT(std::string(collective->StartAllGather("x")->Wait().status().message()),
                    HasSubstr("rank 6 was lost"));
      },
      {absl::Seconds(20)}, ranks);
}

TEST(Rounds, AWaitIsInterruptedOnRequest) {
  std::atomic<bool> has_left = false;
  RunInRounds(3, [&](int rank, CollectivePointer collective) {
    if (rank == 2) {
      while (!has_left) std::this_thread::yield();
      return;
    }
    if (rank == 1) return;
    collective->InterruptWhen([] { return true; });
    EXPECT_EQ(collective->StartAllGather("x")->Wait().status().code(),
              absl::StatusCode::kCancelled);
    has_left = true;
  });
}

}  // namespace
}  // namespace lockstep::sharding
