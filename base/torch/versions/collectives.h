// The collectives of a c10d::ProcessGroup on one tensor of all ranks' parts. libtorch 2.13 renamed
// them, and made a warning of each use of the old names.
//
// A c10d::Backend of ours overrides the old names: from 2.13 on, Backend's new names call these.
//
// Each is a collective: every rank of `group` calls it equally often, in the same order. It returns
// at once; wait for the work.

#ifndef LOCKSTEP_BASE_TORCH_VERSIONS_COLLECTIVES_H_
#define LOCKSTEP_BASE_TORCH_VERSIONS_COLLECTIVES_H_

#include <cstdint>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "c10/util/intrusive_ptr.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"
#include "torch/headeronly/version.h"

namespace lockstep::base {

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13
#define LOCKSTEP_OLD_OR_NEW(old_name, new_name) old_name
#else
#define LOCKSTEP_OLD_OR_NEW(old_name, new_name) new_name
#endif

// Fills `all`, [ranks * n, ...], with every rank's `own`, [n, ...], in the order of ranks.
inline c10::intrusive_ptr<c10d::Work> AllGatherSingle(c10d::ProcessGroup& group, at::Tensor& all,
                                                      at::Tensor& own) {
  return group.LOCKSTEP_OLD_OR_NEW(_allgather_base, all_gather_single)(all, own, {});
}

// Fills `own`, [n, ...], with this rank's part of the reduction of all ranks' `all`,
// [ranks * n, ...].
inline c10::intrusive_ptr<c10d::Work> ReduceScatterSingle(
    c10d::ProcessGroup& group, at::Tensor& own, at::Tensor& all,
    const c10d::ReduceScatterOptions& options = {}) {
  return group.LOCKSTEP_OLD_OR_NEW(_reduce_scatter_base, reduce_scatter_single)(own, all, options);
}

// Sends parts of `given` to the ranks, in their order, and fills `taken` with what they send here.
// The sizes are rows for each rank; empty ones mean equal parts.
inline c10::intrusive_ptr<c10d::Work> AllToAllSingle(c10d::ProcessGroup& group, at::Tensor& taken,
                                                     at::Tensor& given,
                                                     std::vector<int64_t>& taken_sizes,
                                                     std::vector<int64_t>& given_sizes) {
  return group.LOCKSTEP_OLD_OR_NEW(alltoall_base, all_to_all_single)(taken, given, taken_sizes,
                                                                     given_sizes, {});
}

#undef LOCKSTEP_OLD_OR_NEW

}  // namespace lockstep::base

#endif  // LOCKSTEP_BASE_TORCH_VERSIONS_COLLECTIVES_H_
