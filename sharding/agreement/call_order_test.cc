#include "sharding/agreement/call_order.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sharding/testing/thread_collective.h"

namespace lockstep::sharding {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(CallOrder, HeaderExample) {
  RunAsThreads(2, [](Collective& collective) {
    CallOrder order(&collective, "world");
    EXPECT_TRUE(order.Check({"barrier", "train.cc:39"}).ok());
    EXPECT_TRUE(order.Check({"all_reduce float32 {4} sum", "train.cc:40"}).ok());

    const absl::Status status =
        collective.rank() == 0 ? order.Check({"all_reduce float32 {4} sum", "train.cc:41"})
                               : order.Check({"broadcast float32 {4} from rank 0", "train.cc:52"});

    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()),
                StartsWith("the ranks call different collectives, each as its collective 3 of "
                           "world:\n"
                           "  rank 0: all_reduce float32 {4} sum (train.cc:41)\n"
                           "  rank 1: broadcast float32 {4} from rank 0 (train.cc:52)\n"));
  });
}

// One mean too many on rank 0, of the same shape as the means of the loop behind it.
TEST(CallOrder, TheSameCallAtAnotherPlaceIsAnother) {
  RunAsThreads(3, [](Collective& collective) {
    CallOrder order(&collective, "world");
    const std::string place = collective.rank() == 0 ? "train.lua:8" : "train.lua:9";

    const absl::Status status = order.Check({"all_reduce float64 {2} sum", place});

    EXPECT_THAT(std::string(status.message()),
                HasSubstr("\n  rank 0: all_reduce float64 {2} sum (train.lua:8)"
                          "\n  rank 1: all_reduce float64 {2} sum (train.lua:9)"
                          "\n  rank 2: all_reduce float64 {2} sum (train.lua:9)"));
  });
}

TEST(CallOrder, ACallWithDifferentPartsMayStandAtSeveralPlaces) {
  RunAsThreads(2, [](Collective& collective) {
    CallOrder order(&collective, "world");
    const std::string place = absl::StrCat("train.lua:", collective.rank());

    EXPECT_TRUE(order.Check({"broadcast float32 {4} from rank 0", place, false}).ok());
    EXPECT_FALSE(
        order.Check({absl::StrCat("broadcast from rank ", collective.rank()), place, false}).ok());
  });
}

TEST(CallOrder, AnnouncedCallsAreComparedByTheNextCheck) {
  RunAsThreads(2, [](Collective& collective) {
    CallOrder order(&collective, "ranks 0, 1");
    for (int i = 0; i < 1000; ++i) ASSERT_TRUE(order.Announce({"bucket", "train.lua:9"}).ok());
    ASSERT_TRUE(order.Check({"barrier", ""}).ok());

    // Rank 1 goes into a backward pass, rank 0 into a collective of the script.
    if (collective.rank() == 1) {
      EXPECT_TRUE(order.Announce({"bucket", "train.lua:9"}).ok());
      return;
    }
    EXPECT_THAT(std::string(order.Check({"all_reduce", "train.lua:8"}).message()),
                HasSubstr("each as its collective 1002 of ranks 0, 1:\n"
                          "  rank 0: all_reduce (train.lua:8)\n"
                          "  rank 1: bucket (train.lua:9)\n"));
  });
}

TEST(CallOrder, AGatheringIsACallThatCarriesBytes) {
  RunAsThreads(3, [](Collective& collective) {
    CallOrder order(&collective, "world");
    const auto bytes_of = [](int rank) { return std::string(static_cast<size_t>(rank) * 15, 'x'); };
    const auto gathering = order.StartGather({"loop", "train.lua:3"}, bytes_of(collective.rank()));
    ASSERT_TRUE(order.Announce({"bucket", "train.lua:4"}).ok());
    ASSERT_TRUE(order.Check({"barrier", "train.lua:5"}).ok());  // which compares the gathering, too
    const auto other = order.StartGather({"save", "train.lua:6"}, "");

    EXPECT_EQ(gathering->Wait().value(),
              (std::vector<std::string>{bytes_of(0), bytes_of(1), bytes_of(2)}));
    EXPECT_EQ(other->Wait().value(), std::vector<std::string>(3));
  });
}

