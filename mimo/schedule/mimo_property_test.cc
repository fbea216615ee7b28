// Tests properties of topologies and ownership tables, on 10,000 random ones of each.

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "mimo/batch/ownership.h"
#include "mimo/bridge/routes.h"
#include "mimo/draw/draw.h"
#include "mimo/schedule/schedule.h"
#include "mimo/testing/random_topology.h"
#include "mimo/topology/groups.h"
#include "mimo/topology/topology.h"

namespace lockstep::mimo {
namespace {

using ::testing::ElementsAreArray;

constexpr int kCases = 10'000;
constexpr RowsOf kAllRows[] = {RowsOf::kSamples, RowsOf::kItems, RowsOf::kTokens};

// The sample of each row, found without offsets.
std::vector<int64_t> OwnersOf(const Ownership& ownership, RowsOf rows_of) {
  std::vector<int64_t> owners;
  for (int64_t s = 0; s < ownership.num_samples(); ++s) {
    if (rows_of == RowsOf::kSamples) owners.push_back(s);
    const auto first = static_cast<size_t>(s);
    for (int64_t i = ownership.item_offsets[first]; i < ownership.item_offsets[first + 1]; ++i) {
      if (rows_of == RowsOf::kItems) owners.push_back(s);
      const auto item = static_cast<size_t>(i);
      const int64_t tokens = ownership.token_offsets[item + 1] - ownership.token_offsets[item];
      for (int64_t t = 0; t < tokens && rows_of == RowsOf::kTokens; ++t) owners.push_back(s);
    }
  }
  return owners;
}

// The rows that each rank of a side holds: its replica's shard.
using Held = std::map<int32_t, std::vector<int64_t>>;

Held Shards(const Side& side, const std::vector<int64_t>& rows) {
  Held held;
  for (int64_t place = 0; place < side.num_places(); ++place) {
    const Range shard = side.shard(place / side.lanes);
    held[side.ranks[static_cast<size_t>(place)]].assign(rows.begin() + shard.begin,
                                                        rows.begin() + shard.end);
  }
  return held;
}

// Moves rows as the ranks would, by what RouteOfRank tells each of them; -1 is a row that never
// came. Counts how often each row of the micro-batch was sent.
Held Deliver(const Route& route, const Held& sent, std::vector<int>* times_sent) {
  std::map<std::pair<int32_t, int32_t>, std::vector<std::vector<int64_t>>> wires;
  for (const auto& [rank, shard] : sent) {
    const RankRoute mine = RouteOfRank(route, rank);
    for (const RankTransfer& send : mine.sends) {
      wires[{rank, send.peer}].emplace_back(shard.begin() + send.rows[0].begin,
                                            shard.begin() + send.rows[0].end);
      for (int64_t row = send.rows[0].begin; row < send.rows[0].end; ++row) {
        ++(*times_sent)[static_cast<size_t>(mine.send_shard.begin + row)];
      }
    }
  }
  Held received;
  for (int32_t rank : route.to.ranks) {
    const RankRoute mine = RouteOfRank(route, rank);
    std::vector<int64_t>& shard = received[rank];
    shard.assign(static_cast<size_t>(mine.receive_shard.size()), -1);
    for (const RankTransfer& receive : mine.receives) {
      auto& wire = wires[{receive.peer, rank}];
      EXPECT_EQ(wire.size(), 1u) << "one message for a pair of ranks";
      EXPECT_EQ(static_cast<int64_t>(wire[0].size()), receive.rows[0].size());
      std::copy(wire[0].begin(), wire[0].end(), shard.begin() + receive.rows[0].begin);
    }
  }
  const Held before_gather = received;
  for (auto& [rank, shard] : received) {
    const RankRoute mine = RouteOfRank(route, rank);
    for (size_t lane = 0; lane < mine.gather_ranks.size(); ++lane) {
      const std::vector<int64_t>& theirs = before_gather.at(mine.gather_ranks[lane]);
      const Range part = mine.gather_parts[lane];
      std::copy(theirs.begin() + part.begin, theirs.begin() + part.end, shard.begin() + part.begin);
    }
  }
  return received;
}

class OnRandomTopologies : public ::testing::Test {
 protected:
  // Half of the cases divide evenly; the others have any size, from 0 on.
  int64_t DrawSamples(const Topology& topology, Division* division) {
    *division = Draw(random_, 0, 1) == 0 ? Division::kEven : Division::kUneven;
    if (*division == Division::kUneven) return Draw(random_, 0, 13);
    int64_t multiple = 1;
    for (const Module& module : topology.modules()) multiple = std::lcm(multiple, module.dp);
    return multiple * Draw(random_, 0, 2);
  }

