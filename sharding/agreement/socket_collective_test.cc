#include "sharding/agreement/socket_collective.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <latch>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sharding/agreement/agreement.h"
#include "sharding/testing/socket_ranks.h"

namespace lockstep::sharding {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// IPv4's loopback address, and IPv6's where this machine has it.
std::vector<std::string> LoopbackAddresses() {
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_addr = in6addr_loopback;
  const int fd = socket(AF_INET6, SOCK_STREAM, 0);
  const bool has_v6 = fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&v6), sizeof(v6)) == 0;
  if (fd >= 0) close(fd);
  return has_v6 ? std::vector<std::string>{"127.0.0.1", "::1"}
                : std::vector<std::string>{"127.0.0.1"};
}

TEST(SocketCollective, MeetsOverBothFamiliesOfAddresses) {
  for (const std::string& address : LoopbackAddresses()) {
    RunSocketRanks(
        3,
        [](int rank, CollectivePointer collective) {
          const auto all = collective->StartAllGather(absl::StrCat(rank))->Wait();
          ASSERT_TRUE(all.ok()) << all.status();
          EXPECT_EQ(*all, (std::vector<std::string>{"0", "1", "2"}));
        },
        {absl::Seconds(20)}, {}, address);
  }
}

TEST(SocketCollective, GathersInTheOrderOfRanks) {
  for (const int size : {1, 2, 5}) {
    RunSocketRanks(size, [size](int rank, CollectivePointer collective) {
      EXPECT_EQ(collective->rank(), rank);
      EXPECT_EQ(collective->size(), size);
      for (int step = 0; step < 100; ++step) {
        const auto all = collective->StartAllGather(absl::StrCat(rank, step % 10))->Wait();
        ASSERT_TRUE(all.ok()) << all.status();
        for (int other = 0; other < size; ++other)
          EXPECT_EQ((*all)[static_cast<size_t>(other)], absl::StrCat(other, step % 10));
      }
    });
  }
}

TEST(SocketCollective, SeveralMayBeUnderWayAndBeWaitedForInAnyOrder) {
  RunSocketRanks(3, [](int rank, CollectivePointer collective) {
    auto first = collective->StartAllGather(absl::StrCat("a", rank));
    auto second = collective->StartAllGather(absl::StrCat("b", rank));
    auto given_up = collective->StartAllGather("x");
    given_up.reset();
    auto third = collective->StartAllGather(absl::StrCat("c", rank));

    EXPECT_THAT(*second->Wait(), ElementsAre("b0", "b1", "b2"));
    EXPECT_THAT(*first->Wait(), ElementsAre("a0", "a1", "a2"));
    EXPECT_THAT(*third->Wait(), ElementsAre("c0", "c1", "c2"));
  });
}

// More than the kernel's buffers hold, from every rank at once.
TEST(SocketCollective, LargeTextsDoNotBlockEachOther) {
  RunSocketRanks(3, [](int rank, CollectivePointer collective) {
    const std::string own(size_t{16} << 20, static_cast<char>('a' + rank));
    const auto all = collective->StartAllGather(own)->Wait();
    ASSERT_TRUE(all.ok()) << all.status();
    for (int other = 0; other < 3; ++other)
      EXPECT_TRUE((*all)[static_cast<size_t>(other)] ==
                  std::string(own.size(), static_cast<char>('a' + other)));
  });
}

// A rank does not wait when it starts: only the answer is waited for.
TEST(SocketCollective, StartingDoesNotWait) {
  std::promise<void> rank_0_has_started;
  std::future<void> started = rank_0_has_started.get_future();
  RunSocketRanks(2, [&](int rank, CollectivePointer collective) {
    if (rank == 1) started.wait();
    auto pending = collective->StartAllGather("x");
    if (rank == 0) rank_0_has_started.set_value();
    EXPECT_TRUE(pending->Wait().ok());
  });
}

TEST(SocketCollective, ARankThatIsGoneIsNamed) {
  std::latch both_know(2);  // a survivor that ends first would be taken for the lost rank
  RunSocketRanks(3, [&](int rank, CollectivePointer collective) {
    if (rank == 1) return;
    const absl::Status status = collective->StartAllGather("x")->Wait().status();
    both_know.arrive_and_wait();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(status.message(),
              absl::StrCat("sharding: rank 1 was lost: it closed its connection to rank ", rank));
  });
}

TEST(SocketCollective, MessagesOfARankThatHasLeftArrive) {
  std::latch rank_1_is_gone(1);
  RunSocketRanks(2, [&](int rank, CollectivePointer collective) {
    auto pending = collective->StartAllGather(absl::StrCat(rank));
    if (rank == 1) {
      pending.reset();
      collective.reset();  // closes its connection
      rank_1_is_gone.count_down();
      return;
    }
    rank_1_is_gone.wait();
    EXPECT_THAT(*pending->Wait(), ElementsAre("0", "1"));
  });
}

