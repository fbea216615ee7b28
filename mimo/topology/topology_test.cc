#include "mimo/topology/topology.h"

#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::mimo {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// With no edges given, those of the default.
absl::StatusOr<Topology> TryMake(int64_t world_size, const std::vector<Module>& modules,
                                 const std::vector<Edge>& edges) {
  return edges.empty() ? Topology::Make(world_size, modules)
                       : Topology::Make(world_size, modules, edges);
}

Topology Make(int64_t world_size, std::vector<Module> modules, std::vector<Edge> edges = {}) {
  absl::StatusOr<Topology> topology = TryMake(world_size, modules, edges);
  EXPECT_TRUE(topology.ok()) << topology.status();
  return *topology;
}

std::string ErrorOf(int64_t world_size, std::vector<Module> modules, std::vector<Edge> edges = {}) {
  const absl::StatusOr<Topology> topology = TryMake(world_size, modules, edges);
  EXPECT_FALSE(topology.ok());
  EXPECT_EQ(topology.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(topology.status().message());
}

Topology VisionAndLanguage() {
  return Make(
      4, {{.name = "vision", .dp = 3, .first_rank = 0}, {.name = "language", .first_rank = 3}});
}

TEST(Topology, HeaderExample) {
  const Topology topology = VisionAndLanguage();

  EXPECT_EQ(topology.module(1)->name, "vision");
  EXPECT_EQ(topology.dp_info(1), (DpInfo{1, 3}));
  EXPECT_EQ(topology.sampling_info(1), (SamplingInfo{0, 1, true}));
  EXPECT_TRUE(topology.Validate({.micro_batch_size = 6, .global_batch_size = 24}).ok());
}

TEST(Topology, AWorldOfOneHasAllSizesOne) {
  const Topology topology = Make(1, {{.name = "language"}});

  EXPECT_EQ(topology.module(0)->name, "language");
  EXPECT_EQ(*topology.coordinates(0), (Coordinates{0, 0, 0, 0}));
  EXPECT_EQ(topology.dp_info(0), (DpInfo{0, 1}));
  EXPECT_EQ(topology.sampling_info(0), (SamplingInfo{0, 1, true}));
  EXPECT_THAT(topology.edges(), IsEmpty());
  EXPECT_THAT(topology.forward_order(), ElementsAre(0));
}

TEST(Topology, AnEmptyListGivesNoEdgesAndNoListTheDefault) {
  const std::vector<Module> modules = {{.name = "vision"}, {.name = "language", .first_rank = 1}};

  EXPECT_EQ(Topology::Make(2, modules)->edges().size(), 1u);
  EXPECT_THAT(Topology::Make(2, modules, std::vector<Edge>())->edges(), IsEmpty());
}

TEST(Topology, ARankOutsideTheWorldHasNoModule) {
  const Topology topology = VisionAndLanguage();

  for (int64_t rank : {int64_t{-1}, int64_t{4}, int64_t{1} << 40}) {
    EXPECT_EQ(topology.module(rank), nullptr);
    EXPECT_THAT(topology.modules_of(rank), IsEmpty());
    EXPECT_EQ(topology.dp_info(rank), (DpInfo{0, 1}));
    EXPECT_EQ(topology.sampling_info(rank), (SamplingInfo{0, 1, false}));
    EXPECT_EQ(topology.coordinates(rank).status().code(), absl::StatusCode::kNotFound);
  }
  EXPECT_EQ(topology.coordinates(0, 2).status().message(), "mimo: there is no module 2 of 2");
  EXPECT_THAT(std::string(topology.coordinates(4).status().message()),
              HasSubstr("rank 4 has no module; ranks are 0 to 3"));
}

TEST(Topology, TensorParallelVariesFastestThenContextThenDataThenStage) {
  const Topology topology =
      Make(17, {{.name = "vision"},
                {.name = "language", .dp = 2, .tp = 2, .cp = 2, .pp = 2, .first_rank = 1}});

  EXPECT_EQ(*topology.coordinates(2), (Coordinates{.dp = 0, .tp = 1, .cp = 0, .pp = 0}));
  EXPECT_EQ(*topology.coordinates(3), (Coordinates{.dp = 0, .tp = 0, .cp = 1, .pp = 0}));
  EXPECT_EQ(*topology.coordinates(5), (Coordinates{.dp = 1, .tp = 0, .cp = 0, .pp = 0}));
  EXPECT_EQ(*topology.coordinates(9), (Coordinates{.dp = 0, .tp = 0, .cp = 0, .pp = 1}));
}

TEST(Topology, CoordinatesAndRanksAreInverseForEveryOrder) {
  for (const char* order : {"tp-cp-dp-pp", "pp-dp-cp-tp", "dp-tp-pp-cp", "cp-pp-tp-dp"}) {
    const Topology topology =
        Make(25, {{.name = "language", .dp = 2, .tp = 3, .cp = 1, .pp = 4, .order = order},
                  {.name = "vision", .first_rank = 24}});
    std::set<std::tuple<int, int, int, int>> seen;
    for (int64_t rank = 0; rank < 24; ++rank) {
      const Coordinates at = *topology.coordinates(rank, 0);
      EXPECT_EQ(topology.rank(0, at), rank) << order;
      seen.insert({at.dp, at.tp, at.cp, at.pp});
    }
    EXPECT_EQ(seen.size(), 24u) << order;
  }
  const Topology stages_first =
      Make(4, {{.name = "language", .dp = 2, .pp = 2, .order = "pp-tp-cp-dp"}});
  EXPECT_EQ(*stages_first.coordinates(1), (Coordinates{.pp = 1}));
}

TEST(Topology, ListedRanksHoldThePlacesOfTheGridInTheirOrder) {
  const Topology topology = Make(5, {{.name = "language", .dp = 2, .tp = 2, .ranks = {4, 0, 2, 1}},
                                     {.name = "vision", .ranks = {3}}});

  EXPECT_EQ(topology.module(3)->name, "vision");
  EXPECT_EQ(topology.rank(0, {.dp = 1, .tp = 0}), 2);
  EXPECT_EQ(*topology.coordinates(0), (Coordinates{.dp = 0, .tp = 1}));
  EXPECT_EQ(topology.dp_info(1), (DpInfo{1, 2}));
}

TEST(Topology, ModulesMakeTheSameTopologyAgain) {
  const Topology topology = Make(5, {{.name = "language", .dp = 2, .tp = 2, .ranks = {4, 0, 2, 1}},
                                     {.name = "vision", .first_rank = 3}});

  const Topology again = Make(topology.world_size(), topology.modules(), topology.edges());

  for (int64_t rank = 0; rank < 5; ++rank) {
    EXPECT_EQ(*again.coordinates(rank), *topology.coordinates(rank));
    EXPECT_EQ(again.module(rank)->name, topology.module(rank)->name);
  }
}

TEST(ColocatedModules, EachModuleHasItsOwnCoordinates) {
  const Topology topology =
      Make(4, {{.name = "vision", .dp = 4}, {.name = "language", .dp = 2, .tp = 2}});

  EXPECT_THAT(topology.modules_of(2), ElementsAre(0, 1));
  EXPECT_TRUE(topology.colocated(2));
  EXPECT_EQ(topology.module(2)->name, "vision");
  EXPECT_EQ(*topology.coordinates(3, 0), (Coordinates{.dp = 3}));
  EXPECT_EQ(*topology.coordinates(3, 1), (Coordinates{.dp = 1, .tp = 1}));
}

TEST(ColocatedModules, DpInfoIsZeroOfOneUnlessTheModuleIsNamed) {
  const Topology topology =
      Make(4, {{.name = "vision", .dp = 4}, {.name = "language", .dp = 2, .tp = 2}});

  EXPECT_EQ(topology.dp_info(3), (DpInfo{0, 1}));
  EXPECT_EQ(*topology.dp_info(3, "vision"), (DpInfo{3, 4}));
  EXPECT_EQ(*topology.dp_info(3, "language"), (DpInfo{1, 2}));
}

TEST(DpInfo, AnotherModulesRankIsNotFound) {
  const Topology topology = VisionAndLanguage();

  EXPECT_EQ(*topology.dp_info(2, "vision"), (DpInfo{2, 3}));
  EXPECT_EQ(topology.dp_info(2, "language").status().message(),
            "mimo: rank 2 of world_size 4 is not of \"language\"");
  EXPECT_EQ(topology.dp_info(2, "audio").status().message(),
            "mimo: no module is called \"audio\"; there are \"vision\", \"language\"");
}

// Section 2.2 of the report: the language model needs data on every stage, an encoder on its first.
TEST(NeedsData, LanguageOnEveryStageOthersOnTheFirst) {
  const Topology topology =
      Make(7, {{.name = "vision", .pp = 3}, {.name = "language", .pp = 4, .first_rank = 3}});
  const std::vector<bool> expected = {true, false, false, true, true, true, true};

  for (int64_t rank = 0; rank < 7; ++rank) {
    EXPECT_EQ(topology.sampling_info(rank).needs_data, expected[static_cast<size_t>(rank)]) << rank;
  }
}

TEST(NeedsData, AColocatedRankNeedsItForAnyOfItsModules) {
  const Topology topology = Make(2, {{.name = "vision", .pp = 2}, {.name = "language", .dp = 2}});

  EXPECT_TRUE(topology.sampling_info(1).needs_data);
  EXPECT_FALSE(topology.NeedsData(0, 1));
}

TEST(SamplingInfo, EveryLoadingRankLoadsTheSame) {
  const Topology topology = Make(8, {{.name = "vision", .dp = 3, .first_rank = 5},
                                     {.name = "language", .dp = 2, .tp = 2, .first_rank = 0},
                                     {.name = "audio", .first_rank = 4}});
  for (int64_t rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(topology.sampling_info(rank), (SamplingInfo{0, 1, true}));
  }
}

TEST(SamplingInfo, ScalableReadsAreOfTheReplica) {
  const Topology topology = Make(
      7, {{.name = "vision", .dp = 3}, {.name = "language", .dp = 2, .pp = 2, .first_rank = 3}});

  EXPECT_EQ(topology.sampling_info(2, true), (SamplingInfo{2, 3, true}));
  EXPECT_EQ(topology.sampling_info(6, true), (SamplingInfo{1, 2, true}));
}

TEST(SamplingInfo, ScalableReadsOfColocatedModulesAreWholeUnlessReplicasAreTheSame) {
  const Topology same = Make(2, {{.name = "vision", .dp = 2}, {.name = "language", .dp = 2}});
  const Topology unlike = Make(2, {{.name = "vision", .dp = 2}, {.name = "language", .tp = 2}});

  EXPECT_EQ(same.sampling_info(1, true), (SamplingInfo{1, 2, true}));
  EXPECT_EQ(unlike.sampling_info(1, true), (SamplingInfo{0, 1, true}));
}

TEST(Edges, ByDefaultEveryOtherModuleFeedsLanguage) {
  const Topology topology = Make(3, {{.name = "vision"},
                                     {.name = "language", .first_rank = 1},
                                     {.name = "audio", .first_rank = 2}});

  ASSERT_EQ(topology.edges().size(), 2u);
  EXPECT_EQ(topology.from(0), 0);
  EXPECT_EQ(topology.from(1), 2);
  EXPECT_EQ(topology.to(0), 1);
  EXPECT_EQ(topology.to(1), 1);
  EXPECT_THAT(topology.forward_order(), ElementsAre(0, 2, 1));
}

TEST(Edges, ForwardOrderFollowsTheEdges) {
  const Topology topology = Make(3,
                                 {{.name = "generator"},
                                  {.name = "language", .first_rank = 1},
                                  {.name = "vision", .first_rank = 2}},
                                 {{"language", "generator"}, {"vision", "language"}});

  EXPECT_THAT(topology.forward_order(), ElementsAre(2, 1, 0));
}

// Section 5 of the report: each rule, its values and what works.
struct BrokenRule {
  const char* rule;
  int64_t world_size;
  std::vector<Module> modules;
  std::vector<Edge> edges;
  std::string message;
};

TEST(TopologyErrors, EachRuleIsNamedWithItsValues) {
  const Module language = {.name = "language"};
  const std::vector<BrokenRule> cases = {
      {"no world", 0, {language}, {}, "topology of world_size 0: world_size is from 1 to 1048576"},
      {"a world beyond all bounds", (1 << 20) + 1, {language}, {}, "world_size is from 1 to"},
      {"no modules",
       1,
       {},
       {},
       "no module is called \"language\", as the one that has the loss must be; there is none"},
      {"no language",
       1,
       {{.name = "vision"}},
       {},
       "no module is called \"language\", as the one that has the loss must be; there are "
       "\"vision\""},
      {"no name", 1, {language, {.name = ""}}, {}, "module 1 has no name"},
      {"a name twice",
       1,
       {language, language},
       {},
       "modules 0 and 1 are both called \"language\"; a name appears once"},
      {"dp 0",
       1,
       {{.name = "language", .dp = 0}},
       {},
       "dp of \"language\" is 0; it must be positive"},
      {"tp -1", 1, {{.name = "language", .tp = -1}}, {}, "tp of \"language\" is -1;"},
      {"cp 0", 1, {{.name = "language", .cp = 0}}, {}, "cp of \"language\" is 0;"},
      {"pp 0", 1, {{.name = "language", .pp = 0}}, {}, "pp of \"language\" is 0;"},
      {"order",
       1,
       {{.name = "language", .order = "tp-dp-pp"}},
       {},
       "order of \"language\" is \"tp-dp-pp\"; it must hold each of tp, cp, dp and pp once"},
      {"order twice",
       1,
       {{.name = "language", .order = "tp-cp-dp-dp"}},
       {},
       "order of \"language\""},
      {"more ranks than any world",
       8,
       {{.name = "language", .dp = int64_t{1} << 40, .tp = int64_t{1} << 40}},
       {},
       "has more than 1048576 ranks"},
      {"a negative first rank",
       1,
       {{.name = "language", .first_rank = -1}},
       {},
       "first_rank of \"language\" is -1; it must not be negative"},
      {"ranks beyond the world",
       4,
       {{.name = "language", .dp = 3, .tp = 2, .first_rank = 2}},
       {},
       "\"language\" of tp 2 x cp 1 x dp 3 x pp 1 has 6 ranks from 2 on, but world_size is 4; use "
       "8 or"
       " more"},
      {"one rank beyond the world",
       1,
       {{.name = "language", .first_rank = 1}},
       {},
       "\"language\" of tp 1 x cp 1 x dp 1 x pp 1 has 1 rank from 1 on, but world_size is 1; use 2 "
       "or more"},
      {"a listed rank beyond the world",
       2,
       {{.name = "language", .dp = 2, .ranks = {0, 2}}},
       {},
       "\"language\" lists rank 2, but ranks are 0 to 1"},
      {"a listed rank twice",
       2,
       {{.name = "language", .dp = 2, .ranks = {1, 1}}},
       {},
       "\"language\" lists rank 1 twice"},
      {"too many listed",
       4,
       {{.name = "language", .tp = 2, .ranks = {0, 1, 2, 3}}},
       {},
       "\"language\" lists 4 ranks, but tp 2 x cp 1 x dp 1 x pp 1 is 2; list 2 or use dp 2"},
      {"a list and another first rank",
       2,
       {{.name = "language", .dp = 2, .first_rank = 1, .ranks = {0, 1}}},
       {},
       "\"language\" has first_rank 1 and a list of ranks that starts with 0; give one of both"},
      {"overlap",
       4,
       {{.name = "vision", .dp = 3}, {.name = "language", .dp = 2, .first_rank = 2}},
       {},
       "\"vision\" of 3 ranks and \"language\" of 2 overlap on rank 2; modules share all of their"
       " ranks (colocated) or none; first_rank 3 for \"language\" parts them"},
      {"one inside the other",
       3,
       {{.name = "vision", .dp = 3}, {.name = "language", .dp = 2}},
       {},
       "\"vision\" of 3 ranks and \"language\" of 2 overlap on ranks 0, 1;"},
      {"a gap at the end",
       8,
       {{.name = "vision", .dp = 3}, {.name = "language", .first_rank = 3}},
       {},
       "ranks 4 to 7 have no module; use world_size 4, or dp 5 for \"language\""},
      {"a gap that no replica fills",
       4,
       {{.name = "language", .tp = 3}},
       {},
       "rank 3 has no module; use world_size 3"},
      {"a gap at the begin",
       2,
       {{.name = "language", .first_rank = 1}},
       {},
       "rank 0 has no module; modules cover every rank from 0 to 1"},
      {"a gap in the middle",
       3,
       {{.name = "vision"}, {.name = "language", .first_rank = 2}},
       {},
       "rank 1 has no module; modules cover"},
      {"an unknown edge",
       2,
       {{.name = "vision"}, {.name = "language", .first_rank = 1}},
       {{"video", "language"}},
       "edge video -> language: no module is called \"video\"; there are \"vision\", \"language\""},
      {"an edge twice",
       2,
       {{.name = "vision"}, {.name = "language", .first_rank = 1}},
       {{"vision", "language"}, {"vision", "language"}},
       "edge vision -> language appears twice"},
      {"an edge to itself",
       1,
       {language},
       {{"language", "language"}},
       "edges make a cycle: language -> language; leave one of them out"},
      {"a cycle",
       3,
       {{.name = "a"}, {.name = "b", .first_rank = 1}, {.name = "language", .first_rank = 2}},
       {{"a", "b"}, {"b", "language"}, {"language", "b"}},
       "edges make a cycle: b -> language -> b; leave"},
  };
  for (const BrokenRule& broken : cases) {
    const std::string message = ErrorOf(broken.world_size, broken.modules, broken.edges);
    EXPECT_THAT(message, HasSubstr(broken.message)) << broken.rule;
    EXPECT_THAT(message, Not(HasSubstr("rules are broken")))
        << broken.rule << ": one rule, one problem";
  }
}

TEST(TopologyErrors, AllAreNamedAtOnce) {
  const std::string message = ErrorOf(6,
                                      {{.name = "vision", .dp = 0},
                                       {.name = "vision", .dp = 3, .first_rank = 4},
                                       {.name = "text", .order = "rows"}},
                                      {{"vision", "language"}});

  EXPECT_EQ(
      message,
      "mimo: topology of world_size 6: 6 rules are broken:\n"
      "  1. modules 0 and 1 are both called \"vision\"; a name appears once\n"
      "  2. no module is called \"language\", as the one that has the loss must be; there are"
      " \"vision\", \"vision\", \"text\"\n"
      "  3. dp of \"vision\" is 0; it must be positive\n"
      "  4. \"vision\" of tp 1 x cp 1 x dp 3 x pp 1 has 3 ranks from 4 on, but world_size is 6;"
      " use 7 or more\n"
      "  5. order of \"text\" is \"rows\"; it must hold each of tp, cp, dp and pp once, as"
      " \"tp-cp-dp-pp\" does\n"
      "  6. edge vision -> language: no module is called \"language\"; there are \"vision\","
      " \"vision\", \"text\"");
}

// Upstream wants data-parallel sizes that divide each other and powers of two for tp; routes do
// not.
TEST(TopologyErrors, SizesNeedNeitherDivideEachOtherNorBePowersOfTwo) {
  Make(11, {{.name = "vision", .dp = 2}, {.name = "language", .dp = 3, .tp = 3, .first_rank = 2}});
}

struct Sizes {
  BatchSizes sizes;
  std::string message;  // empty: fine
};

TEST(Validate, EachRuleIsNamedWithTheNearestSizesThatWork) {
  const Topology topology =
      Make(5, {{.name = "vision", .dp = 3}, {.name = "language", .dp = 2, .first_rank = 3}});
  const std::vector<Sizes> cases = {
      {{.micro_batch_size = 6}, ""},
      {{.micro_batch_size = 12, .global_batch_size = 36}, ""},
      {{.micro_batch_size = 6, .global_batch_size = 6, .eval_micro_batch_size = 18}, ""},
      {{.micro_batch_size = 6, .eval_global_batch_size = 12}, ""},
      {{.micro_batch_size = 7, .division = Division::kUneven}, ""},
      {{}, "batch sizes: micro_batch_size is not given"},
      {{.micro_batch_size = 0}, "micro_batch_size is 0; it must be positive"},
      {{.micro_batch_size = 6, .global_batch_size = 0}, "global_batch_size is 0;"},
      {{.micro_batch_size = 6 * (kMaxMicroBatchSize / 6)}, ""},
      {{.micro_batch_size = int64_t{6} << 40},
       "micro_batch_size is 6597069766656; it must be positive, and at most 1048576 samples"},
      {{.micro_batch_size = -6}, "micro_batch_size is -6; it must be positive"},
      {{.micro_batch_size = 9},
       "batch sizes: micro_batch_size 9 is not divisible by dp 2 of \"language\"; use 6 or 12 to "
       "suit"
       " all modules"},
      {{.micro_batch_size = 4},
       "micro_batch_size 4 is not divisible by dp 3 of \"vision\"; use 6 to suit all modules"},
      {{.micro_batch_size = 2, .division = Division::kUneven},
       "micro_batch_size 2 gives 1 of 3 replicas of \"vision\" no sample; use 3 or more"},
      {{.micro_batch_size = 6, .global_batch_size = 16},
       "global_batch_size 16 is not divisible by micro_batch_size 6; use 12 or 18"},
      {{.micro_batch_size = 6, .global_batch_size = -1}, "global_batch_size is -1;"},
      {{.micro_batch_size = 6, .eval_micro_batch_size = 8},
       "eval_micro_batch_size 8 is not divisible by dp 3 of \"vision\"; use 6 or 12"},
      {{.micro_batch_size = 6, .eval_micro_batch_size = 12, .eval_global_batch_size = 30},
       "eval_global_batch_size 30 is not divisible by eval_micro_batch_size 12; use 24 or 36"},
      {{.micro_batch_size = 6, .eval_global_batch_size = 7},
       "eval_global_batch_size 7 is not divisible by micro_batch_size 6; use 6 or 12"},
  };
  for (const Sizes& c : cases) {
    const absl::Status status = topology.Validate(c.sizes);
    EXPECT_EQ(status.ok(), c.message.empty()) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("rules are broken")));
  }
}

TEST(Validate, AllRulesAreNamedAtOnce) {
  const Topology topology =
      Make(5, {{.name = "vision", .dp = 3}, {.name = "language", .dp = 2, .first_rank = 3}});

  const absl::Status status = topology.Validate(
      {.micro_batch_size = 5, .global_batch_size = 12, .eval_micro_batch_size = 4});

  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      status.message(),
      "mimo: batch sizes: 4 rules are broken:\n"
      "  1. micro_batch_size 5 is not divisible by dp 3 of \"vision\"; use 6 to suit all modules\n"
      "  2. micro_batch_size 5 is not divisible by dp 2 of \"language\"; use 6 to suit all"
      " modules\n"
      "  3. global_batch_size 12 is not divisible by micro_batch_size 5; use 10 or 15\n"
      "  4. eval_micro_batch_size 4 is not divisible by dp 3 of \"vision\"; use 6 to suit all"
      " modules");
}

}  // namespace
}  // namespace lockstep::mimo
