// Sends a tensor to some ranks of a group, and takes tensors of others, while the program computes.
//
// The failure this prevents: ranks that exchange values in pairs need an order of sends and
// receives that all of them keep, and a rank without a partner skips what the others call. An
// exchange is one collective of the whole group. A rank that gives and takes nothing calls it too,
// so each rank calls the same collectives in the same order, and the watchdog knows which ranks
// have joined.
//
//    // Ranks 0 and 1 swap; rank 2 watches.
//    Exchange exchange(own, /*gives=*/{0, own.numel(), 0}, /*takes=*/{0, 40, 0}, group);  // rank 0
//    Use(own);                                    // meanwhile the tensors travel
//    at::Tensor of_rank_1 = exchange.Wait();
//
// When to use it: for values that only some ranks need from some others, as keys and values of a
// sample that a group of ranks shares. No group of processes has to be made for them. To pass a
// tensor around all ranks use shift.h. No gradient passes.
//
// It is an all-to-all with unequal parts. NCCL runs it as the sends and receives of the parts that
// are not empty, in one group: ranks without any do not wait.
//
// Thread: the thread that runs the group's collectives.

#ifndef LOCKSTEP_SHARDING_RING_EXCHANGE_H_
#define LOCKSTEP_SHARDING_RING_EXCHANGE_H_

#include <cstdint>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "c10/util/intrusive_ptr.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace lockstep::sharding {

class Exchange {
 public:
  // Starts to send the elements of x. gives[r] of them go to rank r of the group, the first ones to
  // rank 0. takes[r] is how many come from rank r, of the dtype of x. Throws c10::ValueError if the
  // counts do not suit the group or x.
  //
  // Collective: every rank of `group` calls this and Wait equally often, in the same order, with
  // one dtype. takes[r] must be what rank r gives to this rank: compare what they depend on before.
  Exchange(const at::Tensor& x, std::vector<int64_t> gives, std::vector<int64_t> takes,
           const c10::intrusive_ptr<c10d::ProcessGroup>& group);

  // Returns what has come, of rank 0 first: [sum of takes]. Blocks until it has arrived; on a GPU
  // the current stream waits instead. A second call throws c10::Error.
  at::Tensor Wait();

 private:
  at::Tensor given_, taken_;  // flat; they live until the work has ended
  c10::intrusive_ptr<c10d::Work> work_;
};

}  // namespace lockstep::sharding

#endif  // LOCKSTEP_SHARDING_RING_EXCHANGE_H_
