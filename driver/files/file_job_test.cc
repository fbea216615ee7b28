#include "driver/files/file_job.h"

#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace lockstep::driver {
namespace {

TEST(FileJob, DoesItsStepsInOrderWhileTheCallerGoesOn) {
  std::promise<void> may_go_on;
  std::vector<int> done;
  const FileJob job({[&] {
                       may_go_on.get_future().wait();
                       done.push_back(1);
                       return absl::OkStatus();
                     },
                     [&] {
                       done.push_back(2);
                       return absl::OkStatus();
                     }});

  EXPECT_FALSE(job.is_done());
  may_go_on.set_value();

  EXPECT_TRUE(job.Wait().ok());
  EXPECT_TRUE(job.is_done());
  EXPECT_EQ(done, std::vector<int>({1, 2}));
  EXPECT_TRUE(job.Wait().ok());
}

TEST(FileJob, GivesWayToOtherThreadsUntilSomebodyWaitsForIt) {
  EXPECT_FALSE(FileJob::GiveWay());
  std::promise<bool> gives_way;
  const auto go_on = [&] {
    gives_way.set_value(FileJob::GiveWay());
    while (FileJob::GiveWay()) continue;
    return absl::OkStatus();
  };
  const FileJob job({go_on});
  EXPECT_TRUE(gives_way.get_future().get());
  EXPECT_TRUE(job.Wait().ok());

  gives_way = {};
  const FileJob first({go_on});
  const FileJob second({[&first] { return first.Wait(); }});
  EXPECT_TRUE(gives_way.get_future().get());
  EXPECT_FALSE(second.is_done());
  EXPECT_TRUE(second.Wait().ok());
}

TEST(FileJob, EndsWithTheFirstError) {
  bool is_reached = false;
  const auto reach = [&] {
    is_reached = true;
    return absl::OkStatus();
  };
  const FileJob fails({[] { return absl::UnknownError("the disk is full"); }, reach});
  const FileJob throws({[]() -> absl::Status { throw std::runtime_error("no memory"); }, reach});

  EXPECT_EQ(fails.Wait().message(), "the disk is full");
  EXPECT_EQ(throws.Wait().message(), "no memory");
  EXPECT_FALSE(is_reached);
}

TEST(FileJob, FreesWhatItsStepsHoldBeforeItIsDone) {
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> seen = held;
  const FileJob job({[held] { return absl::OkStatus(); }});
  held.reset();

  EXPECT_TRUE(job.Wait().ok());

  EXPECT_TRUE(seen.expired());
}

TEST(FileJob, WithoutStepsIsDone) { EXPECT_TRUE(FileJob({}).Wait().ok()); }

}  // namespace
}  // namespace lockstep::driver
