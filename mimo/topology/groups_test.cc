#include "mimo/topology/groups.h"

#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "mimo/bridge/routes.h"

namespace lockstep::mimo {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Lists = std::vector<std::vector<int32_t>>;

Lists Enumerate(const std::vector<Axis>& axes, const std::vector<absl::string_view>& listed,
                int64_t first_rank = 0) {
  int64_t group_size = 1;
  for (const Axis& axis : axes) {
    for (absl::string_view name : listed) group_size *= name == axis.name ? axis.size : 1;
  }
  const std::vector<int32_t> ranks = EnumerateGroups(axes, listed, first_rank);
  Lists lists;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (static_cast<int64_t>(i) % group_size == 0) lists.emplace_back();
    lists.back().push_back(ranks[i]);
  }
  return lists;
}

Lists ListsOf(const GroupSet& set) {
  Lists lists;
  for (int64_t i = 0; i < set.num_groups(); ++i) {
    lists.emplace_back(set.group(i).begin(), set.group(i).end());
  }
  return lists;
}

Topology Make(int64_t world_size, std::vector<Module> modules, std::vector<Edge> edges = {}) {
  absl::StatusOr<Topology> topology = edges.empty() ? Topology::Make(world_size, modules)
                                                    : Topology::Make(world_size, modules, edges);
  EXPECT_TRUE(topology.ok()) << topology.status();
  return *topology;
}

