#include "mimo/bridge/routes.h"

#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::mimo {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Topology Make(int64_t world_size, std::vector<Module> modules) {
  absl::StatusOr<Topology> topology = Topology::Make(world_size, modules);
  EXPECT_TRUE(topology.ok()) << topology.status();
  return *topology;
}

Topology DpSizes(int64_t vision, int64_t language) {
  return Make(vision + language, {{.name = "vision", .dp = vision},
                                  {.name = "language", .dp = language, .first_rank = vision}});
}

Route Plan(const Topology& topology, const Ownership& ownership, RowsOf rows_of = RowsOf::kTokens,
           Division division = Division::kEven) {
  absl::StatusOr<Route> route = PlanRoute(topology, 0, ownership, rows_of, division);
  EXPECT_TRUE(route.ok()) << route.status();
  return *route;
}

TEST(PlanRoute, HeaderExample) {
  const Route route = Plan(DpSizes(2, 3), UniformOwnership(6));

  EXPECT_THAT(route.transfers, ElementsAre(Transfer{0, 0, {0, 2}}, Transfer{0, 1, {2, 3}},
                                           Transfer{1, 1, {3, 4}}, Transfer{1, 2, {4, 6}}));
  EXPECT_THAT(route.from.ranks, ElementsAre(0, 1));
  EXPECT_THAT(route.to.ranks, ElementsAre(2, 3, 4));
}

TEST(PlanRoute, EqualSizesGoOneToOne) {
  EXPECT_THAT(Plan(DpSizes(2, 2), UniformOwnership(4)).transfers,
              ElementsAre(Transfer{0, 0, {0, 2}}, Transfer{1, 1, {2, 4}}));
}

TEST(PlanRoute, FanInAndFanOutFollowTheSamples) {
  const Ownership images = *MakeOwnership({1, 1, 0, 2}, {5, 1, 2, 2});

  EXPECT_THAT(Plan(DpSizes(4, 1), images).transfers,
              ElementsAre(Transfer{0, 0, {0, 5}}, Transfer{1, 0, {5, 6}}, Transfer{3, 0, {6, 10}}));
  EXPECT_THAT(Plan(DpSizes(1, 2), images).transfers,
              ElementsAre(Transfer{0, 0, {0, 6}}, Transfer{0, 1, {6, 10}}));
  EXPECT_THAT(Plan(DpSizes(1, 2), images, RowsOf::kItems).transfers,
              ElementsAre(Transfer{0, 0, {0, 2}}, Transfer{0, 1, {2, 4}}));
}

TEST(PlanRoute, EveryLaneCarriesItsShare) {
  const Topology topology =
      Make(6, {{.name = "vision", .tp = 2}, {.name = "language", .tp = 4, .first_rank = 2}});

  const Route route = Plan(topology, UniformOwnership(1, 10));

  EXPECT_THAT(route.from.bounds, ElementsAre(0, 5, 10));
  EXPECT_THAT(route.to.bounds, ElementsAre(0, 3, 6, 8, 10));
  EXPECT_THAT(route.transfers,
              ElementsAre(Transfer{0, 0, {0, 3}}, Transfer{0, 1, {3, 5}}, Transfer{1, 1, {5, 6}},
                          Transfer{1, 2, {6, 8}}, Transfer{1, 3, {8, 10}}));
}

TEST(PlanRoute, LanesAreTensorParallelThenContextParallelWhateverTheOrder) {
  const Topology topology =
      Make(5, {{.name = "vision"},
               {.name = "language", .tp = 2, .cp = 2, .first_rank = 1, .order = "cp-tp-dp-pp"}});

  EXPECT_THAT(Plan(topology, UniformOwnership(1)).to.ranks, ElementsAre(1, 3, 2, 4));
}

TEST(PlanRoute, LeaveFromTheLastStageAndArriveAtTheFirst) {
  const Topology topology =
      Make(5, {{.name = "vision", .pp = 3}, {.name = "language", .pp = 2, .first_rank = 3}});

  const Route route = Plan(topology, UniformOwnership(1));

  EXPECT_THAT(route.from.ranks, ElementsAre(2));
  EXPECT_THAT(route.to.ranks, ElementsAre(3));
}

TEST(PlanRoute, NoRowsNoTransfers) {
  const Topology topology = DpSizes(2, 3);

  EXPECT_THAT(Plan(topology, UniformOwnership(0)).transfers, IsEmpty());
  EXPECT_THAT(Plan(topology, UniformOwnership(6, 0)).transfers, IsEmpty());
  EXPECT_THAT(Plan(topology, *MakeOwnership({0, 0, 0, 0, 0, 0}, {})).transfers, IsEmpty());
}

