// Names the rank that disagrees, and the rank that stays away.
//
// The failure this prevents. Two ranks draw different samples, or one of them skips a step;
// training goes on with wrong gradients, or stops in a collective that names nobody. A check
// compares what each rank says that it is doing:
//
//   Guard guard(&collective, &notes, /*timeout_s=*/30);
//   absl::Status status = guard.Check("step 7", "kind=image samples=[3, 9]", "train.cc:41");
//   // On every rank alike:
//   //   guard: the ranks disagree at "step 7":
//   //     rank 0: kind=image samples=[3, 9] (train.cc:41)
//   //     rank 1: kind=text samples=[4, 8] (train.cc:41)
//
// A check gathers 16 bytes from each rank; texts travel only when these differ. It goes over the
// CPU: a device never waits for it. Thread: used by one thread.

#ifndef LOCKSTEP_SHARDING_AGREEMENT_GUARD_H_
#define LOCKSTEP_SHARDING_AGREEMENT_GUARD_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "sharding/agreement/collective.h"

namespace lockstep::sharding {

// Where each rank of a group leaves a note that the others can read even when it is stuck.
class Notes {
 public:
  virtual ~Notes() = default;
  virtual void Write(const std::string& note) = 0;  // this rank's, over its last; does not wait
  virtual std::string Read(int rank) = 0;           // "" where that rank has left none
};

class Guard {
 public:
  // Both outlive this. `timeout_s` is what `collective` waits at most; here it is only told.
  // `ranks` are the group's ranks as messages name them; empty: 0 to size - 1.
  Guard(Collective* collective, Notes* notes, double timeout_s, std::vector<int> ranks = {});

  // `label`: which check this is; `fingerprint`: what must be the same; `place`: where in the
  // program, for messages. Collective: every rank calls this equally often. FailedPrecondition, the
  // same on every rank, where labels or fingerprints differ: a table of rank and value.
  // DeadlineExceeded, on the ranks that came, where some did not: which, and what they last passed.
  // After that it returns the same for ever.
  absl::Status Check(absl::string_view label, absl::string_view fingerprint,
                     absl::string_view place = "");

  int64_t checks() const { return checks_; }  // so far

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
