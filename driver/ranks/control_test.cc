#include "driver/ranks/control.h"

#include <chrono>
#include <limits>

#include "c10/util/Exception.h"
#include "gtest/gtest.h"
#include "torch/csrc/distributed/c10d/HashStore.hpp"

namespace lockstep::driver {
namespace {

constexpr std::chrono::milliseconds kTimeout(1000);

// Returns the world of rank 1 of 4, in which the other ranks do as it does.
World MirroredWorld() {
  World world;
  world.environment.rank = 1;
  world.environment.world_size = 4;
  world.environment.mirrored = true;
  world.store = c10::make_intrusive<c10d::HashStore>();
  return world;
}

TEST(RankGuard, HeaderExample) {
  RankGuard guard(MirroredWorld(), {0, 1}, /*timeout_s=*/30);
  EXPECT_TRUE(guard.Check("step 7", "kind=image", "train.lua:41").ok());
}

TEST(RankGuard, EachGuardOverTheSameRanksHasItsOwnNotes) {
  const World world = MirroredWorld();
  RankGuard first(world, {1, 2}, 30), second(world, {1, 2}, 30), other(world, {2, 1}, 30);

  EXPECT_TRUE(second.Check("step 2", "", "").ok());

  EXPECT_FALSE(world.store->check({"guard/1,2/0/0"}));
  EXPECT_TRUE(world.store->check({"guard/1,2/1/0"}));
  EXPECT_TRUE(first.Check("step 1", "", "").ok());
  EXPECT_TRUE(world.store->check({"guard/1,2/0/0"}));
  EXPECT_TRUE(other.Check("step 1", "", "").ok());
  EXPECT_TRUE(world.store->check({"guard/2,1/0/1"}));  // this rank is second in that list
}

TEST(RankGuard, ARankAloneAgreesWithItselfAndLeavesNoNotes) {
  const World world = MirroredWorld();
  RankGuard guard(world, {1}, 30);
  EXPECT_TRUE(guard.Check("step 1", "", "").ok());
  EXPECT_FALSE(world.store->check({"guard/1/0/0"}));
}

TEST(RankGuard, RefusesTimeoutsOutsideTheLimits) {
  const World world = MirroredWorld();
  for (const double timeout_s : {0.0, -1.0, 604801.0, std::numeric_limits<double>::quiet_NaN()})
    EXPECT_THROW(RankGuard(world, {1}, timeout_s), c10::ValueError) << timeout_s;
}

TEST(SharedControlCollective, IsMadeOnceForEachListOfRanks) {
  const World world = MirroredWorld();
  sharding::Collective* const first = SharedControlCollective(world, {0, 1}, kTimeout, "loop");

  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->size(), 2);
  EXPECT_EQ(SharedControlCollective(world, {0, 1}, kTimeout, "loop"), first);
  EXPECT_NE(SharedControlCollective(world, {1, 0}, kTimeout, "loop"), first);
  EXPECT_EQ(SharedControlCollective(world, {0, 1, 2}, kTimeout, "loop")->size(), 3);
  EXPECT_EQ(SharedControlCollective(world, {1}, kTimeout, "loop"), nullptr);
}

}  // namespace
}  // namespace lockstep::driver
