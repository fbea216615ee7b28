// Decides on every rank alike, at each step, whether the loop goes on.
//
// The failure this prevents. Under sharded training every forward pass is a collective. Each rank
// iterates over its own data. One rank runs out of batches before its neighbour, which then waits
// in a collective that no other rank joins, until a timeout ends the run half an hour later.
//
// This is the protocol under lockstep.h, which most callers want instead. An offer says what a rank
// has for the coming step. The decision is the same on every rank. The offer travels while the
// present step computes: make it as soon as the next batch is known, and ask for the decision when
// the step is done.
//
//    Agreement agreement(&collective, Policy::kUntilFirst);
//    agreement.MakeOffer({Has::kBatch});
//    Train();
//    absl::StatusOr<Decision> decision = agreement.Decide();
//
// Source: prime-rl pull request 2636, which reduces a flag on the device and reads it back. This
// version uses the CPU, runs one step ahead, and tells a failed rank from a rank without data.
// Thread: used by one thread.

#ifndef LOCKSTEP_SHARDING_AGREEMENT_AGREEMENT_H_
#define LOCKSTEP_SHARDING_AGREEMENT_AGREEMENT_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "sharding/agreement/collective.h"

namespace lockstep::sharding {

// When the loop ends. Every rank must have the same policy.
enum class Policy : char {
  kUntilFirst = 'F',  // stops when any rank has run out
  kUntilLast = 'L',   // stops when all have; until then the others train on fillers of no weight
};

// The state of a rank before the coming step.
enum class Has : char {
  kBatch = 'b',
  kFiller = 'f',   // no batch, but a filler to train on in its place
  kNothing = 'n',  // neither
  kStop = 's',     // this rank asks all ranks to stop
  kError = 'e',    // this rank failed
};

// A rank's message for one step.
struct Offer {
  Has has = Has::kNothing;
  std::string error;  // the message of kError
};

enum class Decision { kGo, kStop };

class Agreement {
 public:
  // `collective` must outlive this object; null stands for a group of one rank.
  Agreement(Collective* collective, Policy policy);

  // Sends this rank's offer. Collective: every rank calls this once for each step. Does not block.
  void MakeOffer(const Offer& offer);

  // Returns the decision, the same on every rank. Collective: every rank calls this once after each
  // MakeOffer. Blocks until all offers are in.
  //
  // Returns on every rank: Aborted if a rank offered kError, with that rank and its error;
  // FailedPrecondition if the policies differ, or if a rank cannot make a filler that the step
  // needs. Returns Unavailable if a rank was lost, DeadlineExceeded if it stays away (over
  // sockets).
  absl::StatusOr<Decision> Decide();

 private:
  absl::Status GatherErrors(const std::string& states);
  absl::Status DifferentPolicies(const std::string& policies) const;
  // Returns the ranks of the world whose byte in `bytes` is `byte`, as "{0, 2}".
  std::string RanksWith(const std::string& bytes, char byte) const;
  int WorldRank(size_t position) const;

  Collective* collective_;
  Policy policy_;
  Offer offer_;
  std::unique_ptr<Collective::Pending> pending_;
  int64_t step_ = 0;
};

}  // namespace lockstep::sharding

#endif  // LOCKSTEP_SHARDING_AGREEMENT_AGREEMENT_H_
