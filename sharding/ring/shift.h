// Passes a tensor to the next rank of a group, and takes a tensor from the previous rank, while
// the program computes.
//
// The failure this prevents: ranks in a ring that all send first, and then receive, wait for each
// other for ever. A shift is one collective of the group, so no order of sends and receives can be
// wrong, and the watchdog knows which ranks have joined it:
//
//    at::Tensor own = KeysOf(chunk);                 // this rank's
//    for (int step = 0; step < ranks; ++step) {
//      Shift shift(own, SizesOfNext(step), group);   // returns at once
//      Use(own);                                     // meanwhile the tensors travel
//      own = shift.Wait();                           // the previous rank's
//    }
//
// When to use it: for values that visit every rank, of which each rank holds one at a time. Two are
// in memory, the one in use and the one that arrives. For values that all ranks hold at once, use
// AllGather of sharding/functional/functional.h. No gradient passes.
//
// It is an all-to-all in which a rank gives all to the next rank. NCCL runs it as one send and one
// receive, in one group.
//
// Thread: the thread that runs the group's collectives.

#ifndef LOCKSTEP_SHARDING_RING_SHIFT_H_
#define LOCKSTEP_SHARDING_RING_SHIFT_H_

#include <cstdint>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "c10/util/intrusive_ptr.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace lockstep::sharding {

class Shift {
 public:
  // Starts to send the values of x to the next rank of the group. `sizes`: of the tensor that the
  // previous rank sends, which has the dtype of x. A size may be 0.
  //
  // Collective: every rank of `group` calls this and Wait equally often, in the same order, with
  // one dtype. A rank whose `sizes` are not those of the previous rank's x is not found: compare
  // what they depend on before.
  Shift(const at::Tensor& x, at::IntArrayRef sizes,
        const c10::intrusive_ptr<c10d::ProcessGroup>& group);

  // Returns the previous rank's tensor. Blocks until it has arrived; on a GPU the current stream
  // waits instead. A second call throws c10::Error.
  at::Tensor Wait();

 private:
  at::Tensor given_, taken_;  // flat; they live until the work has ended
  std::vector<int64_t> sizes_;
  c10::intrusive_ptr<c10d::Work> work_;  // null: a group of one rank
};

}  // namespace lockstep::sharding

#endif  // LOCKSTEP_SHARDING_RING_SHIFT_H_
