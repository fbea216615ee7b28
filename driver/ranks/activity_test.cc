#include "driver/ranks/activity.h"

#include <vector>

#include "c10/util/intrusive_ptr.h"
#include "gtest/gtest.h"
#include "torch/csrc/distributed/c10d/Work.hpp"

namespace lockstep::driver {
namespace {

class Work : public c10d::Work {
 public:
  bool isCompleted() override {
    ++times_asked;
    return is_done;
  }

  bool is_done = false;
  int times_asked = 0;
};

int64_t StartOne(Activity& activity, const c10::intrusive_ptr<Work>& work) {
  const int64_t id = activity.Start({"world", 1, "all_reduce float32 {4}", "train.lua:2"});
  activity.SetWork(id, work);
  return id;
}

TEST(Activity, KeepsAWorkUntilTheScriptHasWaitedForIt) {
  Activity activity;
  const auto work = c10::make_intrusive<Work>();
  const int64_t id = StartOne(activity, work);
  activity.NoteBlocked(id, true);
  EXPECT_EQ(work.use_count(), 2);
  work->is_done = true;

  activity.NoteBlocked(id, false);

  EXPECT_EQ(work.use_count(), 1);
  EXPECT_FALSE(activity.IsWaiting());
}

TEST(Activity, AWaitThatEndsBeforeTheWorkDoesKeepsIt) {
  Activity activity;
  const auto work = c10::make_intrusive<Work>();
  const int64_t id = StartOne(activity, work);

  activity.NoteBlocked(id, true);
  activity.NoteBlocked(id, false);

  EXPECT_EQ(work.use_count(), 2);
  EXPECT_TRUE(activity.IsWaiting());
}

// A GPU is far behind, and each call asks CUDA.
TEST(Activity, ACallAsksForFewOfManyWorks) {
  Activity activity;
  std::vector<c10::intrusive_ptr<Work>> works;
  for (int i = 0; i < 100; ++i) {
    works.push_back(c10::make_intrusive<Work>());
    StartOne(activity, works.back());
  }
  int before = 0;
  for (const auto& work : works) before += work->times_asked;

  StartOne(activity, c10::make_intrusive<Work>());

  int after = 0;
  for (const auto& work : works) after += work->times_asked;
  EXPECT_LE(after - before, 4);
}

TEST(Activity, CallsLetGoOfWorksThatAreDoneFasterThanTheyCome) {
  Activity activity;
  std::vector<c10::intrusive_ptr<Work>> works;
  for (int i = 0; i < 100; ++i) {
    works.push_back(c10::make_intrusive<Work>());
    StartOne(activity, works.back());
  }
  for (const auto& work : works) work->is_done = true;

  for (int i = 0; i < 50; ++i) StartOne(activity, c10::make_intrusive<Work>());

  for (const auto& work : works) EXPECT_EQ(work.use_count(), 1);
}

}  // namespace
}  // namespace lockstep::driver