TEST(PlanRoute, UnevenDivisionsAreAnOption) {
  EXPECT_THAT(
      Plan(DpSizes(2, 1), UniformOwnership(3), RowsOf::kSamples, Division::kUneven).transfers,
      ElementsAre(Transfer{0, 0, {0, 2}}, Transfer{1, 0, {2, 3}}));
  EXPECT_EQ(PlanRoute(DpSizes(2, 1), 0, UniformOwnership(3), RowsOf::kSamples).status().message(),
            "mimo: batch size 3 is not divisible by dp_size 2; use 2 or 4, or allow uneven parts "
            "(dp of \"vision\")");
}

TEST(PlanRoute, AnEdgeThatIsNotThereIsOutOfRange) {
  for (int edge : {-1, 1}) {
    EXPECT_EQ(PlanRoute(DpSizes(1, 1), edge, UniformOwnership(1), RowsOf::kItems).status().code(),
              absl::StatusCode::kOutOfRange);
  }
}

TEST(Transpose, SendsTheSameRowsBack) {
  const Route route = Plan(DpSizes(2, 3), UniformOwnership(6));

  const Route back = Transpose(route);

  EXPECT_THAT(back.from.ranks, ElementsAre(2, 3, 4));
  EXPECT_THAT(back.transfers, ElementsAre(Transfer{0, 0, {0, 2}}, Transfer{1, 0, {2, 3}},
                                          Transfer{1, 1, {3, 4}}, Transfer{2, 1, {4, 6}}));
  EXPECT_EQ(Transpose(back).transfers, route.transfers);
}

TEST(RouteOfRank, CountsRowsFromItsOwnShard) {
  const Route route = Plan(DpSizes(2, 3), UniformOwnership(6));

  const RankRoute sender = RouteOfRank(route, 1);
  const RankRoute receiver = RouteOfRank(route, 3);

  ASSERT_EQ(sender.sends.size(), 2u);
  EXPECT_EQ(sender.sends[0].peer, 3);
  EXPECT_THAT(sender.sends[0].rows, ElementsAre(Range{0, 1}));
  EXPECT_THAT(sender.sends[1].rows, ElementsAre(Range{1, 3}));
  EXPECT_EQ(sender.send_shard, (Range{3, 6}));
  EXPECT_THAT(sender.receives, IsEmpty());
  EXPECT_THAT(sender.gather_ranks, IsEmpty());
  ASSERT_EQ(receiver.receives.size(), 2u);
  EXPECT_EQ(receiver.receives[1].peer, 1);
  EXPECT_THAT(receiver.receives[1].rows, ElementsAre(Range{1, 2}));
  EXPECT_EQ(receiver.receive_shard, (Range{2, 4}));
  EXPECT_THAT(receiver.gather_ranks, ElementsAre(3));
}

TEST(RouteOfRank, LanesGatherTheirParts) {
  const Topology topology =
      Make(4, {{.name = "vision"}, {.name = "language", .tp = 3, .first_rank = 1}});

  const RankRoute lane = RouteOfRank(Plan(topology, UniformOwnership(1, 7)), 3);

  EXPECT_THAT(lane.gather_ranks, ElementsAre(1, 2, 3));
  EXPECT_THAT(lane.gather_parts, ElementsAre(Range{0, 3}, Range{3, 5}, Range{5, 7}));
  ASSERT_EQ(lane.receives.size(), 1u);
  EXPECT_THAT(lane.receives[0].rows, ElementsAre(Range{5, 7}));
}

TEST(RouteOfRank, AColocatedRankCopiesItsOwnRows) {
  const Topology topology = Make(2, {{.name = "vision", .dp = 2}, {.name = "language", .tp = 2}});

  const RankRoute mine = RouteOfRank(Plan(topology, UniformOwnership(2)), 1);

  ASSERT_EQ(mine.sends.size(), 1u);
  EXPECT_EQ(mine.sends[0].peer, 1);
  EXPECT_EQ(mine.receives[0].peer, 1);
  EXPECT_THAT(mine.receives[0].rows, ElementsAre(Range{1, 2}));
  EXPECT_THAT(mine.gather_ranks, ElementsAre(0, 1));
}

TEST(RouteOfRank, AStrangerHasNoPart) {
  const RankRoute stranger = RouteOfRank(Plan(DpSizes(1, 1), UniformOwnership(1)), 7);

  EXPECT_THAT(stranger.sends, IsEmpty());
  EXPECT_THAT(stranger.receives, IsEmpty());
}

}  // namespace
}  // namespace lockstep::mimo