// The vectors of section 6 of the report, from Megatron-LM's HyperCommGrid.
TEST(EnumerateGroups, VectorsOfTheReport) {
  EXPECT_EQ(Enumerate({{"tp", 2}, {"dp", 4}}, {"tp"}), (Lists{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(Enumerate({{"tp", 2}, {"cp", 2}, {"dp", 2}}, {"tp", "cp"}),
            (Lists{{0, 2, 1, 3}, {4, 6, 5, 7}}));
  EXPECT_EQ(Enumerate({{"tp", 2}, {"cp", 2}, {"dp", 2}}, {"cp", "tp"}),
            (Lists{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(Enumerate({{"tp", 2}, {"dp", 2}}, {"tp"}, 4), (Lists{{4, 5}, {6, 7}}));
  EXPECT_EQ(Enumerate({{"a", 2}, {"b", 2}, {"c", 2}}, {"a"}),
            (Lists{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(Enumerate({{"a", 2}, {"b", 2}, {"c", 2}}, {"c"}),
            (Lists{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(Enumerate({{"tp", 1}, {"cp", 2}, {"dp", 4}}, {"tp"}),
            (Lists{{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}}));
  EXPECT_EQ(Enumerate({{"tp", 1}, {"cp", 2}, {"dp", 4}}, {"tp", "cp"}),
            (Lists{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  const Lists dp = Enumerate({{"tp", 2}, {"cp", 3}, {"pp", 4}, {"dp", 5}}, {"dp"});
  EXPECT_EQ(dp.size(), 24u);
  for (const std::vector<int32_t>& group : dp) EXPECT_EQ(group.size(), 5u);
}

TEST(EnumerateGroups, NoAxisListedGivesGroupsOfOne) {
  EXPECT_EQ(Enumerate({{"tp", 3}}, {}), (Lists{{0}, {1}, {2}}));
  EXPECT_EQ(Enumerate({}, {}), (Lists{{0}}));
}

// Section 6 again: tp 2, dp 2, pp 2 from rank 0 on.
TEST(ModuleGroups, GroupsOfTheBridgeLayout) {
  const Topology topology = Make(8, {{.name = "language", .dp = 2, .tp = 2, .pp = 2}});

  EXPECT_EQ(ListsOf(*ModuleGroups(topology, 0, "dp")), (Lists{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(ListsOf(*ModuleGroups(topology, 0, "pp")), (Lists{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(ListsOf(*ModuleGroups(topology, 0, "tp")), (Lists{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(ListsOf(*ModuleGroups(topology, 0, "tp-cp-dp-pp")), (Lists{{0, 1, 2, 3, 4, 5, 6, 7}}));
}

// Section 6: upstream's leaders of each replica, the last lane of those that send and the first of
// those that receive, as source and as destination of an edge.
TEST(EdgeGroup, LeadersOfTheReportsLayouts) {
  struct Layout {
    Module module;
    std::vector<int32_t> sends, receives;
  };
  const std::vector<Layout> layouts = {
      {{.name = "", .dp = 2, .tp = 2, .pp = 2}, {5, 7}, {0, 2}},
      {{.name = "", .dp = 3, .first_rank = 2}, {2, 3, 4}, {2, 3, 4}},
      {{.name = "", .dp = 3, .tp = 2, .first_rank = 2}, {3, 5, 7}, {2, 4, 6}},
      {{.name = "", .dp = 2, .tp = 4, .pp = 2}, {11, 15}, {0, 4}},
  };
  for (const Layout& layout : layouts) {
    for (const bool is_source : {true, false}) {
      Module grid = layout.module;
      const int64_t ranks = grid.dp * grid.tp * grid.pp;
      grid.name = is_source ? "vision" : kLanguage;
      // The other module has the ranks that are left, on one side of it.
      Module other = {.name = is_source ? kLanguage : "vision",
                      .dp = grid.first_rank == 0 ? 1 : grid.first_rank,
                      .first_rank = grid.first_rank == 0 ? ranks : 0};
      const Topology topology = Make(ranks + other.dp, {grid, other});
      const Route route = *PlanRoute(topology, 0, UniformOwnership(12), RowsOf::kSamples);
      const Side& side = is_source ? route.from : route.to;
      std::vector<int32_t> leaders;
      for (int64_t replica = 0; replica < side.dp_size; ++replica) {
        const int64_t lane = is_source ? side.lanes - 1 : 0;
        leaders.push_back(side.ranks[static_cast<size_t>(replica * side.lanes + lane)]);
      }

      EXPECT_EQ(leaders, is_source ? layout.sends : layout.receives)
          << "tp " << grid.tp << " dp " << grid.dp << " pp " << grid.pp;
    }
  }
}

TEST(ModuleGroups, TheOrderInWhichAxesAreAskedForIsOfNoAccount) {
  const Topology topology = Make(8, {{.name = "language", .dp = 2, .tp = 2, .cp = 2}});

  EXPECT_EQ(ModuleGroups(topology, 0, "tp-cp")->ranks, ModuleGroups(topology, 0, "cp-tp")->ranks);
  EXPECT_EQ(ListsOf(*ModuleGroups(topology, 0, "tp-cp")), (Lists{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(ListsOf(*ModuleGroups(topology, 0, "dp-cp")), (Lists{{0, 2, 4, 6}, {1, 3, 5, 7}}));
}

TEST(ModuleGroups, UseTheRanksThatAreListed) {
  const Topology topology =
      Make(4, {{.name = "language", .dp = 2, .tp = 2, .ranks = {3, 0, 2, 1}}});

  EXPECT_EQ(ListsOf(*ModuleGroups(topology, 0, "tp")), (Lists{{3, 0}, {2, 1}}));
}

TEST(ModuleGroups, AnUnknownAxisIsAnError) {
  const Topology topology = Make(1, {{.name = "language"}});

  for (const char* axes : {"ep", "tp-tp", "", "tp-"}) {
    EXPECT_THAT(std::string(ModuleGroups(topology, 0, axes).status().message()),
                HasSubstr("axes are tp, cp, dp and pp"))
        << axes;
  }
}

// Section 6: the last stage of the source and the first stage of the destination bridge an edge.
// Upstream's leaders, the last and the first rank of each replica, are among these ranks.
TEST(EdgeGroup, IsTheLastStageOfFromAndTheFirstOfTo) {
  const Topology topology = Make(12, {{.name = "vision", .dp = 2, .tp = 2, .pp = 2},
                                      {.name = "language", .tp = 2, .pp = 2, .first_rank = 8}});

  EXPECT_EQ(ListsOf(EdgeGroup(topology, 0)), (Lists{{4, 5, 6, 7, 8, 9}}));
}

TEST(EdgeGroup, HasSharedRanksOnce) {
  const Topology topology = Make(2, {{.name = "vision", .dp = 2}, {.name = "language", .tp = 2}});

  EXPECT_EQ(ListsOf(EdgeGroup(topology, 0)), (Lists{{0, 1}}));
}

TEST(ProcessGroups, AreInOneOrder) {
  const Topology topology = Make(
      6, {{.name = "vision", .dp = 2, .tp = 2}, {.name = "language", .tp = 2, .first_rank = 4}});
  std::vector<std::string> names;

  for (const GroupSet& set : ProcessGroups(topology)) names.push_back(set.name);

  EXPECT_THAT(
      names,
      ElementsAre("vision/tp", "vision/cp", "vision/pp", "vision/dp", "vision/dp-cp",
                  "vision/tp-cp", "vision/tp-pp", "vision/tp-dp-cp", "vision/tp-cp-dp-pp",
                  "vision/embedding", "language/tp", "language/cp", "language/pp", "language/dp",
                  "language/dp-cp", "language/tp-cp", "language/tp-pp", "language/tp-dp-cp",
                  "language/tp-cp-dp-pp", "language/embedding", "vision>language", "world"));
}

TEST(ProcessGroups, HeaderExample) {
  const Topology topology = Make(
      6, {{.name = "vision", .dp = 2, .tp = 2}, {.name = "language", .tp = 2, .first_rank = 4}});

  const std::vector<GroupSet> sets = ProcessGroups(topology);

  EXPECT_EQ(ListsOf(sets[0]), (Lists{{0, 1}, {2, 3}}));
  EXPECT_EQ(ListsOf(sets[sets.size() - 2]), (Lists{{0, 1, 2, 3, 4, 5}}));
  EXPECT_EQ(ListsOf(sets.back()), (Lists{{0, 1, 2, 3, 4, 5}}));
}

// Section 6: for every pipeline its first and last rank.
TEST(ProcessGroups, EmbeddingsAreOfTheFirstAndLastStage) {
  const Topology topology = Make(6, {{.name = "language", .dp = 2, .pp = 3}});
  const Topology flat = Make(2, {{.name = "language", .dp = 2}});

  EXPECT_EQ(ListsOf(ProcessGroups(topology)[9]), (Lists{{0, 4}, {1, 5}}));
  EXPECT_EQ(ListsOf(ProcessGroups(flat)[9]), (Lists{{0}, {1}}));
}

TEST(ProcessGroups, InAWorldOfOneAllAreOfOne) {
  const Topology topology = Make(1, {{.name = "language"}});

  for (const GroupSet& set : ProcessGroups(topology)) {
    EXPECT_EQ(set.group_size, 1) << set.name;
    EXPECT_THAT(set.ranks, ElementsAre(0)) << set.name;
  }
}

}  // namespace
}  // namespace lockstep::mimo
