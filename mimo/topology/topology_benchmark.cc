// bazel run -c opt //mimo/topology:topology_benchmark
//
// Measures the time to plan a topology (ranks, coordinates and all process groups), a route, and
// the schedule of a step of 8 micro-batches, and to check that schedule. A quarter of the ranks are
// vision encoders with tp 1, pp 1. The others are a language model with tp 8, cp 2, pp 6. The
// argument is the language model's dp: 128 for 16,384 ranks. Every result is checked.
//
// The naive check looks at all ranks again and again until none moves on, as a first draft would;
// it is timed where it ends in reasonable time.

#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "benchmark/benchmark.h"
#include "mimo/batch/ownership.h"
#include "mimo/bridge/routes.h"
#include "mimo/schedule/schedule.h"
#include "mimo/topology/groups.h"
#include "mimo/topology/topology.h"

namespace lockstep::mimo {
namespace {

// 128 ranks for each unit: 32 encoders, 96 of one language replica.
absl::StatusOr<Topology> MakeTopology(int64_t units) {
  return Topology::Make(
      128 * units,
      {{.name = "vision", .dp = 32 * units},
       {.name = "language", .dp = units, .tp = 8, .cp = 2, .pp = 6, .first_rank = 32 * units}});
}

StepOptions Step(int64_t units, Order order) {
  return {.num_micro_batches = 8, .micro_batch_size = 64 * units, .order = order};
}

void Plan(benchmark::State& state) {
  for (auto _ : state) {
    const absl::StatusOr<Topology> topology = MakeTopology(state.range(0));
    if (!topology.ok()) state.SkipWithError("no topology");
    benchmark::DoNotOptimize(ProcessGroups(*topology).size());
  }
  state.counters["ranks"] = static_cast<double>(128 * state.range(0));
}
BENCHMARK(Plan)->Arg(1)->Arg(16)->Arg(128)->Unit(benchmark::kMillisecond);

void PlanRoutes(benchmark::State& state) {
  const absl::StatusOr<Topology> topology = MakeTopology(state.range(0));
  const Ownership images = UniformOwnership(64 * state.range(0), 256);
  for (auto _ : state) {
    const absl::StatusOr<Route> route = PlanRoute(*topology, 0, images, RowsOf::kTokens);
    if (!route.ok()) state.SkipWithError("no route");
    benchmark::DoNotOptimize(route->transfers.data());
  }
  state.counters["ranks"] = static_cast<double>(128 * state.range(0));
}
BENCHMARK(PlanRoutes)->Arg(1)->Arg(16)->Arg(128)->Unit(benchmark::kMillisecond);

void WriteSchedule(benchmark::State& state, Order order) {
  const absl::StatusOr<Topology> topology = MakeTopology(state.range(0));
  for (auto _ : state) {
    const absl::StatusOr<Schedule> schedule = MakeSchedule(*topology, Step(state.range(0), order));
    if (!schedule.ok()) state.SkipWithError("no schedule");
    benchmark::DoNotOptimize(schedule->ops.data());
  }
  state.counters["ranks"] = static_cast<double>(128 * state.range(0));
}
BENCHMARK_CAPTURE(WriteSchedule, sequential, Order::kSequential)
    ->Arg(1)
    ->Arg(16)
    ->Arg(128)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(WriteSchedule, interleaved, Order::k1F1B)
    ->Arg(128)
    ->Unit(benchmark::kMillisecond);

void CheckSchedule(benchmark::State& state, Order order) {
  const absl::StatusOr<Topology> topology = MakeTopology(state.range(0));
  const absl::StatusOr<Schedule> schedule = MakeSchedule(*topology, Step(state.range(0), order));
  for (auto _ : state) {
    if (!Simulate(*schedule).ok()) state.SkipWithError("the schedule does not end");
  }
  state.counters["ranks"] = static_cast<double>(128 * state.range(0));
  state.counters["operations"] = static_cast<double>(schedule->ops.size());
}
BENCHMARK_CAPTURE(CheckSchedule, sequential, Order::kSequential)
    ->Arg(1)
    ->Arg(16)
    ->Arg(128)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(CheckSchedule, all_forwards_first, Order::kAllForwardsFirst)
    ->Arg(1)
    ->Arg(16)
    ->Arg(128)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(CheckSchedule, interleaved, Order::k1F1B)
    ->Arg(1)
    ->Arg(16)
    ->Arg(128)
    ->Unit(benchmark::kMillisecond);

// Counts how often each operation has been started, by what it is; a batch is done once its
// partners have been started as often.
bool NaiveCheck(const Schedule& schedule) {
  using Key =
      std::tuple<OpKind, int64_t, int64_t>;  // kind and, of the rank that starts it, both ends
  std::map<Key, int64_t> started;
  std::vector<std::vector<std::pair<const Op*, int64_t>>> waiting(
      static_cast<size_t>(schedule.world_size));
  std::vector<size_t> next(static_cast<size_t>(schedule.world_size), 0);
  std::vector<absl::Span<const int32_t>> groups;
  for (const GroupSet& set : schedule.group_sets) {
    for (int64_t g = 0; g < set.num_groups(); ++g) groups.push_back(set.group(g));
  }
  const auto times = [&](OpKind kind, int64_t rank, int64_t partner) {
    const auto found = started.find({kind, rank, partner});
    return found == started.end() ? 0 : found->second;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (int64_t rank = 0; rank < schedule.world_size; ++rank) {
      auto& mine = waiting[static_cast<size_t>(rank)];
      bool done = true;
      for (const auto& [op, time] : mine) {
        if (op->kind == OpKind::kCollective) {
          for (int32_t member : groups[static_cast<size_t>(op->partner)]) {
            done = done && times(op->kind, member, op->partner) >= time;
          }
        } else {
          const OpKind other = op->kind == OpKind::kSend ? OpKind::kReceive : OpKind::kSend;
          done = done && times(other, op->partner, rank) >= time;
        }
      }
      const absl::Span<const Op> ops = schedule.ops_of(rank);
      size_t& at = next[static_cast<size_t>(rank)];
      if (!done || (mine.empty() && at == ops.size())) continue;
      moved = true;
      mine.clear();
      while (at < ops.size() && (mine.empty() || ops[at].with_previous)) {
        mine.emplace_back(&ops[at], ++started[{ops[at].kind, rank, ops[at].partner}]);
        ++at;
      }
    }
  }
  for (int64_t rank = 0; rank < schedule.world_size; ++rank) {
    const auto r = static_cast<size_t>(rank);
    if (!waiting[r].empty() || next[r] < schedule.ops_of(rank).size()) return false;
  }
  return true;
}

void CheckNaively(benchmark::State& state) {
  const absl::StatusOr<Topology> topology = MakeTopology(state.range(0));
  const absl::StatusOr<Schedule> schedule =
      MakeSchedule(*topology, Step(state.range(0), Order::k1F1B));
  for (auto _ : state) {
    if (!NaiveCheck(*schedule)) state.SkipWithError("the schedule does not end");
  }
  state.counters["ranks"] = static_cast<double>(128 * state.range(0));
}
BENCHMARK(CheckNaively)->Arg(1)->Arg(16)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace lockstep::mimo

BENCHMARK_MAIN();
