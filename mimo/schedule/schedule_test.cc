#include "mimo/schedule/schedule.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::mimo {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

Topology Make(int64_t world_size, std::vector<Module> modules, std::vector<Edge> edges = {}) {
  absl::StatusOr<Topology> topology = edges.empty() ? Topology::Make(world_size, modules)
                                                    : Topology::Make(world_size, modules, edges);
  EXPECT_TRUE(topology.ok()) << topology.status();
  return *topology;
}

Schedule Plan(const Topology& topology, const StepOptions& options) {
  absl::StatusOr<Schedule> schedule = MakeSchedule(topology, options);
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  return *schedule;
}

std::vector<std::string> Lines(const Schedule& schedule, int64_t rank) {
  std::vector<std::string> lines;
  for (const Op& op : schedule.ops_of(rank)) {
    lines.push_back((op.with_previous ? "+ " : "") + Describe(schedule, rank, op));
  }
  return lines;
}

// A schedule by hand: a list for each rank.
Schedule ByHand(const std::vector<std::vector<Op>>& lists, std::vector<GroupSet> groups = {}) {
  Schedule schedule;
  schedule.world_size = static_cast<int64_t>(lists.size());
  schedule.group_sets = std::move(groups);
  schedule.modules = {"vision", "language"};
  schedule.edges = {"vision>language"};
  for (const std::vector<Op>& list : lists) {
    schedule.ops.insert(schedule.ops.end(), list.begin(), list.end());
    schedule.op_offsets.push_back(static_cast<int64_t>(schedule.ops.size()));
  }
  return schedule;
}

Op Send(int32_t to, int64_t rows = 1) {
  return {.kind = OpKind::kSend, .payload = Payload::kBridge, .partner = to, .rows = rows};
}
Op Receive(int32_t from, int64_t rows = 1) {
  return {.kind = OpKind::kReceive, .payload = Payload::kBridge, .partner = from, .rows = rows};
}
Op Reduce(int32_t group) {
  return {.kind = OpKind::kCollective, .payload = Payload::kReduceGradients, .partner = group};
}
Op With(Op op) {
  op.with_previous = true;
  return op;
}

std::string ErrorOf(const Schedule& schedule) {
  const absl::StatusOr<Simulation> simulation = Simulate(schedule);
  EXPECT_FALSE(simulation.ok());
  EXPECT_EQ(simulation.status().code(), absl::StatusCode::kFailedPrecondition);
  return std::string(simulation.status().message());
}

TEST(MakeSchedule, HeaderExample) {
  const Topology topology =
      Make(4, {{.name = "vision", .dp = 3}, {.name = "language", .first_rank = 3}});

  const absl::StatusOr<Schedule> schedule =
      MakeSchedule(topology, {.num_micro_batches = 4, .micro_batch_size = 6});
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  const absl::StatusOr<Simulation> simulation = Simulate(*schedule);

  ASSERT_TRUE(simulation.ok()) << simulation.status();
  EXPECT_EQ(simulation->transfers, 4 * 3 * 2);
  EXPECT_EQ(simulation->collectives, 3);  // vision's gradients, the tokens, the norm
}

TEST(MakeSchedule, SequentialOrderOfEachRank) {
  const Topology topology =
      Make(3, {{.name = "vision", .dp = 2}, {.name = "language", .first_rank = 2}});

  const Schedule schedule = Plan(topology, {.num_micro_batches = 1, .micro_batch_size = 4});

  const std::string world = ", micro-batch 0, in group world of ranks 0, 1, 2";
  EXPECT_THAT(
      Lines(schedule, 0),
      ElementsAre(
          "rank 0: send of activations vision>language, micro-batch 0, 2 rows, to rank 2",
          "rank 0: receive of gradients vision>language, micro-batch 0, 2 rows, from rank 2",
          "rank 0: count of tokens" + world,
          "rank 0: reduction of gradients over dp-cp vision, micro-batch 0, in group vision/dp-cp "
          "of"
          " ranks 0, 1",
          "rank 0: global norm" + world));
  EXPECT_THAT(
      Lines(schedule, 2),
      ElementsAre(
          "rank 2: receive of activations vision>language, micro-batch 0, 2 rows, from rank 0",
          "+ rank 2: receive of activations vision>language, micro-batch 0, 2 rows, from rank 1",
          "rank 2: send of gradients vision>language, micro-batch 0, 2 rows, to rank 0",
          "+ rank 2: send of gradients vision>language, micro-batch 0, 2 rows, to rank 1",
          "rank 2: count of tokens" + world, "rank 2: global norm" + world));
}