// A group goes by its ranks of the world, whatever their positions are.
TEST(SocketCollective, MessagesNameRanksOfTheWorld) {
  const std::vector<int> ranks = {4, 6, 9};
  std::latch both_know(2);
  RunSocketRanks(
      3,
      [&](int position, CollectivePointer collective) {
        const int rank = ranks[static_cast<size_t>(position)];
        EXPECT_EQ(collective->WorldRank(position), rank);
        const auto all =
            collective->StartAllGather(std::string(static_cast<size_t>(rank), 'x'))->Wait();
        EXPECT_THAT(std::string(all.status().message()),
                    HasSubstr(rank == 4 ? "rank 6 sent 6 bytes where rank 4 sent 4"
                                        : absl::StrCat("rank 4 sent 4 bytes where rank ", rank)));
        if (rank == 6) return;
        const absl::Status lost = collective->StartAllGather("x")->Wait().status();
        both_know.arrive_and_wait();
        EXPECT_EQ(
            lost.message(),
            absl::StrCat("sharding: rank 6 was lost: it closed its connection to rank ", rank));
      },
      {absl::Seconds(20)}, ranks);
}

// An agreement over such a group, too.
TEST(SocketCollective, AnAgreementNamesTheRankThatFailed) {
  const std::vector<int> ranks = {4, 6};
  RunSocketRanks(
      2,
      [&](int position, CollectivePointer collective) {
        Agreement failed(collective.get(), Policy::kUntilFirst);
        failed.MakeOffer(position == 1 ? Offer{Has::kError, "no such file"}
                                       : Offer{Has::kBatch, ""});
        EXPECT_EQ(failed.Decide().status().message(),
                  "sharding: rank 6 failed at step 0: no such file");

        Agreement without_filler(collective.get(), Policy::kUntilLast);
        without_filler.MakeOffer({position == 1 ? Has::kNothing : Has::kBatch, ""});
        EXPECT_THAT(std::string(without_filler.Decide().status().message()),
                    HasSubstr("ranks {6} have no batch at all to repeat, while ranks {4} have"));
      },
      {absl::Seconds(20)}, ranks);
}

TEST(SocketCollective, RanksThatDoNotComeAreNamedInTime) {
  std::promise<void> done;
  std::shared_future<void> rank_0_is_done = done.get_future().share();
  RunSocketRanks(3,
                 [&](int rank, CollectivePointer collective) {
                   if (rank != 0) return rank_0_is_done.wait();
                   const absl::Status status = collective->StartAllGather("x")->Wait().status();
                   EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
                   EXPECT_THAT(std::string(status.message()),
                               HasSubstr("has waited 500ms for ranks that have not come: 1, 2"));
                   done.set_value();
                 },
                 {absl::Milliseconds(500)});
}

TEST(SocketCollective, AWaitIsInterruptedOnRequestAndOnlyThen) {
  std::latch has_left(1);
  RunSocketRanks(2, [&](int rank, CollectivePointer collective) {
    if (rank == 1) {
      has_left.wait();
      return;
    }
    int asked = 0;
    collective->InterruptWhen([&] { return ++asked == 3; });
    const absl::Status status = collective->StartAllGather("x")->Wait().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
    EXPECT_THAT(status.message(), HasSubstr("waiting for ranks 1"));
    EXPECT_EQ(asked, 3);
    has_left.count_down();
  });
}

TEST(SocketCollective, AmountsThatDifferAreAnError) {
  RunSocketRanks(2, [](int rank, CollectivePointer collective) {
    const auto all = collective->StartAllGather(rank == 0 ? "four" : "seven..")->Wait();
    EXPECT_EQ(all.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(all.status().message()),
                HasSubstr(rank == 0 ? "rank 1 sent 7 bytes where rank 0 sent 4"
                                    : "rank 0 sent 4 bytes where rank 1 sent 7"));
  });
}

TEST(SocketCollective, AMeetingThatARankMissesNamesIt) {
  const auto exchange =
      [](const std::string&,
         const std::vector<int>& positions) -> absl::StatusOr<std::vector<std::string>> {
    return std::vector<std::string>(positions.size(), "127.0.0.1 1 0");
  };
  const auto missed =
      SocketCollective::Connect(0, 3, "127.0.0.1", exchange, absl::Milliseconds(200));
  EXPECT_THAT(std::string(missed.status().message()), HasSubstr("have not come: 1, 2"));

  // Ranks of a group go by their own numbers.
  const auto of_group =
      SocketCollective::Connect(0, 3, "127.0.0.1", exchange, absl::Milliseconds(200), {4, 6, 7});
  EXPECT_THAT(std::string(of_group.status().message()), HasSubstr("have not come: 6, 7"));

  const auto unreachable = SocketCollective::Connect(1, 2, "127.0.0.1", exchange, absl::Seconds(5));
  EXPECT_THAT(std::string(unreachable.status().message()),
              HasSubstr("cannot reach rank 0 at 127.0.0.1 1: Connection refused"));
}

}  // namespace
}  // namespace lockstep::sharding
