#include "sharding/agreement/c10d_collective.h"

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sharding/agreement/gather_texts.h"
#include "sharding/agreement/guard.h"
#include "tests/support/gloo_world.h"
#include "tests/support/ranks.h"

namespace lockstep::sharding {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using tests::GlooWorld;
using tests::MeetOverGloo;
using tests::OnRanks;
using tests::Rank;

TEST(C10dCollective, GathersInTheOrderOfRanks) {
  const std::optional<Rank> rank = OnRanks(3);
  if (!rank.has_value()) return;
  const GlooWorld world = MeetOverGloo(*rank);
  C10dCollective collective(world.group);

  EXPECT_EQ(collective.rank(), rank->rank);
  EXPECT_EQ(collective.size(), 3);
  for (int step = 0; step < 20; ++step) {
    const std::string own(static_cast<size_t>(step), static_cast<char>('a' + rank->rank));
    const auto all = collective.StartAllGather(own)->Wait();
    ASSERT_TRUE(all.ok()) << all.status();
    for (size_t other = 0; other < 3; ++other)
      EXPECT_EQ((*all)[other], std::string(own.size(), static_cast<char>('a' + other)));
  }
  EXPECT_THAT(*GatherTexts(collective, std::string(static_cast<size_t>(rank->rank), 'x')),
              ElementsAre("", "x", "xx"));
}

TEST(C10dCollective, SeveralMayBeUnderWayAndBeWaitedForInAnyOrder) {
  const std::optional<Rank> rank = OnRanks(2);
  if (!rank.has_value()) return;
  const GlooWorld world = MeetOverGloo(*rank);
  C10dCollective collective(world.group);

  const auto first = collective.StartAllGather(absl::StrCat("a", rank->rank));
  const auto second = collective.StartAllGather(absl::StrCat("b", rank->rank));

  EXPECT_THAT(*second->Wait(), ElementsAre("b0", "b1"));
  EXPECT_THAT(*first->Wait(), ElementsAre("a0", "a1"));
}

TEST(C10dCollective, GoesByTheRanksOfTheWorld) {
  const std::optional<Rank> rank = OnRanks(2);
  if (!rank.has_value()) return;
  const GlooWorld world = MeetOverGloo(*rank);

  EXPECT_EQ(C10dCollective(world.group).WorldRank(1), 1);
  EXPECT_EQ(C10dCollective(world.group, {4, 6}).WorldRank(1), 6);
}

TEST(C10dCollective, ARankThatEndsIsAnError) {
  const std::optional<Rank> rank = OnRanks(2);
  if (!rank.has_value()) return;
  const GlooWorld world = MeetOverGloo(*rank);
  C10dCollective collective(world.group);
  ASSERT_TRUE(collective.StartAllGather("both are here")->Wait().ok());
  if (rank->rank == 1) return;

  const absl::Status status = collective.StartAllGather("x")->Wait().status();

  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("sharding: a rank was lost: "));
}

TEST(StoreNotes, AreReadByEveryRankAndWrittenOver) {
  const std::optional<Rank> rank = OnRanks(2);
  if (!rank.has_value()) return;
  const GlooWorld world = MeetOverGloo(*rank);
  C10dCollective collective(world.group);
  StoreNotes notes(world.store, "guard", rank->rank);
  StoreNotes others(world.store, "another guard", rank->rank);

  EXPECT_EQ(notes.Read(1), "");
  ASSERT_TRUE(collective.StartAllGather("read")->Wait().ok());
  notes.Write("first");
  notes.Write(absl::StrCat("of rank ", rank->rank));
  ASSERT_TRUE(collective.StartAllGather("written")->Wait().ok());

  EXPECT_EQ(notes.Read(0), "of rank 0");
  EXPECT_EQ(notes.Read(1), "of rank 1");
  EXPECT_EQ(others.Read(1), "");
  ASSERT_TRUE(collective.StartAllGather("the store's host may go")->Wait().ok());
}

TEST(StoreNotes, GiveAGuardItsAbsentRanks) {
  const std::optional<Rank> rank = OnRanks(2);
  if (!rank.has_value()) return;
  const GlooWorld world = MeetOverGloo(*rank);
  C10dCollective collective(world.group);
  StoreNotes notes(world.store, "guard", rank->rank);
  Guard guard(&collective, &notes, /*timeout_s=*/45);
  ASSERT_TRUE(guard.Check("step 0", "same", "train.cc:9").ok());
  if (rank->rank == 1) return;

  EXPECT_THAT(std::string(guard.Check("step 1", "same", "train.cc:9").message()),
              HasSubstr("rank 1 last passed \"step 0\" (train.cc:9), its check number 1"));
}

}  // namespace
}  // namespace lockstep::sharding
