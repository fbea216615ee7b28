// Sends a tensor to some ranks of a group, and takes tensors of others, while the program computes.
//
// The failure this prevents: ranks that exchange values in pairs wait for each other for ever if
// they do not agree on the order of sends and receives. An exchange is one collective of the whole
// group. A rank that gives and takes nothing calls it too. So all ranks call the same collectives
// in the same order, and the watchdog knows which ranks have joined.
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
  // Starts to send the elements of x. The first gives[0] elements go to rank 0 of the group, the
  // next gives[1] to rank 1, and so on. takes[r] elements of the same dtype come from rank r.
  // Throws c10::ValueError if a list does not have one count for each rank, or if the counts of
  // `gives` do not add up to the elements of x.
  //
  // Collective: every rank of `group` calls this and Wait equally often, in the same order, with
  // one dtype. takes[r] must equal the count that rank r gives to this rank. Nothing checks that
  // here: make sure before that the ranks computed their counts from the same numbers.
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
