// Lists the process groups of a topology, in the one order in which every rank creates them.
//
// The failure this prevents: creating a group is a collective of the world. If one rank creates
// groups in another order, or skips groups that it is not in, all others hang. So every rank goes
// through this list from first to last.
//
//    // vision: dp 2, tp 2 on ranks 0 to 3; language on ranks 4 and 5, tp 2
//    for (const GroupSet& set : ProcessGroups(*topology)) {
//      for (int64_t i = 0; i < set.num_groups(); ++i) CreateGroup(set.name, set.group(i));
//    }  // "vision/tp" {0 1} {2 3}; ...; "vision>language" {0 1 2 3 4 5}; "world" {0 1 2 3 4 5}
//
// Source of the order inside a grid: Megatron-LM, hyper_comm_grid.py. Thread-safe: no state.

#ifndef LOCKSTEP_MIMO_TOPOLOGY_GROUPS_H_
#define LOCKSTEP_MIMO_TOPOLOGY_GROUPS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "mimo/topology/topology.h"

namespace lockstep::mimo {

// An axis of a grid of ranks.
struct Axis {
  std::string name;
  int64_t size = 1;
};

// Returns the ranks first_rank + place of a grid, group after group. Ranks of a group differ only
// in the axes of `listed`, so a group has as many ranks as the product of their sizes. The first of
// `axes` varies fastest from place to place. Inside a group the last of `listed` varies fastest.
// From group to group the other axes vary, the first of them fastest. Names in `listed` must be in
// `axes`.
std::vector<int32_t> EnumerateGroups(absl::Span<const Axis> axes,
                                     absl::Span<const absl::string_view> listed,
                                     int64_t first_rank = 0);

// All groups of one kind. They have the same size.
struct GroupSet {
  std::string name;  // "vision/tp", "vision/dp-cp", "vision>language", "world"
  int64_t group_size = 1;
  std::vector<int32_t> ranks;  // group after group

  int64_t num_groups() const { return static_cast<int64_t>(ranks.size()) / group_size; }
  absl::Span<const int32_t> group(int64_t i) const {
    return absl::MakeConstSpan(ranks).subspan(static_cast<size_t>(i * group_size),
                                              static_cast<size_t>(group_size));
  }
};

// Returns the groups of one module over `axes`, names joined by "-" in any order: "dp-cp" and
// "cp-dp" are the same groups. Inside a group, the axis that comes first in the module's order
// varies fastest. Returns InvalidArgument if an axis is unknown or appears twice.
absl::StatusOr<GroupSet> ModuleGroups(const Topology& topology, int module, absl::string_view axes);

// Returns one group: the ranks that bridge an edge, in the last stage of `from` and the first stage
// of `to`, ascending.
GroupSet EdgeGroup(const Topology& topology, int edge);

// Returns all groups. For each module in order: tp, cp, pp, dp, dp-cp, tp-cp, tp-pp, tp-dp-cp,
// tp-cp-dp-pp (the whole module) and "embedding" (first and last stage of each pipeline). Then each
// edge, then "world". The list is the same on every rank, and so is a position in it.
//
// Cost: O(world_size) for each set.
std::vector<GroupSet> ProcessGroups(const Topology& topology);

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_TOPOLOGY_GROUPS_H_