TEST(MakeSchedule, ColocatedRanksExchangeInOneBatch) {
  const Topology topology = Make(2, {{.name = "vision", .dp = 2}, {.name = "language", .tp = 2}});
  const Ownership images = *MakeOwnership({2, 1}, {1, 1, 1});
  const std::vector<Route> routes = {*PlanRoute(topology, 0, images, RowsOf::kTokens)};
  ASSERT_EQ(routes[0].transfers.size(), 2u);  // [0, 2) and [2, 3) on both sides: copies

  const Schedule aligned = Plan(topology, {.num_micro_batches = 1, .routes = routes});
  const Topology reversed =
      Make(2, {{.name = "vision", .dp = 2}, {.name = "language", .dp = 2, .ranks = {1, 0}}});
  const Schedule exchange = Plan(reversed, {.num_micro_batches = 1, .micro_batch_size = 2});

  EXPECT_EQ(Simulate(aligned)->transfers, 0);
  EXPECT_EQ(Simulate(exchange)->transfers, 4);
  EXPECT_FALSE(exchange.ops_of(0)[0].with_previous);
  EXPECT_TRUE(exchange.ops_of(0)[1].with_previous);
  EXPECT_EQ(exchange.ops_of(0)[1].kind, OpKind::kReceive);
}

TEST(MakeSchedule, LanesGatherAndContextRanksSum) {
  const Topology topology =
      Make(5, {{.name = "vision", .tp = 2}, {.name = "language", .cp = 3, .first_rank = 2}});

  const Schedule schedule = Plan(topology, {.num_micro_batches = 1, .micro_batch_size = 6});

  std::vector<Payload> vision;
  for (const Op& op : schedule.ops_of(0)) vision.push_back(op.payload);
  std::vector<Payload> language;
  for (const Op& op : schedule.ops_of(2)) language.push_back(op.payload);
  EXPECT_THAT(vision, ElementsAre(Payload::kTensorForward, Payload::kBridge, Payload::kBridge,
                                  Payload::kBridgeGradient, Payload::kBridgeGradient,
                                  Payload::kGradientGather, Payload::kTensorBackward,
                                  Payload::kCountTokens, Payload::kGlobalNorm));
  EXPECT_THAT(language,
              ElementsAre(Payload::kBridge, Payload::kBridgeGather, Payload::kTensorForward,
                          Payload::kTensorBackward, Payload::kContextSum, Payload::kBridgeGradient,
                          Payload::kCountTokens, Payload::kReduceGradients, Payload::kGlobalNorm));
  EXPECT_TRUE(Simulate(schedule).ok());
}

TEST(MakeSchedule, InterleavedStepsStartBackwardAsSoonAsTheyCan) {
  const Topology topology = Make(2, {{.name = "language", .pp = 2}});

  const Schedule schedule = Plan(topology, {.num_micro_batches = 3, .order = Order::k1F1B});

  std::vector<std::pair<Payload, int>> first;
  for (const Op& op : schedule.ops_of(0)) first.emplace_back(op.payload, op.micro_batch);
  first.resize(6);
  EXPECT_THAT(
      first,
      ElementsAre(std::pair(Payload::kStage, 0), std::pair(Payload::kStage, 1),
                  std::pair(Payload::kStageGradient, 0), std::pair(Payload::kStage, 2),
                  std::pair(Payload::kStageGradient, 1), std::pair(Payload::kStageGradient, 2)));
  EXPECT_TRUE(schedule.ops_of(0)[2].with_previous);
  EXPECT_TRUE(Simulate(schedule).ok());
}

