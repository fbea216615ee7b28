#include "driver/ranks/failure.h"

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/csrc/distributed/c10d/HashStore.hpp"

namespace lockstep::driver {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr int kNumRanks = 3;

// The store of a run whose other ranks report only while rank 1 waits for them.
class Run : public c10d::HashStore {
 public:
  std::vector<int> that_report_late;
  bool rank_1_leaves = false;
  std::string known_then = "rank 1 did not leave";  // what the ranks were doing
  milliseconds waited{0};                           // for ranks that did not come

  using HashStore::set;
  using HashStore::wait;

  void wait(const std::vector<std::string>& keys, const milliseconds& timeout) override {
    for (const int rank : that_report_late)
      HashStore::set(absl::StrCat("lockstep/activity/", rank), {'l', 'a', 't', 'e'});
    if (!check(keys)) waited += timeout;
    HashStore::wait(keys, milliseconds(1));
  }
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    if (rank_1_leaves) known_then = DescribeActivities(*this, kNumRanks, milliseconds(0));
    HashStore::set(key, value);
  }
};

c10::intrusive_ptr<Run> LeaveAsRank1(const std::vector<int>& that_report_late, bool is_hang) {
  const auto run = c10::make_intrusive<Run>();
  run->that_report_late = that_report_late;
  const Member member = {run, 1, kNumRanks};
  ReportActivity(member, "in a collective");
  Failure failure;
  failure.is_hang = is_hang;
  run->rank_1_leaves = true;
  LeaveFailedRun(member, failure);
  return run;
}

// It would break the connections in which they wait, and change what they report.
TEST(LeaveFailedRun, AfterAHangWaitsUntilAllRanksHaveReported) {
  const auto run = LeaveAsRank1({0, 2}, /*is_hang=*/true);

  EXPECT_EQ(run->known_then,
            "  rank 0: late\n"
            "  rank 1: in a collective\n"
            "  rank 2: late");
}

TEST(LeaveFailedRun, WaitsTwoSecondsForRanksThatNeverReport) {
  const auto run = LeaveAsRank1({0}, /*is_hang=*/true);

  EXPECT_EQ(run->waited, milliseconds(2000));
  EXPECT_THAT(run->known_then, HasSubstr("\n  rank 2: no answer"));
}

TEST(LeaveFailedRun, AfterAnotherFailureNoRankReports) {
  const auto run = LeaveAsRank1({0, 2}, /*is_hang=*/false);

  EXPECT_EQ(run->waited, milliseconds(0));
  EXPECT_THAT(run->known_then, HasSubstr("\n  rank 2: no answer"));
}

}  // namespace
}  // namespace lockstep::driver
