// The rows of one ownership table that cross an edge, as one rank sees them. The calls of a bridge
// share it. Private to the bridge's sources; see bridge.h.

#ifndef LOCKSTEP_MIMO_BRIDGE_EDGE_PLAN_H_
#define LOCKSTEP_MIMO_BRIDGE_EDGE_PLAN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "absl/status/statusor.h"
#include "c10/util/Exception.h"
#include "mimo/batch/ownership.h"
#include "mimo/bridge/routes.h"
#include "mimo/topology/topology.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace lockstep::mimo {

// Returns the value, or throws c10::ValueError with the status's message.
template <typename T>
T ValueOrThrow(absl::StatusOr<T> result) {
  TORCH_CHECK_VALUE(result.ok(), std::string(result.status().message()));
  return *std::move(result);
}

// The dtype and sizes that a tensor has in all calls. The size of the dim of rows is 0 here.
struct TensorSpec {
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes;

  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

// Returns "Float [rows, 64] and Float [rows, 8]", with the rows on `dim`.
std::string Describe(const std::vector<TensorSpec>& specs, int64_t dim);

struct EdgePlan {
  Ownership ownership;
  std::optional<Needs> needs;
  uint64_t fingerprint = 0;  // hash of the rows of each sample, and of the needs
  std::string rows;          // as text, for messages
  RankRoute forward, backward;
  std::vector<int32_t> sources, destinations;  // peers without this rank
  // Set if each rank of `to` has all rows that it needs on `from`. It is this rank's part of its
  // own rows.
  std::optional<Range> local;
};

// Returns the route of `ownership` over the edge, as `rank` sees it. Its peers are the peers on
// this route and on `usual`, the same for all calls. With `needs` of `parts` parts of each replica
// of `to` (RoutesOfNeeds), they are all ranks of the replicas that share samples with the rank's.
// Throws c10::ValueError if the samples cannot be divided, or the needs do not fit.
EdgePlan PlanEdge(const Topology& topology, int edge, int64_t rank, const Route& usual,
                  const Ownership& ownership, int64_t parts, const std::optional<Needs>& needs);

// Returns a route on which every two ranks meet that meet on any route with evenly divided samples.
Route UsualRoute(const Topology& topology, int edge);

// Returns a hash of a text, the same on every rank; 0 for the empty text.
uint64_t Fingerprint(const std::string& text);

// Adds `peer` unless it is `rank` or is in the list already.
void AddPeer(std::vector<int32_t>& peers, int32_t peer, int64_t rank);

// Completes `rows` over the lanes of a replica, the ranks of `group` in order. Each lane has
// received part parts[lane] of `rows` and gets the other parts. Collective.
void GatherLanes(c10d::ProcessGroup& group, const std::vector<Range>& parts, at::Tensor& rows);

// Returns the first lane whose `rows` differ by more than rounding from those of the first lane
// with the same cp coordinate, or nothing. `tp` is the number of lanes of one cp coordinate. `rows`
// have the same sizes on each lane. Collective over all lanes of `group`, and the same on all lanes
// of one cp coordinate.
std::optional<int64_t> LaneThatDiffers(c10d::ProcessGroup& group, int64_t tp,
                                       const at::Tensor& rows);

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_BRIDGE_EDGE_PLAN_H_