TEST(MakeSchedule, AllForwardsFirstWaitsForTheCallBeforeTheLast) {
  const Topology topology = Make(2, {{.name = "vision"}, {.name = "language", .first_rank = 1}});

  const Schedule schedule = Plan(
      topology, {.num_micro_batches = 3, .micro_batch_size = 2, .order = Order::kAllForwardsFirst});

  const auto text = [](int rank, const std::string& what, int micro_batch) {
    const std::string other = absl::StrCat(1 - rank);
    return absl::StrCat("rank ", rank, ": ", what, " vision>language, micro-batch ", micro_batch,
                        what[0] == 's'   ? ", 2 rows, to rank " + other
                        : what[0] == 'r' ? ", 2 rows, from rank " + other
                                         : "");
  };
  const std::string send = "send of activations", wait = "wait for what it sent of activations",
                    take = "receive of gradients", receive = "receive of activations",
                    give = "send of gradients", end = "wait for what it sent of gradients";
  const std::string world = ", micro-batch 2, in group world of ranks 0, 1";
  const auto with = [](const std::string& line) { return "+ " + line; };
  EXPECT_THAT(Lines(schedule, 0),
              ElementsAre(text(0, send, 0), text(0, send, 1), text(0, wait, 0), text(0, send, 2),
                          text(0, take, 0), with(text(0, wait, 0)), text(0, take, 1),
                          with(text(0, wait, 1)), text(0, take, 2), with(text(0, wait, 2)),
                          "rank 0: count of tokens" + world, "rank 0: global norm" + world));
  EXPECT_THAT(Lines(schedule, 1),
              ElementsAre(text(1, receive, 0), text(1, receive, 1), text(1, receive, 2),
                          text(1, give, 0), text(1, give, 1), text(1, give, 2),
                          "rank 1: count of tokens" + world, "rank 1: global norm" + world,
                          text(1, end, 0), with(text(1, end, 1)), with(text(1, end, 2))));
  for (const Op& op : schedule.ops) EXPECT_EQ(op.detached, op.kind == OpKind::kSend);
  EXPECT_TRUE(Simulate(schedule).ok());
}

TEST(MakeSchedule, SharedWeightsAreReducedByTheFirstAndTheLastStage) {
  const Topology topology = Make(3, {{.name = "language", .pp = 3}});

  const Schedule schedule = Plan(topology, {.num_micro_batches = 1});

  const auto has = [&](int64_t rank) {
    return std::ranges::any_of(schedule.ops_of(rank),
                               [](const Op& op) { return op.payload == Payload::kReduceShared; });
  };
  EXPECT_TRUE(has(0));
  EXPECT_FALSE(has(1));
  EXPECT_TRUE(has(2));
  EXPECT_TRUE(Simulate(schedule).ok());
}

TEST(MakeSchedule, AWorldOfOneHasNothingToDo) {
  const Schedule schedule = Plan(Make(1, {{.name = "language"}}), {.num_micro_batches = 3});

  EXPECT_THAT(schedule.ops, IsEmpty());
  EXPECT_TRUE(Simulate(schedule).ok());
}

TEST(MakeSchedule, NothingIsSentForSamplesWithoutRows) {
  const Topology topology = Make(2, {{.name = "vision"}, {.name = "language", .first_rank = 1}});
  const std::vector<Route> routes = {
      *PlanRoute(topology, 0, *MakeOwnership({0, 0}, {}), RowsOf::kTokens)};

  const Schedule schedule = Plan(topology, {.num_micro_batches = 2, .routes = routes});

  EXPECT_EQ(Simulate(schedule)->transfers, 0);
}

TEST(MakeSchedule, ErrorsNameTheOption) {
  const Topology topology = Make(2, {{.name = "vision"}, {.name = "language", .first_rank = 1}});
  const Topology colocated = Make(1, {{.name = "vision"}, {.name = "language"}});
  const Route route = *PlanRoute(topology, 0, UniformOwnership(1), RowsOf::kSamples);
  const std::vector<Route> two = {route, route};
  const std::vector<Route> none = {Route{}};
  const auto message = [](const auto& result) { return std::string(result.status().message()); };

  EXPECT_EQ(message(MakeSchedule(topology, {.num_micro_batches = 0, .micro_batch_size = 1})),
            "mimo: schedule: num_micro_batches is 0; it must be positive");
  EXPECT_THAT(message(MakeSchedule(topology, {})),
              HasSubstr("there are no routes, and micro_batch_size is 0; give either"));
  EXPECT_THAT(message(MakeSchedule(topology, {.num_micro_batches = 3, .routes = two})),
              HasSubstr("there are 2 routes for 1 edges and 3 micro-batches; give 1, or 3"));
  EXPECT_THAT(message(MakeSchedule(topology, {.num_micro_batches = 1, .routes = none})),
              HasSubstr("route 0 is not of edge vision -> language; use PlanRoute"));
  EXPECT_THAT(message(MakeSchedule(colocated, {.micro_batch_size = 1, .order = Order::k1F1B})),
              HasSubstr("rank 0 has 2 modules; 1F1B wants one on each rank: use kSequential"));
}

