#include "sharding/agreement/gather_texts.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sharding/testing/thread_collective.h"

namespace lockstep::sharding {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

// Counts the gatherings that go through it.
class Counting : public Collective {
 public:
  explicit Counting(Collective& collective) : collective_(collective) {}
  int rank() const override { return collective_.rank(); }
  int size() const override { return collective_.size(); }
  std::unique_ptr<Pending> StartAllGather(const std::string& bytes) override {
    ++gatherings;
    return collective_.StartAllGather(bytes);
  }
  int gatherings = 0;

 private:
  Collective& collective_;
};

TEST(GatherTexts, GivesEveryRankEveryTextInTheOrderOfRanks) {
  const std::vector<std::string> tables[] = {
      {"one rank alone"},
      {"", "a longer text", "x"},
      {"same", "size"},
      {std::string("zeros\0in it\0", 12), "\n", std::string(100000, 'x'), ""},
  };
  for (const std::vector<std::string>& texts : tables) {
    RunAsThreads(static_cast<int>(texts.size()), [&](Collective& collective) {
      const auto gathered = GatherTexts(collective, texts[static_cast<size_t>(collective.rank())]);

      ASSERT_TRUE(gathered.ok()) << gathered.status();
      EXPECT_THAT(*gathered, ElementsAreArray(texts));
    });
  }
}

TEST(GatherTexts, SendsNoSecondMessageIfAllTextsAreEmpty) {
  RunAsThreads(3, [](Collective& collective) {
    Counting counting(collective);

    EXPECT_THAT(*GatherTexts(counting, ""), ElementsAre("", "", ""));
    EXPECT_EQ(counting.gatherings, 1);
    EXPECT_THAT(*GatherTexts(counting, collective.rank() == 2 ? "x" : ""),
                ElementsAre("", "", "x"));
    EXPECT_EQ(counting.gatherings, 3);
  });
}

// Either of its two messages can be the one that fails.
TEST(GatherTexts, GivesTheCollectivesErrorWhereARankLeaves) {
  for (const int messages_sent : {0, 1}) {
    RunAsThreads(
        2,
        [&](Collective& collective) {
          if (collective.rank() == 0) {
            EXPECT_EQ(GatherTexts(collective, "x").status().code(),
                      absl::StatusCode::kDeadlineExceeded);
          } else if (messages_sent == 1) {
            const uint64_t size = 5;
            const std::string bytes(reinterpret_cast<const char*>(&size), sizeof(size));
            EXPECT_TRUE(collective.StartAllGather(bytes)->Wait().ok());
          }
        },
        0.1);
  }
}

TEST(DifferentLines, ShowsTheFirstFiveAndCountsAll) {
  RunAsThreads(1, [](Collective& collective) {
    int count = -1;
    EXPECT_EQ(DifferentLines(collective, {"a = 1\nb = 2\n", "a = 1\nb = 2"}, &count), "");
    EXPECT_EQ(count, 0);
    EXPECT_EQ(DifferentLines(collective, {"a = 1\nb = 2", "a = 1\nb = 3\nc = 4"}, &count),
              "\n  rank 0: b = 2\n  rank 1: b = 3\n  rank 0: (nothing)\n  rank 1: c = 4");
    EXPECT_EQ(count, 2);
    DifferentLines(collective, {"1\n2\n3\n4\n5\n6", "x"}, &count);
    EXPECT_EQ(count, 6);
  });
}

}  // namespace
}  // namespace lockstep::sharding
