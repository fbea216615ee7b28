#include <algorithm>
#include <latch>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sharding/agreement/gather_texts.h"
#include "sharding/agreement/socket_collective.h"
#include "sharding/testing/socket_ranks.h"

namespace lockstep::sharding {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Returns the bytes that `from` sends to `to`. Every pair, round and place has its own.
std::string Sent(int from, int to, int round, size_t size) {
  std::mt19937 random(static_cast<unsigned>(1000 * round + 10 * from + to));
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

// The memory of one rank in one round: a part for and from each other rank, each in pieces.
struct Memory {
  Memory(int rank, int ranks, int round, size_t size, size_t pieces) {
    for (int other = 0; other < ranks; ++other) {
      to.push_back(other == rank ? "" : Sent(rank, other, round, size));
      from.push_back(std::string(other == rank ? 0 : size, 'x'));
      expected.push_back(other == rank ? "" : Sent(other, rank, round, size));
    }
    parts.to.resize(to.size());
    parts.from.resize(to.size());
    for (size_t other = 0; other < to.size(); ++other) {
      const size_t step = std::max<size_t>(1, to[other].size() / pieces);
      for (size_t begin = 0; begin < to[other].size(); begin += step) {
        const size_t length = std::min(step, to[other].size() - begin);
        parts.to[other].push_back(absl::MakeConstSpan(to[other].data() + begin, length));
        parts.from[other].push_back(absl::MakeSpan(from[other].data() + begin, length));
      }
    }
  }
  std::vector<std::string> to, from, expected;
  Collective::Parts parts;
};

TEST(SocketParts, EachRankGetsThePartThatIsForIt) {
  for (const int ranks : {1, 2, 3, 5}) {
    RunSocketRanks(ranks, [ranks](int rank, CollectivePointer collective) {
      int round = 0;
      for (const size_t size : {0, 1, 1000, 70'000, 3'000'000}) {
        for (const size_t pieces : {1, 3, 150}) {
          Memory memory(rank, ranks, ++round, size, pieces);
          const auto texts = collective->GatherWithParts("gather 7", memory.parts);
          ASSERT_TRUE(texts.ok()) << texts.status();
          EXPECT_THAT(*texts, Each("gather 7"));
          EXPECT_TRUE(memory.from == memory.expected) << "size " << size << ", pieces " << pieces;
        }
      }
    });
  }
}

// Some ranks name other texts, with parts of other sizes, and plain messages lie in between. Each
// rank has the texts of all in every round, and all parts in those without differences.
TEST(SocketParts, DifferentMessagesAndPlainOnesLeaveTheConnectionsInOrder) {
  const unsigned seed = 4711;
  SCOPED_TRACE(seed);
  for (const int ranks : {2, 3, 4}) {
    RunSocketRanks(ranks, [ranks](int rank, CollectivePointer collective) {
      std::mt19937 random(seed);  // the same on every rank
      std::unique_ptr<Collective::Pending> pending;
      for (int round = 0; round < 300; ++round) {
        std::vector<std::string> texts;
        std::vector<size_t> sizes;
        const size_t size = size_t{1} << (random() % 18);
        for (int other = 0; other < ranks; ++other) {
          const bool differs = random() % 6 == 0;
          texts.push_back(differs ? absl::StrCat("turn ", 10 + other) : "turn 99");
          sizes.push_back(!differs ? size : random() % 2 == 0 ? 0 : 3 * size + random() % 100);
        }
        const auto own = static_cast<size_t>(rank);
        Memory memory(rank, ranks, round, sizes[own], 1 + random() % 4);
        const bool starts_ahead = random() % 4 == 0;
        if (starts_ahead) pending = collective->StartAllGather(absl::StrCat(rank));
        const auto got = collective->GatherWithParts(texts[own], memory.parts);
        ASSERT_TRUE(got.ok()) << got.status();
        EXPECT_EQ(*got, texts) << "round " << round;
        const bool all_alike = std::count(texts.begin(), texts.end(), texts[0]) == ranks;
        EXPECT_TRUE(!all_alike || memory.from == memory.expected) << "round " << round;
        if (random() % 3 == 0) {
          const std::string text(size, 'a');
          EXPECT_THAT(*GatherTexts(*collective, text), Each(text));
        }
        if (starts_ahead) {
          EXPECT_EQ((*pending->Wait())[0], "0");
        }
      }
    });
  }
}

TEST(SocketParts, PartsOfDifferentSizesUnderOneMessageAreAnErrorOnEveryRank) {
  RunSocketRanks(3, [](int rank, CollectivePointer collective) {
    Memory memory(rank, 3, 0, rank == 2 ? 40 : 30, 1);
    const absl::Status status = collective->GatherWithParts("turn", memory.parts).status();

    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(rank == 2 ? "rank 0 sent 34 bytes where rank 2 sent 44"
                                    : absl::StrCat("rank 2 sent 44 bytes where rank ", rank)));
    EXPECT_THAT(*collective->StartAllGather("x")->Wait(), ElementsAre("x", "x", "x"));
  });
}

// A rank that is in another call sends a message of another size.
TEST(SocketParts, AnotherCallOfARankIsAnError) {
  RunSocketRanks(2, [](int rank, CollectivePointer collective) {
    Memory memory(rank, 2, 0, 100, 1);
    const absl::Status status = rank == 0
                                    ? collective->GatherWithParts("a turn", memory.parts).status()
                                    : collective->StartAllGather("x")->Wait().status();

    EXPECT_THAT(std::string(status.message()),
                HasSubstr(rank == 0 ? "rank 1 sent 1 bytes where rank 0 sent 106"
                                    : "rank 0 sent 106 bytes where rank 1 sent 1"));
  });
}

TEST(SocketParts, ARankThatIsGoneIsNamed) {
  for (const size_t size : {10, 8'000'000}) {
    std::latch both_know(2);  // a survivor that ends first would be taken for the lost rank
    RunSocketRanks(3, [&](int rank, CollectivePointer collective) {
      if (rank == 1) return;
      Memory memory(rank, 3, 0, size, 1);
      const absl::Status status = collective->GatherWithParts("turn", memory.parts).status();
      both_know.arrive_and_wait();
      EXPECT_EQ(status.message(),
                absl::StrCat("sharding: rank 1 was lost: it closed its connection to rank ", rank));
    });
  }
}

// Rank 0 gives up in the middle of its part. The others still find a whole message, and the next.
TEST(SocketParts, AnErrorLeavesNoHalfMessage) {
  std::latch rank_0_has_given_up(1), others_are_done(2);
  RunSocketRanks(3,
                 [&](int rank, CollectivePointer collective) {
                   const size_t size = 16'000'000;  // more than the kernel's buffers hold
                   Memory memory(rank, 3, 0, size, 2);
                   if (rank != 0) rank_0_has_given_up.wait();
                   const absl::Status first =
                       collective->GatherWithParts("turn", memory.parts).status();
                   if (rank == 0) {
                     EXPECT_EQ(first.code(), absl::StatusCode::kDeadlineExceeded);
                     rank_0_has_given_up.count_down();
                     absl::Status next = absl::DeadlineExceededError("");
                     for (auto pending = collective->StartAllGather("next");
                          next.code() == absl::StatusCode::kDeadlineExceeded;)
                       next = pending->Wait().status();
                     EXPECT_TRUE(next.ok()) << next;
                     return others_are_done.wait();
                   }
                   EXPECT_TRUE(first.ok()) << first;
                   EXPECT_TRUE(memory.from == memory.expected);
                   EXPECT_THAT(*collective->StartAllGather("next")->Wait(), Each("next"));
                   others_are_done.count_down();
                 },
                 {absl::Milliseconds(500), absl::Seconds(60)});
}

TEST(SocketParts, RanksThatDoNotComeAreNamedInTime) {
  std::latch rank_0_is_done(1);
  RunSocketRanks(3,
                 [&](int rank, CollectivePointer collective) {
                   if (rank != 0) return rank_0_is_done.wait();
                   Memory memory(rank, 3, 0, 100, 1);
                   const absl::Status status =
                       collective->GatherWithParts("turn", memory.parts).status();
                   EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
                   EXPECT_THAT(std::string(status.message()),
                               HasSubstr("has waited 500ms for ranks that have not come: 1, 2"));
                   rank_0_is_done.count_down();
                 },
                 {absl::Milliseconds(500)});
}

}  // namespace
}  // namespace lockstep::sharding