TEST(Simulate, NamesWhoWaitsForWhom) {
  EXPECT_EQ(
      ErrorOf(ByHand({{Send(1), Receive(1)}, {Send(0), Receive(0)}})),
      "mimo: the schedule never ends: 2 ranks wait for each other:\n"
      "  rank 0: send of activations vision>language, micro-batch 0, 1 row, to rank 1; waits for"
      " rank 1\n"
      "  rank 1: send of activations vision>language, micro-batch 0, 1 row, to rank 0; waits for"
      " rank 0");
  EXPECT_TRUE(Simulate(ByHand({{Send(1), With(Receive(1))}, {Send(0), With(Receive(0))}})).ok());
}

// Rank 1 wants to be rid of something before it receives; rank 0 takes that after its sends.
TEST(Simulate, ARankGoesOnWithoutWhatIsDetachedUpToTheWait) {
  const auto at = [](Op op, int micro_batch, bool is_detached) {
    op.detached = is_detached;
    op.micro_batch = micro_batch;
    return op;
  };
  const Op first = at(Send(1), 0, true), second = at(Send(1), 1, true);
  const Op wait = {.kind = OpKind::kWait};  // for the first
  const std::vector<Op> other = {Send(0), at(Receive(0), 0, false), at(Receive(0), 1, false)};

  EXPECT_TRUE(Simulate(ByHand({{first, second, Receive(1), wait}, other})).ok());
  EXPECT_EQ(ErrorOf(ByHand({{first, second, wait, Receive(1)}, other})),
            "mimo: the schedule never ends: 2 ranks wait for each other:\n"
            "  rank 0: wait for what it sent of activations vision>language, micro-batch 0; waits"
            " for rank 1\n"
            "  rank 1: send of activations vision>language, micro-batch 0, 1 row, to rank 0; waits"
            " for rank 0");
  EXPECT_THAT(ErrorOf(ByHand({{at(first, 0, false), Receive(1)}, {Send(0), Receive(0)}})),
              HasSubstr("2 ranks wait"));
}

TEST(Simulate, NamesTheCycleAlone) {
  // Ranks 1 to 3 wait in a circle; rank 0 waits for them.
  const std::string message = ErrorOf(ByHand({{Receive(1)},
                                              {Receive(3), Send(2), Send(0)},
                                              {Receive(1), Send(3)},
                                              {Receive(2), Send(1)}}));

  EXPECT_THAT(message, HasSubstr("3 ranks wait for each other"));
  EXPECT_THAT(message, Not(HasSubstr("rank 0")));
}

TEST(Simulate, CollectivesInAnotherOrderNeverEnd) {
  const std::vector<GroupSet> groups = {{"a", 2, {0, 1}}, {"b", 2, {0, 1}}};

  EXPECT_THAT(
      ErrorOf(ByHand({{Reduce(0), Reduce(1)}, {Reduce(1), Reduce(0)}}, groups)),
      HasSubstr("rank 0: reduction of gradients over dp-cp vision, micro-batch 0, in group a of"
                " ranks 0, 1; waits for rank 1\n"
                "  rank 1: reduction of gradients over dp-cp vision, micro-batch 0, in group b"));
  EXPECT_TRUE(Simulate(ByHand({{Reduce(0), Reduce(1)}, {Reduce(0), Reduce(1)}}, groups)).ok());
}

TEST(Simulate, ASendBeforeACollectiveThatItsReceiverIsInNeverEnds) {
  const std::vector<GroupSet> groups = {{"world", 2, {0, 1}}};

  EXPECT_THAT(ErrorOf(ByHand({{Send(1), Reduce(0)}, {Reduce(0), Receive(0)}}, groups)),
              HasSubstr("2 ranks wait for each other"));
}

