// Collectives that a gradient passes through.
//
// The failure this prevents: an in-place collective changes values without autograd. `y = exp(w *
// (rank + 1)); all_reduce(y); loss = sum(y)` then gives each rank the gradient of its own term
// only, with no error. These functions return new tensors and know their own gradient:
//
//    at::Tensor y = AllReduce(x, group);
//    at::Tensor whole = AllGather(x, /*dim=*/0, group);
//    loss(y, whole).backward();
//
// The differentiated function is the sum of the losses of all ranks. So a value that reaches the
// losses of several ranks gets the sum of their gradients:
//
//    function        gradient of x on a rank
//    AllReduce       the sum of all ranks' gradients; with kMean, their mean
//    AllGather       the sum of all ranks' gradients of this rank's part
//    ReduceScatter   all ranks' gradients, concatenated
//    AllToAll        each part's gradient, from the rank that received the part
//    AllToAllRows    each row's gradient, from the rank that received the row
//    Broadcast       on the source the sum of all ranks' gradients, elsewhere 0
//
// If every rank computes the same loss again, as with tensor parallel layers, divide it by the
// number of ranks.
//
// Collective: every rank of the group calls each function with a tensor of the same dtype and
// shape (AllToAllRows: dimension 0 may differ), in the same order. The gradient is a collective
// too: x requires a gradient on every rank or on none, and the losses of all ranks use the result,
// or no loss does. Gradients have gradients of their own (create_graph).
//
// Throws c10::ValueError if a dimension is out of range or is not divisible by the number of ranks,
// or if row counts do not fit.
//
// Thread: the thread that runs forward and backward, as for any collective of the group.

#ifndef LOCKSTEP_SHARDING_FUNCTIONAL_FUNCTIONAL_H_
#define LOCKSTEP_SHARDING_FUNCTIONAL_FUNCTIONAL_H_

#include <cstdint>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "c10/util/intrusive_ptr.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace lockstep::sharding::functional {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

enum class Reduction { kSum, kMean };  // kMean is for floating-point tensors

// Returns the sum or the mean of x over ranks.
at::Tensor AllReduce(const at::Tensor& x, const Group& group,
                     Reduction reduction = Reduction::kSum);

// Returns the tensors of all ranks, concatenated on `dim` in the group's order.
at::Tensor AllGather(const at::Tensor& x, int64_t dim, const Group& group);

// Returns this rank's part of the sum over ranks, which is cut into equal parts on `dim`.
at::Tensor ReduceScatter(const at::Tensor& x, int64_t dim, const Group& group);

// Cuts x into equal parts on `split_dim`, sends part i to position i of the group, and returns the
// received parts, concatenated on `concat_dim`.
at::Tensor AllToAll(const at::Tensor& x, int64_t split_dim, int64_t concat_dim, const Group& group);

// Sends sent[i] rows of x, in order, to position i of the group. Returns the received rows in the
// group's order: received[i] rows come from position i. Counts may be 0. Every rank's received[i]
// must be what position i sends to it: exchange the counts first, with AllToAll.
at::Tensor AllToAllRows(const at::Tensor& x, const std::vector<int64_t>& sent,
                        const std::vector<int64_t>& received, const Group& group);

// Returns x of the rank at position `source` of the group.
at::Tensor Broadcast(const at::Tensor& x, int source, const Group& group);

}  // namespace lockstep::sharding::functional

#endif  // LOCKSTEP_SHARDING_FUNCTIONAL_FUNCTIONAL_H_
