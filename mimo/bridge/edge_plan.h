// How the rows of one ownership table cross an edge, as one rank sees it: what the calls of a
// bridge share. See bridge.h.

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

// The value, or c10::ValueError with the status's message.
template <typename T>
T ValueOrThrow(absl::StatusOr<T> result) {
  TORCH_CHECK_VALUE(result.ok(), std::string(result.status().message()));
  return *std::move(result);
}

// What the tensors of all calls have in common: the size of the dim of rows is 0 here.
struct TensorSpec {
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes;

  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

// "Float [rows, 64] and Float [rows, 8]", with the rows on `dim`.
std::string Describe(const std::vector<TensorSpec>& specs, int64_t dim);

struct EdgePlan {
  Ownership ownership;
  uint64_t fingerprint = 0;  // of the rows of each sample
  std::string rows;          // in words
  RankRoute forward, backward;
  std::vector<int32_t> sources, destinations;  // peers, this rank not among them
  // Set where each rank of `to` has on `from` all rows that it needs: those of its own it narrows
  // to.
  std::optional<Range> local;
};

// The route of `ownership` over the edge, as `rank` sees it. Peers are those of this route and of
// `usual`, the same for all calls. Throws c10::ValueError where the samples cannot be divided.
//
// Cost: O(samples + places of both sides).
EdgePlan PlanEdge(const Topology& topology, int edge, int64_t rank, const Route& usual,
                  const Ownership& ownership);

// A route on which all ranks meet that meet anywhere where samples are divided evenly.
Route UsualRoute(const Topology& topology, int edge);

// 64 bits of a text, the same on every rank; 0 for none.
uint64_t Fingerprint(const std::string& text);

// Adds `peer` unless it is `rank` itself or there already.
void AddPeer(std::vector<int32_t>& peers, int32_t peer, int64_t rank);

// The lanes of a replica, the ranks of `group` in order: each has received part parts[lane] of
// `rows`, and gets the others'. Collective.
void GatherLanes(c10d::ProcessGroup& group, const std::vector<Range>& parts, at::Tensor& rows);

// The first lane of `group` whose `rows` differ by more than rounding from those of the first lane
// with the same cp coordinate, among the `tp` lanes that have it; none where they are alike. The
// same on all of these. Collective, over all lanes; `rows` have the same sizes on each.
std::optional<int64_t> LaneThatDiffers(c10d::ProcessGroup& group, int64_t tp,
                                       const at::Tensor& rows);

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_BRIDGE_EDGE_PLAN_H_
