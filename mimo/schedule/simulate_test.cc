// Simulate against a naive simulation, on random schedules, most of them broken on purpose.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "mimo/schedule/schedule.h"
#include "mimo/testing/random_topology.h"

namespace lockstep::mimo {
namespace {

Schedule Plan(const Topology& topology, const StepOptions& options) {
  absl::StatusOr<Schedule> schedule = MakeSchedule(topology, options);
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  return *schedule;
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

// Whether a schedule matches and ends, by trying: every rank is looked at again and again, each
// operation finds its partner by counting.
bool NaiveEnds(const Schedule& schedule) {
  const int64_t world = schedule.world_size;
  std::vector<std::vector<Op>> lists;
  for (int64_t r = 0; r < world; ++r) {
    lists.emplace_back(schedule.ops_of(r).begin(), schedule.ops_of(r).end());
  }
  std::vector<absl::Span<const int32_t>> groups;
  for (const GroupSet& set : schedule.group_sets) {
    for (int64_t g = 0; g < set.num_groups(); ++g) groups.push_back(set.group(g));
  }
  // The index in `rank`'s list of its k-th operation of a kind with a partner; -1 if it has none.
  const auto find = [&](int64_t rank, OpKind kind, int32_t partner, int64_t k) -> int64_t {
    const std::vector<Op>& list = lists[static_cast<size_t>(rank)];
    for (size_t i = 0; i < list.size(); ++i) {
      if (list[i].kind == kind && list[i].partner == partner && k-- == 0) {
        return static_cast<int64_t>(i);
      }
    }
    return -1;
  };
  // All that must start for an operation to complete: (rank, index). Empty if it cannot.
  const auto needs_of_one = [&](int64_t rank, size_t index) {
    const Op& op = lists[static_cast<size_t>(rank)][index];
    int64_t k = 0;
    for (size_t i = 0; i < index; ++i) {
      const Op& before = lists[static_cast<size_t>(rank)][i];
      k += before.kind == op.kind && before.partner == op.partner ? 1 : 0;
    }
    std::vector<std::pair<int64_t, int64_t>> all;
    if (op.kind == OpKind::kCollective) {
      bool member = false;
      for (int32_t other : groups[static_cast<size_t>(op.partner)]) {
        all.emplace_back(other, find(other, op.kind, op.partner, k));
        member = member || other == rank;
      }
      if (!member) return std::vector<std::pair<int64_t, int64_t>>();
    } else {
      const OpKind other = op.kind == OpKind::kSend ? OpKind::kReceive : OpKind::kSend;
      all.emplace_back(op.partner, find(op.partner, other, static_cast<int32_t>(rank), k));
    }
    for (const auto& [other, at] : all) {
      if (at < 0) return std::vector<std::pair<int64_t, int64_t>>();
      const Op& theirs = lists[static_cast<size_t>(other)][static_cast<size_t>(at)];
      if (theirs.payload != op.payload || theirs.subject != op.subject ||
          theirs.micro_batch != op.micro_batch || theirs.rows != op.rows) {
        return std::vector<std::pair<int64_t, int64_t>>();
      }
    }
    return all;
  };
  // Returns the needs of an operation. A wait needs itself and the needs of the detached operations
  // that it is the first to wait for.
  const auto needs = [&](int64_t rank, size_t index) {
    const std::vector<Op>& list = lists[static_cast<size_t>(rank)];
    if (list[index].kind != OpKind::kWait) return needs_of_one(rank, index);
    std::vector<std::pair<int64_t, int64_t>> all = {{rank, static_cast<int64_t>(index)}};
    const auto is_asked = [&](const Op& op) {
      return op.payload == list[index].payload && op.subject == list[index].subject &&
             op.micro_batch == list[index].micro_batch;
    };
    for (size_t i = index; i-- > 0 && !(list[i].kind == OpKind::kWait && is_asked(list[i]));) {
      if (!list[i].detached || !is_asked(list[i])) continue;
      const auto more = needs_of_one(rank, i);
      if (more.empty()) return more;
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  };
  std::vector<size_t> begin(static_cast<size_t>(world), 0);
  const auto end_of = [&](int64_t rank) {
    const std::vector<Op>& list = lists[static_cast<size_t>(rank)];
    size_t end = std::min(begin[static_cast<size_t>(rank)] + 1, list.size());
    while (end < list.size() && list[end].with_previous) ++end;
    return end;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (int64_t r = 0; r < world; ++r) {
      const size_t end = end_of(r);
      bool complete = begin[static_cast<size_t>(r)] < end;
      for (size_t i = begin[static_cast<size_t>(r)]; i < end && complete; ++i) {
        if (lists[static_cast<size_t>(r)][i].detached) continue;
        const auto all = needs(r, i);
        complete = !all.empty();
        for (const auto& [other, at] : all) {
          complete = complete && at < static_cast<int64_t>(end_of(other));
        }
      }
      if (!complete) continue;
      begin[static_cast<size_t>(r)] = end;
      moved = true;
    }
  }
  for (int64_t r = 0; r < world; ++r) {
    const std::vector<Op>& list = lists[static_cast<size_t>(r)];
    if (begin[static_cast<size_t>(r)] < list.size()) return false;
    for (size_t i = 0; i < list.size(); ++i) {
      if (list[i].detached && needs(r, i).empty()) return false;
    }
  }
  return true;
}

// Breaks a schedule somewhere, perhaps: swaps neighbours, drops, repeats or changes an operation,
// parts or joins batches.
Schedule Mutated(std::mt19937& random, const Schedule& schedule) {
  std::vector<std::vector<Op>> lists;
  for (int64_t r = 0; r < schedule.world_size; ++r) {
    lists.emplace_back(schedule.ops_of(r).begin(), schedule.ops_of(r).end());
  }
  for (int64_t change = Draw(random, 0, 2); change > 0; --change) {
    std::vector<Op>& list = lists[static_cast<size_t>(Draw(random, 0, schedule.world_size - 1))];
    if (list.size() < 2) continue;
    const auto i = static_cast<size_t>(Draw(random, 0, static_cast<int64_t>(list.size()) - 2));
    switch (Draw(random, 0, 5)) {
      case 0: std::swap(list[i], list[i + 1]); break;
      case 1: list.erase(list.begin() + static_cast<std::ptrdiff_t>(i)); break;
      case 2: list.insert(list.begin() + static_cast<std::ptrdiff_t>(i), list[i]); break;
      case 3: list[i].rows += Draw(random, 0, 1); break;
      case 4: list[i + 1].with_previous = !list[i + 1].with_previous; break;
      case 5: std::swap(list[i], list.back()); break;
    }
    list[0].with_previous = false;
  }
  Schedule mutated = ByHand(lists, schedule.group_sets);
  mutated.modules = schedule.modules;
  mutated.edges = schedule.edges;
  return mutated;
}

TEST(Simulate, AgreesWithTryingOnRandomBrokenSchedules) {
  std::mt19937 random(8);
  std::map<bool, int> outcomes;
  for (int c = 0; c < 2000; ++c) {
    const Topology topology = RandomTopology(random);
    if (topology.world_size() > 12) continue;
    bool is_colocated = false;
    for (int64_t r = 0; r < topology.world_size(); ++r)
      is_colocated = is_colocated || topology.colocated(r);
    const Order order = c % 3 == 0                   ? Order::kSequential
                        : c % 3 == 1 || is_colocated ? Order::kAllForwardsFirst
                                                     : Order::k1F1B;
    const Schedule schedule = Mutated(
        random,
        Plan(topology,
             {.num_micro_batches = Draw(random, 1, 4), .micro_batch_size = 4, .order = order}));

    const absl::StatusOr<Simulation> simulation = Simulate(schedule);

    ASSERT_EQ(simulation.ok(), NaiveEnds(schedule)) << "case " << c << ": " << simulation.status();
    ++outcomes[simulation.ok()];
  }
  EXPECT_GT(outcomes[true], 50);
  EXPECT_GT(outcomes[false], 50);
}

}  // namespace
}  // namespace lockstep::mimo
