#include "driver/ranks/signs_of_life.h"

#include <unistd.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/csrc/distributed/c10d/HashStore.hpp"

namespace lockstep::driver {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

struct SilenceTest : ::testing::Test {
  c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
  Silence silence{milliseconds(2000)};
  Silence::Clock::time_point now;
  int signs = 0;

  void GiveSign(int rank) {
    store->set(absl::StrCat("lockstep/sign_of_life/", rank),
               absl::StrCat(++signs, " process 4711 on node", rank));
  }

  // Looks `num_looks` times, until a message comes.
  std::optional<std::string> LookOften(int num_looks, const std::vector<int>& ranks) {
    std::optional<std::string> text;
    for (int i = 0; i < num_looks && !text.has_value(); ++i) {
      now += silence.between_looks();
      text = silence.Look(*store, ranks, now);
    }
    return text;
  }
};

TEST_F(SilenceTest, NamesTheRankAndItsMachineAfterTheLimit) {
  GiveSign(1);

  EXPECT_EQ(LookOften(21, {1}), std::nullopt);
  EXPECT_THAT(LookOften(1, {1}).value_or(""),
              StartsWith("rank 1 (process 4711 on node1) did not end and gave no sign of life for "
                         "2.1 s: stopped"));
}

TEST_F(SilenceTest, OfOneRankIsFoundWhileAnotherIsAlive) {
  GiveSign(1);
  GiveSign(2);
  EXPECT_EQ(LookOften(15, {1, 2}), std::nullopt);
  GiveSign(2);

  EXPECT_THAT(LookOften(7, {1, 2}).value_or(""),
              AllOf(StartsWith("rank 1 "), Not(HasSubstr("2 ("))));
}

TEST_F(SilenceTest, EndsWithASignOfLife) {
  for (int i = 0; i < 10; ++i) {
    GiveSign(1);
    EXPECT_EQ(LookOften(21, {1}), std::nullopt);
  }
}

TEST_F(SilenceTest, BeginsWithTheFirstSign) { EXPECT_EQ(LookOften(100, {1}), std::nullopt); }

// The whole run was stopped, and this process goes on first.
TEST_F(SilenceTest, CountsAPauseAsOneLook) {
  GiveSign(1);
  EXPECT_EQ(LookOften(2, {1}), std::nullopt);
  now += std::chrono::hours(1);

  EXPECT_EQ(LookOften(19, {1}), std::nullopt);
}

TEST(SignsOfLife, NameTheProcess) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  GiveSignsOfLife(store, 3, std::chrono::hours(1));

  EXPECT_THAT(DescribeProcessOf(*store, 3), StartsWith(absl::StrCat("process ", getpid(), " on ")));
  EXPECT_EQ(DescribeProcessOf(*store, 4), "");
}

}  // namespace
}  // namespace lockstep::driver
