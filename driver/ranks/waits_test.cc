#include "driver/ranks/waits.h"

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::driver {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::StartsWith;

using Waits = std::vector<std::optional<RankWait>>;

// A wait for the call `number` of a group. `come`: how far this rank is in each group.
RankWait WaitIn(const std::string& group, int64_t number, std::vector<int> ranks,
                std::map<std::string, int64_t> come) {
  come[group] = number;
  return {group,          number, group, std::move(ranks), absl::StrCat("barrier of ", group),
          std::move(come)};
}

TEST(FindCircle, HeaderExample) {
  Waits waits = {WaitIn("world", 3, {0, 1}, {{"model", 8}}),
                 WaitIn("model", 9, {0, 1}, {{"world", 2}})};
  waits[0]->text = "all_reduce {3} of world (train.lua:9)";
  waits[1]->text = "agreement of model (train.lua:7)";

  const std::vector<int> circle = FindCircle(waits);

  EXPECT_THAT(circle, ElementsAre(0, 1));
  EXPECT_THAT(DescribeWaits(circle, waits),
              StartsWith("rank 0 waits for rank 1 in all_reduce {3} of world (train.lua:9); rank 1 "
                         "waits for rank 0 in agreement of model (train.lua:7); none of them "));
}

TEST(FindCircle, RanksThatWaitInOneCallAreNone) {
  const RankWait wait = WaitIn("world", 3, {0, 1, 2}, {});

  EXPECT_THAT(FindCircle({wait, wait, wait}), IsEmpty());
  EXPECT_THAT(FindCircle({wait, wait, std::nullopt}), IsEmpty());
}

// Rank 2 computes: it will come.
TEST(FindCircle, ARankThatDoesNotWaitBreaksIt) {
  EXPECT_THAT(FindCircle({WaitIn("a", 1, {0, 1}, {{"c", 0}}), WaitIn("b", 1, {1, 2}, {{"a", 0}}),
                          std::nullopt}),
              IsEmpty());
  EXPECT_THAT(FindCircle({WaitIn("a", 1, {0, 1}, {{"c", 0}}), WaitIn("b", 1, {1, 2}, {{"a", 0}}),
                          WaitIn("c", 1, {2, 0}, {{"b", 0}})}),
              ElementsAre(0, 1, 2));
}

// It has begun the other's call, perhaps without waiting for it: it went on, or was ahead.
TEST(FindCircle, ARankThatHasComeToTheOthersCallBreaksIt) {
  for (const int64_t come : {3, 4}) {
    EXPECT_THAT(FindCircle({WaitIn("world", 3, {0, 1}, {{"model", 8}}),
                            WaitIn("model", 9, {0, 1}, {{"world", come}})}),
                IsEmpty());
  }
}

TEST(FindCircle, MessagesBetweenTwoRanks) {
  RankWait send = WaitIn("world", 2, {}, {});
  send.awaited = "0 to 1, received";
  send.ranks = {1};
  const auto receiver = [](std::map<std::string, int64_t> come) {
    come["world"] = 1;
    return WaitIn("other", 1, {0, 1}, come);
  };
  send.come["other"] = 0;

  EXPECT_THAT(FindCircle({send, receiver({})}), ElementsAre(0, 1));
  EXPECT_THAT(FindCircle({send, receiver({{"0 to 1, received", 1}})}), ElementsAre(0, 1));
  EXPECT_THAT(FindCircle({send, receiver({{"0 to 1, received", 2}})}), IsEmpty());
}

// A script has caught an error of one rank as it made a group. The ranks number the next one
// differently, and both wait in it for rank 2.
TEST(FindCircle, RanksThatDoNotKnowTheOthersGroupAreNone) {
  EXPECT_THAT(FindCircle({WaitIn("group/1", 1, {0, 1, 2}, {}), WaitIn("group/2", 1, {0, 1, 2}, {}),
                          std::nullopt}),
              IsEmpty());
}

TEST(FindCircle, AMeetingIsKnownByItsName) {
  RankWait meeting = WaitIn("group/1, meeting", 0, {0, 1}, {{"world", 2}});
  meeting.known = "";

  EXPECT_THAT(FindCircle({meeting, WaitIn("world", 3, {0, 1}, {})}), ElementsAre(0, 1));
}

// All graphs of a few ranks that chance makes, against the powers of the graph.
TEST(FindCircleIn, IsACircleIfThereIsOne) {
  constexpr unsigned kSeed = 34;
  std::mt19937 random(kSeed);
  int found = 0;
  for (int i = 0; i < 2000; ++i) {
    const size_t size = 1 + random() % 6;
    std::vector<std::vector<int>> awaited(size);
    std::vector<std::vector<bool>> reaches(size, std::vector<bool>(size, false));
    for (size_t a = 0; a < size; ++a) {
      for (size_t b = 0; b < size; ++b) {
        if (a == b || random() % 4 != 0) continue;
        awaited[a].push_back(static_cast<int>(b));
        reaches[a][b] = true;
      }
    }
    for (size_t k = 0; k < size; ++k) {
      for (size_t a = 0; a < size; ++a) {
        for (size_t b = 0; b < size; ++b)
          reaches[a][b] = reaches[a][b] || (reaches[a][k] && reaches[k][b]);
      }
    }
    bool expected = false;
    for (size_t a = 0; a < size; ++a) expected = expected || reaches[a][a];

    const std::vector<int> circle = FindCircleIn(awaited);

    ASSERT_EQ(!circle.empty(), expected) << "seed " << kSeed << ", graph " << i;
    for (size_t at = 0; at < circle.size(); ++at) {
      const std::vector<int>& others = awaited[static_cast<size_t>(circle[at])];
      ASSERT_EQ(std::count(others.begin(), others.end(), circle[(at + 1) % circle.size()]), 1);
    }
    found += expected ? 1 : 0;
  }
  EXPECT_GT(found, 500);
  EXPECT_LT(found, 1900);
}

TEST(ParseWait, ReturnsWhatFormatWaitWrote) {
  RankWait wait = WaitIn("world (sharding.lockstep)/0", 7, {0, 2}, {{"a, b", 12}, {"c", -1}});
  wait.known = "";

  const std::optional<RankWait> parsed = ParseWait(FormatWait(wait));

  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(parsed->awaited, wait.awaited);
  EXPECT_EQ(parsed->number, wait.number);
  EXPECT_EQ(parsed->known, wait.known);
  EXPECT_EQ(parsed->ranks, wait.ranks);
  EXPECT_EQ(parsed->text, wait.text);
  EXPECT_EQ(parsed->come, wait.come);
}

TEST(ParseWait, OtherTextIsNone) {
  for (const char* text : {"", "a", "a\tb\tc\td\te", "a\t1\tc\tx\te", "a\t1\tc\t0\te\nb"})
    EXPECT_FALSE(ParseWait(text).has_value()) << text;
}

}  // namespace
}  // namespace lockstep::driver
