// Writes the operations of one rank in a step, in the orders that schedule.h describes.

#ifndef LOCKSTEP_MIMO_SCHEDULE_RANK_WRITER_H_
#define LOCKSTEP_MIMO_SCHEDULE_RANK_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "mimo/bridge/routes.h"
#include "mimo/schedule/schedule.h"
#include "mimo/topology/topology.h"

namespace lockstep::mimo {

// The groups of one module, by rank.
struct GroupsOfModule {
  std::vector<int32_t> cp;
  std::vector<int32_t> tp_cp;
  std::vector<int32_t> dp_cp;
  std::vector<int32_t> embedding;
};

// The input of all ranks' lists.
struct Step {
  const Topology* topology = nullptr;
  int64_t num_micro_batches = 0;
  bool one_route_for_all = true;
  std::vector<Route> forward;          // micro-batch m, edge e: at m * edges + e, or at e
  std::vector<Route> backward;         // the transposed routes
  std::vector<int64_t> stages_below;   // of each module's last stage, on the longest path
  std::vector<GroupsOfModule> groups;  // of each module
  int32_t world_group = 0;

  size_t num_edges() const { return topology->edges().size(); }
  size_t RouteIndex(int edge, int64_t micro_batch) const {
    return static_cast<size_t>(edge) +
           (one_route_for_all ? 0 : static_cast<size_t>(micro_batch) * num_edges());
  }
};

// Appends the operations of `rank` to `ops`. With k1F1B the rank has one module.
void WriteRank(const Step& step, Order order, int64_t rank, std::vector<Op>* ops);

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_SCHEDULE_RANK_WRITER_H_
