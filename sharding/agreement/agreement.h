// One question at each step, answered alike on every rank: do we go on?
//
// The failure this prevents. Under sharded training every forward pass is a collective. Ranks
// iterate their own data; one runs out eleven batches before its neighbour, which then waits in a
// collective that nobody joins, until a watchdog fires half an hour later.
//
// This is the protocol under lockstep.h. An offer says what a rank has for the coming step; the
// decision is the same on every rank. The offer travels while the present step computes: make it as
// soon as the next batch is known, ask for the decision when the step is done.
//
//   Agreement agreement(&collective, Policy::kUntilFirst);
//   agreement.MakeOffer({Has::kBatch});
//   absl::StatusOr<Decision> decision = agreement.Decide();
//
// Source: prime-rl pull request 2636, which reduces a flag on the device and reads it back; here it
// goes over the CPU, one step ahead, and knows failure from exhaustion.

#ifndef LOCKSTEP_SHARDING_AGREEMENT_AGREEMENT_H_
#define LOCKSTEP_SHARDING_AGREEMENT_AGREEMENT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sharding/agreement/collective.h"

namespace lockstep::sharding {

enum class Policy : char {
  kUntilFirst = 'F',  // stop when any rank has run out
  kUntilLast = 'L',   // go on until all have; the others repeat something with no weight
};

// What a rank has for the coming step.
enum class Has : char {
  kBatch = 'b',
  kFiller = 'f',   // no batch, but something to put in its place
  kNothing = 'n',  // neither
  kStop = 's',     // it wants all to stop, whatever they have
  kError = 'e',    // it failed
};

struct Offer {
  Has has = Has::kNothing;
  std::string error;  // for kError
};

enum class Decision { kGo, kStop };

class Agreement {
 public:
  // `collective` outlives this; a null one is a group of one rank.
  Agreement(Collective* collective, Policy policy);

  // Collective: every rank calls this once for each step. Returns at once.
  void MakeOffer(const Offer& offer);

  // Collective: every rank calls this once after each MakeOffer. Blocks until all offers are in;
  // returns the same on every rank. Aborted, on every rank, where one offered kError: the message
  // names that rank and carries its error. FailedPrecondition, on every rank, where the policies
  // of the ranks differ, or where the step needs a filler that some rank cannot make. Unavailable
  // where a rank was lost.
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
