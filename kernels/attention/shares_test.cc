#include "kernels/attention/shares.h"

#include <algorithm>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace lockstep::kernels {
namespace {

using Lengths = std::vector<int64_t>;

TEST(Shares, OneThreadTakesAllInOrder) {
  const Shares shares = ShareOut(Lengths{3, 9, 5}, 1);

  EXPECT_TRUE(shares.alone.empty());
  EXPECT_EQ(shares.together, (std::vector<Lengths>{{0, 1, 2}}));
}

TEST(Shares, EqualSequencesAreDivided) {
  const Shares shares = ShareOut(Lengths(8, 256), 2);

  EXPECT_TRUE(shares.alone.empty());
  ASSERT_EQ(shares.together.size(), 2);
  EXPECT_EQ(shares.together[0].size(), 4);
  EXPECT_EQ(shares.together[1].size(), 4);
}

TEST(Shares, ASequenceLongerThanAllOthersIsAlone) {
  Lengths lengths(9, 64);
  lengths[4] = 2048;

  const Shares shares = ShareOut(lengths, 2);

  EXPECT_EQ(shares.alone, (Lengths{4}));
  ASSERT_EQ(shares.together.size(), 2);
  EXPECT_EQ(shares.together[0].size(), 4);
}

TEST(Shares, FewerSequencesThanThreadsAreAlone) {
  EXPECT_EQ(ShareOut(Lengths{7}, 2).alone, (Lengths{0}));
  EXPECT_EQ(ShareOut(Lengths{5, 9, 7}, 4).alone, (Lengths{1, 2, 0}));
  EXPECT_TRUE(ShareOut(Lengths{5, 9, 7}, 4).together.empty());
}

TEST(Shares, ARowWithoutSequencesHasNoShares) {
  const Shares shares = ShareOut(Lengths{}, 2);

  EXPECT_TRUE(shares.alone.empty());
  EXPECT_TRUE(shares.together.empty());
}

TEST(Shares, EachSequenceIsInOneShareAndSharesAreEven) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    const int64_t threads = 2 + round % 7;
    Lengths lengths(round % 40 + 1);
    for (int64_t& length : lengths) length = 1 + random() % (round % 3 == 0 ? 40 : 3000);

    const Shares shares = ShareOut(lengths, threads);

    std::vector<int64_t> seen = shares.alone;
    double most = 0, sum = 0;
    for (const Lengths& share : shares.together) {
      double cost = 0;
      for (const int64_t i : share)
        cost += static_cast<double>(lengths[i] * lengths[i]) + 48.0 * 48.0;
      most = std::max(most, cost);
      sum += cost;
      seen.insert(seen.end(), share.begin(), share.end());
    }
    std::sort(seen.begin(), seen.end());
    ASSERT_EQ(seen.size(), lengths.size());
    for (size_t i = 0; i < seen.size(); ++i) ASSERT_EQ(seen[i], static_cast<int64_t>(i));
    ASSERT_LE(most * static_cast<double>(threads), 1.1 * sum + 1e-6) << "round " << round;
  }
}

}  // namespace
}  // namespace lockstep::kernels
