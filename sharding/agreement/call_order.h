// Detects that ranks call different collectives, before their values mix.
//
// The failure this prevents. Rank 0 computes one mean more than the others. Its third call meets
// the others' second call, and every later mean averages unrelated values, with no error. Or the
// shapes differ, and the backend ends the process without naming a line of the program.
//
//    CallOrder order(&collective, "world");
//    absl::Status status = order.Check({"all_reduce float32 {4} sum", "train.cc:41"});
//    // If they differ, on every rank:
//    //   the ranks call different collectives, each as its collective 3 of world:
//    //     rank 0: all_reduce float32 {4} sum (train.cc:41)
//    //     rank 1: broadcast float32 {4} from rank 0 (train.cc:52)
//
// Each rank sends its call and its place to the others, in one small message of a fixed size. A
// check costs one all-gather: about 11 to 40 us over sockets on one host. A collective that must
// not wait, for example one that overlaps with a backward pass, is announced instead. The next
// check compares it too: the rank that waits in that check fails, and the run with it.
//
// A call that fails on one rank before it begins, for an invalid argument, counts too. A program
// may catch that error and go on, and its next call would meet the others' previous one.
//
// An all-gather of a few bytes may be a call as well: its bytes travel in the message that is
// compared. So a rank that waits in it learns at once that another rank does something else.
//
// Thread: used by one thread.

#ifndef LOCKSTEP_SHARDING_AGREEMENT_CALL_ORDER_H_
#define LOCKSTEP_SHARDING_AGREEMENT_CALL_ORDER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "sharding/agreement/collective.h"

namespace lockstep::sharding {

class CallOrder {
 public:
  // One collective as this rank calls it.
  struct Call {
    std::string what;   // the function, dtype, shape and arguments that must be equal
    std::string place;  // the program's line; "" if unknown
    // If true, calls at different places count as different. If false, only `what` is compared. A
    // broadcast needs that: its source and its receivers may call it on different lines.
    bool is_one_place = true;
  };

  // `collective` must outlive this object, and nothing else may use it. `group` is the group's name
  // in messages.
  CallOrder(Collective* collective, std::string group);

  // Compares this rank's call with the other ranks' calls of the same number, and blocks until all
  // have come. Returns FailedPrecondition with each rank's call if they differ, or the collective's
  // error if a rank does not come. Collective: every rank of the group reports each of its calls by
  // Check or Announce.
  absl::Status Check(const Call& call);

  // Reports the call. Blocks only if many announced calls have not been compared yet: it then
  // compares the oldest, and returns the error if these differed.
  absl::Status Announce(const Call& call);

  // Counts a call that this rank has refused to make. The ranks that make it get an error with
  // `call`; this rank has had one. They hear of it with this rank's next call. Without a next call
  // they hear of the end of this rank's script.
  void Refuse(const Call& call);

  // The longest message of StartGather.
  static constexpr size_t kMaxGatheredBytes = 31;

  // Reports the call and starts an all-gather of `bytes`, whose number may differ between ranks.
  // Wait returns the bytes of all ranks, or the error that Check would return. This object must
  // outlive the all-gather, and must not move.
  std::unique_ptr<Collective::Pending> StartGather(const Call& call, const std::string& bytes);

 private:
  class Gathering;
  struct Told {
    std::string message;
    int64_t number;  // from 1
    bool is_refused;
    std::unique_ptr<Collective::Pending> pending;
    std::vector<std::string> gathered;  // by position, once it is compared
  };

  std::shared_ptr<Told> Tell(const Call& call, const std::string& bytes);
  std::shared_ptr<Told> TellOne(const Call& call, const std::string& bytes, bool is_refused);
  absl::Status CompareOldest();

  Collective* collective_;
  std::string group_;
  int64_t calls_ = 0;
  std::deque<std::shared_ptr<Told>> told_;  // those that are not compared yet
  std::vector<Call> refused_;               // since the last call, not told yet
};

}  // namespace lockstep::sharding

#endif  // LOCKSTEP_SHARDING_AGREEMENT_CALL_ORDER_H_