  // Checks that the edge's routes, forward and back, have the properties tested below.
  void CheckEdge(const Topology& topology, int edge, const Ownership& ownership, Division division);

  std::mt19937 random_{20261121};
};

TEST_F(OnRandomTopologies, SlicesOfAModuleConcatenateToTheGlobalMicroBatch) {
  for (int c = 0; c < kCases; ++c) {
    SCOPED_TRACE(c);
    const Topology topology = RandomTopology(random_);
    Division division;
    const int64_t samples = DrawSamples(topology, &division);
    const Ownership ownership = RandomOwnership(random_, samples);
    for (const Module& module : topology.modules()) {
      for (RowsOf rows_of : kAllRows) {
        const std::vector<int64_t> owners = OwnersOf(ownership, rows_of);
        std::vector<int64_t> concatenated;
        for (int64_t d = 0; d < module.dp; ++d) {
          const Range kept = *SamplesOfShard(samples, d, module.dp, division);
          const Range rows = *RowsOfShard(ownership, rows_of, d, module.dp, division);
          ASSERT_EQ(SliceOwnership(ownership, kept).num_samples(), kept.size());
          ASSERT_EQ(NumRows(SliceOwnership(ownership, kept), rows_of), rows.size());
          for (int64_t row = rows.begin; row < rows.end; ++row) {
            const int64_t owner = owners[static_cast<size_t>(row)];
            ASSERT_TRUE(owner >= kept.begin && owner < kept.end);
            concatenated.push_back(row);
          }
        }
        ASSERT_EQ(concatenated.size(), owners.size());
        ASSERT_TRUE(std::is_sorted(concatenated.begin(), concatenated.end()));
      }
    }
  }
}

void OnRandomTopologies::CheckEdge(const Topology& topology, int edge, const Ownership& ownership,
                                   Division division) {
  const RowsOf rows_of = kAllRows[Draw(random_, 0, 2)];
  const Route route = *PlanRoute(topology, edge, ownership, rows_of, division);
  std::vector<int64_t> rows(static_cast<size_t>(NumRows(ownership, rows_of)));
  std::iota(rows.begin(), rows.end(), int64_t{0});

  // Forward: all that a replica holds is what belongs to its samples.
  std::vector<int> times_sent(rows.size(), 0);
  const Held arrived = Deliver(route, Shards(route.from, rows), &times_sent);
  ASSERT_EQ(arrived, Shards(route.to, rows));
  ASSERT_THAT(times_sent, ElementsAreArray(std::vector<int>(rows.size(), 1)));
  const int to = topology.to(edge);
  for (int32_t rank : route.to.ranks) {
    const Coordinates at = *topology.coordinates(rank, to);
    const Range expected = *RowsOfShard(ownership, rows_of, at.dp,
                                        topology.modules()[static_cast<size_t>(to)].dp, division);
    ASSERT_EQ(RouteOfRank(route, rank).receive_shard, expected);
    ASSERT_EQ(at.pp, 0);
  }

  // Backward: the same rows between the same places, and every replica of the source has all of
  // its gradient.
  const Route back = Transpose(route);
  std::vector<int> times_back(rows.size(), 0);
  ASSERT_EQ(Deliver(back, Shards(back.from, rows), &times_back), Shards(route.from, rows));
  ASSERT_THAT(times_back, ElementsAreArray(std::vector<int>(rows.size(), 1)));
  ASSERT_EQ(back.transfers.size(), route.transfers.size());
  for (size_t i = 0; i < route.transfers.size(); ++i) {
    ASSERT_EQ(back.transfers[i].from_place, route.transfers[i].to_place);
    ASSERT_EQ(back.transfers[i].to_place, route.transfers[i].from_place);
    ASSERT_EQ(back.transfers[i].rows, route.transfers[i].rows);
  }
  ASSERT_LE(static_cast<int64_t>(route.transfers.size()),
            route.from.num_places() + route.to.num_places());
}

TEST_F(OnRandomTopologies, RoutesDeliverEveryRowOnceToItsOwnerAndBackwardIsTheTranspose) {
  int drawn = 0;  // topologies with an edge
  int routed = 0;
  while (drawn < kCases) {
    const Topology topology = RandomTopology(random_);
    if (topology.edges().empty()) continue;
    SCOPED_TRACE(++drawn);
    Division division;
    const Ownership ownership = RandomOwnership(random_, DrawSamples(topology, &division));
    for (int edge = 0; edge < static_cast<int>(topology.edges().size()); ++edge, ++routed) {
      CheckEdge(topology, edge, ownership, division);
      if (HasFailure()) return;
    }
  }
  EXPECT_EQ(drawn, kCases);
  EXPECT_GT(routed, kCases);
}

TEST_F(OnRandomTopologies, TheSimulatedScheduleEnds) {
  int interleaved = 0;
  for (int c = 0; c < kCases; ++c) {
    SCOPED_TRACE(c);
    const Topology topology = RandomTopology(random_);
    const int64_t micro_batches = Draw(random_, 1, 4);
    std::vector<Route> routes;
    for (int64_t m = 0; m < micro_batches; ++m) {
      const Ownership ownership = RandomOwnership(random_, Draw(random_, 0, 9));
      for (int e = 0; e < static_cast<int>(topology.edges().size()); ++e) {
        routes.push_back(*PlanRoute(topology, e, ownership, RowsOf::kTokens, Division::kUneven));
      }
    }
    StepOptions options = {.num_micro_batches = micro_batches, .routes = routes};
    const absl::StatusOr<Schedule> schedule = MakeSchedule(topology, options);
    ASSERT_TRUE(schedule.ok()) << schedule.status();
    const absl::StatusOr<Simulation> simulation = Simulate(*schedule);
    ASSERT_TRUE(simulation.ok()) << simulation.status() << DrawText(topology);

    options.order = Order::kAllForwardsFirst;
    const absl::StatusOr<Simulation> forwards = Simulate(*MakeSchedule(topology, options));
    ASSERT_TRUE(forwards.ok()) << forwards.status() << DrawText(topology);
    ASSERT_EQ(forwards->transfers, simulation->transfers);
    ASSERT_EQ(forwards->collectives, simulation->collectives);

    bool is_colocated = false;
    for (int64_t r = 0; r < topology.world_size(); ++r)
      is_colocated = is_colocated || topology.colocated(r);
    if (is_colocated) continue;
    ++interleaved;
    options.order = Order::k1F1B;
    const absl::StatusOr<Simulation> pipelined = Simulate(*MakeSchedule(topology, options));
    ASSERT_TRUE(pipelined.ok()) << pipelined.status() << DrawText(topology);
    ASSERT_EQ(pipelined->ops, forwards->ops);
    ASSERT_EQ(pipelined->transfers, simulation->transfers);
  }
  EXPECT_GT(interleaved, kCases / 3);
}

TEST_F(OnRandomTopologies, GroupsOfAModuleHoldEachOfItsRanksOnce) {
  for (int c = 0; c < kCases / 10; ++c) {
    SCOPED_TRACE(c);
    const Topology topology = RandomTopology(random_);
    for (int m = 0; m < static_cast<int>(topology.modules().size()); ++m) {
      const Module& module = topology.modules()[static_cast<size_t>(m)];
      for (const char* axes : {"tp", "cp", "pp", "dp", "dp-cp", "tp-cp", "tp-cp-dp-pp"}) {
        const GroupSet set = *ModuleGroups(topology, m, axes);
        ASSERT_THAT(set.ranks, ::testing::UnorderedElementsAreArray(module.ranks)) << axes;
        for (int64_t g = 0; g < set.num_groups(); ++g) {
          const Coordinates first = *topology.coordinates(set.group(g)[0], m);
          for (int32_t rank : set.group(g)) {
            const Coordinates at = *topology.coordinates(rank, m);
            const std::string listed = axes;
            const auto same = [&](const char* axis, int32_t a, int32_t b) {
              return listed.find(axis) != std::string::npos || a == b;
            };
            ASSERT_TRUE(same("tp", at.tp, first.tp) && same("cp", at.cp, first.cp) &&
                        same("dp", at.dp, first.dp) && same("pp", at.pp, first.pp));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::mimo
