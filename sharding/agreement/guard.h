// Names the rank that disagrees, and the rank that stays away.
//
// The failure this prevents. Two ranks draw different samples, or one of them skips a step.
// Training goes on with wrong gradients, or hangs in a collective that names no rank. A check
// compares the values that all ranks report:
//
//    Guard guard(&collective, &notes, /*timeout_s=*/30);
//    absl::Status status = guard.Check("step 7", "kind=image samples=[3, 9]", "train.cc:41");
//    // If they differ, on every rank:
//    //   guard: the ranks disagree at "step 7":
//    //     rank 0: kind=image samples=[3, 9] (train.cc:41)
//    //     rank 1: kind=text samples=[4, 8] (train.cc:41)
//
// Put a check where ranks must hold the same state: the plan of a step, the names of parameters. A
// check gathers 16 bytes from each rank; the texts travel only if these differ. It runs on the CPU,
// and a device never waits for it.
//
// Thread: used by one thread.

#ifndef LOCKSTEP_SHARDING_AGREEMENT_GUARD_H_
#define LOCKSTEP_SHARDING_AGREEMENT_GUARD_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "sharding/agreement/collective.h"

namespace lockstep::sharding {

// A note from each rank of a group. The other ranks can read it even if its writer hangs.
class Notes {
 public:
  virtual ~Notes() = default;
  virtual void Write(const std::string& note) = 0;  // replaces this rank's note; does not wait
  virtual std::string Read(int position) = 0;  // in the group; "" if that rank has left no note
};

class Guard {
 public:
  // Both must outlive this object. `timeout_s` is the collective's timeout, in seconds; it appears
  // in messages only. `ranks` are the world ranks of the group's members, as messages name them.
  // Empty: 0 to size - 1.
  Guard(Collective* collective, Notes* notes, double timeout_s, std::vector<int> ranks = {});

  // Compares `label` (which check this is) and `fingerprint` (the value that must be equal) over
  // all ranks. `place` is the line of the program, for messages. Collective: every rank calls this
  // equally often.
  //
  // Returns FailedPrecondition, on every rank, if labels or fingerprints differ: a table of ranks
  // and values; later checks go on. Returns DeadlineExceeded or Unavailable, on the ranks that
  // came, if others did not: it names these ranks and the last check that each passed. Every later
  // call then returns the same error.
  absl::Status Check(absl::string_view label, absl::string_view fingerprint,
                     absl::string_view place = "");

  int64_t checks() const { return checks_; }  // number of checks so far

 private:
  absl::Status Disagreement(const std::string& label, const std::string& fingerprint,
                            const std::string& place, bool same_label);
  absl::Status Absence(absl::string_view label, const absl::Status& cause);

  Collective* collective_;
  Notes* notes_;
  double timeout_s_;
  std::vector<int> ranks_;
  int64_t checks_ = 0;
  absl::Status lost_;
};

}  // namespace lockstep::sharding

#endif  // LOCKSTEP_SHARDING_AGREEMENT_GUARD_H_
