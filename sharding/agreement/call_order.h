// Finds out that ranks enter different collectives, before their values mix.
//
// The failure this prevents: rank 0 computes one mean more than the others. Every later mean is
// then a mean of different things, with no error: rank 0's third call meets the others' second. Or
// the shapes differ, and the backend ends the process with no line of the program's.
//
//   CallOrder order(&collective, "world");
//   absl::Status status = order.Check({"all_reduce float32 {4} sum", "train.cc:41"});
//   // On every rank alike, where they differ:
//   //   the ranks call different collectives, each as its collective 3 of world:
//   //     rank 0: all_reduce float32 {4} sum (train.cc:41)
//   //     rank 1: broadcast float32 {4} from rank 0 (train.cc:52)
//
// Each rank tells the others what it calls and where, in one small message of a fixed size. A check
// costs a gathering of the collective: some 11 to 40 us over sockets on one host. A collective that
// must not wait, such as those that overlap with a backward pass, is announced instead. The next
// check compares it: the rank that waits in that check fails, and with it the run.
//
// Thread: used by one thread.

#ifndef LOCKSTEP_SHARDING_AGREEMENT_CALL_ORDER_H_
#define LOCKSTEP_SHARDING_AGREEMENT_CALL_ORDER_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "sharding/agreement/collective.h"

namespace lockstep::sharding {

class CallOrder {
 public:
  struct Call {
    std::string what;   // the function, and what must be alike: dtype, shape, arguments
    std::string place;  // the program's line; "" where it is not known
    // Calls at different places are different calls. Otherwise `what` alone is compared: ranks have
    // different parts in a broadcast, and it may stand on a line for each.
    bool is_one_place = true;
  };

  // `collective` outlives this, and is for this alone. `group`: as messages name it.
  CallOrder(Collective* collective, std::string group);

  // Blocks until every rank has told its call of this number; FailedPrecondition, with each rank's
  // call, where they differ. The collective's own error where a rank does not come. Collective:
  // every rank of the group tells each of its calls, by this function or by Announce.
  absl::Status Check(const Call& call);

  // Tells the call and returns at once. Returns an error where calls of long ago differed.
  absl::Status Announce(const Call& call);

 private:
  struct Told {
    std::string message;
    int64_t number;  // from 1
    std::unique_ptr<Collective::Pending> pending;
  };

  void Tell(const Call& call);
  absl::Status CompareOldest();

  Collective* collective_;
  std::string group_;
  int64_t calls_ = 0;
  std::deque<Told> told_;  // not compared yet
};

}  // namespace lockstep::sharding

#endif  // LOCKSTEP_SHARDING_AGREEMENT_CALL_ORDER_H_