// Rank 1 catches the error of its second call, which had an invalid argument, and goes on.
TEST(CallOrder, ARefusedCallCountsSoThatLaterCallsMeetTheirOwn) {
  RunAsThreads(3, [](Collective& collective) {
    CallOrder order(&collective, "world");
    const CallOrder::Call mean = {"all_reduce float64 {2} sum", "train.lua:8"};
    for (int step = 1; step <= 4; ++step) {
      if (collective.rank() == 1 && step == 2) {
        order.Refuse({"all_reduce, refused: the count is nil", "train.lua:8"});
        continue;
      }
      const absl::Status status = order.Check(mean);
      if (collective.rank() == 1 || step != 2) {
        EXPECT_TRUE(status.ok()) << status;
      } else {
        EXPECT_THAT(std::string(status.message()),
                    HasSubstr("each as its collective 2 of world:\n"
                              "  rank 0: all_reduce float64 {2} sum (train.lua:8)\n"
                              "  rank 1: all_reduce, refused: the count is nil (train.lua:8)\n"
                              "  rank 2: all_reduce float64 {2} sum (train.lua:8)\n"));
      }
    }
  });
}

TEST(CallOrder, CallsThatAllRanksRefuseDisturbNoLaterOne) {
  RunAsThreads(2, [](Collective& collective) {
    CallOrder order(&collective, "world");
    for (int i = 0; i < 3; ++i)
      order.Refuse({absl::StrCat("refused by rank ", collective.rank()), "train.lua:8"});

    EXPECT_TRUE(order.Announce({"bucket", "train.lua:9"}).ok());
    EXPECT_TRUE(order.Check({"barrier", "train.lua:10"}).ok());
  });
}

// The rank that refuses may be the one that waits for the other's next call.
TEST(CallOrder, TheRankThatRefusedMeetsAGatheringOfTheOthers) {
  RunAsThreads(2, [](Collective& collective) {
    CallOrder order(&collective, "world");
    if (collective.rank() == 0) {
      order.Refuse({"run:finite, refused", "train.lua:8"});
      EXPECT_EQ(order.StartGather({"run:steps", "train.lua:7", false}, "g")->Wait().value(),
                (std::vector<std::string>{"g", "h"}));
    } else {
      EXPECT_FALSE(order.StartGather({"run:finite", "train.lua:8", false}, "ok")->Wait().ok());
      EXPECT_TRUE(order.StartGather({"run:steps", "train.lua:7", false}, "h")->Wait().ok());
    }
  });
}

// Rank 0 alone saves, as scripts of other libraries do; the others wait for its next batch.
TEST(CallOrder, RanksInDifferentGatheringsDetectIt) {
  RunAsThreads(2, [](Collective& collective) {
    CallOrder order(&collective, "world");
    const auto gathering =
        collective.rank() == 0
            ? order.StartGather({"models.save", "train.lua:8", false}, "0123456789")
            : order.StartGather({"sharding.lockstep", "train.lua:5", false}, "b");

    EXPECT_THAT(std::string(gathering->Wait().status().message()),
                HasSubstr("each as its collective 1 of world:\n"
                          "  rank 0: models.save (train.lua:8)\n"
                          "  rank 1: sharding.lockstep (train.lua:5)\n"));
    EXPECT_FALSE(gathering->Wait().ok());
  });
}

TEST(CallOrder, LongTextsAreComparedWhollyAndShownWithTheirLine) {
  RunAsThreads(2, [](Collective& collective) {
    CallOrder order(&collective, "world");
    std::string what(1000, 'x');
    EXPECT_TRUE(order.Check({what, "train.lua:9"}).ok());
    what.back() = static_cast<char>('a' + collective.rank());

    const absl::Status status = order.Check({what, "train.lua:10"});

    EXPECT_THAT(std::string(status.message()), HasSubstr("xxx... (train.lua:10)\n  rank 1: xxx"));
  });
}

TEST(CallOrder, ARankThatDoesNotComeIsTheCollectivesError) {
  RunAsThreads(
      2,
      [](Collective& collective) {
        if (collective.rank() == 1) return;
        CallOrder order(&collective, "world");
        EXPECT_EQ(order.Check({"barrier", "train.lua:3"}).message(),
                  "collective 1 of world, barrier (train.lua:3): only 1 of 2 ranks came");
      },
      0.1);
}

}  // namespace
}  // namespace lockstep::sharding