TEST(Simulate, NamesWhatHasNoPartner) {
  const std::vector<GroupSet> groups = {{"world", 2, {0, 1}}, {"alone", 1, {0}}};

  EXPECT_EQ(
      ErrorOf(ByHand({{Send(1)}, {}})),
      "mimo: the schedule does not match in 1 place:\n"
      "  rank 0: send of activations vision>language, micro-batch 0, 1 row, to rank 1, which rank"
      " 1 never receives");
  EXPECT_THAT(ErrorOf(ByHand({{}, {Receive(0)}})), HasSubstr("which rank 0 never sends"));
  EXPECT_THAT(ErrorOf(ByHand({{Reduce(0)}, {}}, groups)), HasSubstr("which rank 1 never joins"));
  EXPECT_THAT(
      ErrorOf(ByHand({{Reduce(1)}, {Reduce(1)}}, groups)),
      HasSubstr("rank 1: reduction of gradients over dp-cp vision, micro-batch 0, in group alone"
                " of ranks 0, which the rank is not in"));
}

TEST(Simulate, NamesPartnersThatCarryDifferentThings) {
  Op late = Receive(0);
  late.micro_batch = 1;
  Op norm = Reduce(0);
  norm.payload = Payload::kGlobalNorm;

  EXPECT_THAT(ErrorOf(ByHand({{Send(1, 4)}, {Receive(0, 3)}})),
              HasSubstr("4 rows, to rank 1, meets rank 1: receive of activations vision>language,"
                        " micro-batch 0, 3 rows, from rank 0"));
  EXPECT_THAT(ErrorOf(ByHand({{Send(1)}, {late}})), HasSubstr("micro-batch 1"));
  EXPECT_THAT(
      ErrorOf(ByHand({{Reduce(0)}, {norm}}, {{"world", 2, {0, 1}}})),
      HasSubstr("rank 1: global norm, micro-batch 0, in group world of ranks 0, 1, meets rank"
                " 0: reduction"));
}

TEST(Simulate, ReportsAtMostEightAndCountsTheRest) {
  std::vector<Op> sends(10, Send(1));

  EXPECT_THAT(ErrorOf(ByHand({sends, {}})), HasSubstr("in 10 places:"));
  EXPECT_THAT(ErrorOf(ByHand({sends, {}})), HasSubstr("\n  and 2 more"));
}

TEST(Simulate, RefusesWhatIsNoSchedule) {
  Schedule cut = ByHand({{Send(1)}, {Receive(0)}});
  cut.op_offsets.back() = 1;
  const std::vector<Schedule> broken = {Schedule{},
                                        cut,
                                        ByHand({{Send(2)}, {}}),
                                        ByHand({{Reduce(0)}}),
                                        ByHand({{With(Send(1))}, {Receive(0)}}),
                                        ByHand({{}}, {{"pair", 2, {0, 1}}}),
                                        ByHand({{}, {}}, {{"pair", 2, {1, 1}}}),
                                        ByHand({{}, {}}, {{"pair", 2, {0}}}),
                                        ByHand({{}, {}}, {{"none", 0, {0}}})};

  for (const Schedule& schedule : broken) {
    const absl::Status status = Simulate(schedule).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("mimo: no schedule: "));
  }
}

// A source that sends to a sink both directly and through two stages starts three forwards before
// its first backward; the sink starts none. It ends because a bridge sends ahead.
TEST(Simulate, InterleavingAcrossAShortCutEndsBecauseBridgesSendAhead) {
  const Topology topology =
      Make(4,
           {{.name = "vision"},
            {.name = "adapter", .pp = 2, .first_rank = 1},
            {.name = "language", .first_rank = 3}},
           {{"vision", "adapter"}, {"adapter", "language"}, {"vision", "language"}});
  Schedule schedule =
      Plan(topology, {.num_micro_batches = 4, .micro_batch_size = 1, .order = Order::k1F1B});

  EXPECT_TRUE(Simulate(schedule).ok()) << Simulate(schedule).status();
  for (Op& op : schedule.ops) op.detached = false;
  EXPECT_THAT(ErrorOf(schedule), HasSubstr("wait for each other"));
}

}  // namespace
}  // namespace lockstep::mimo
