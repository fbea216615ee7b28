// Lets the ranks compare each collective of a sharded model before they enter it.
//
// The failure this prevents: rank 0 gathers the vision encoder's weights. The micro-batch of rank 1
// has no image, so it gathers the first text layer's weights. Buffers of different units meet, or
// both ranks wait until a watchdog fires half an hour later and names nothing.
//
//    Turns turns(&collective, {"", "vision", "layers.0"}, /*joins=*/false);
//    absl::StatusOr<Turn> turn = turns.Agree({.pass = 7, .unit = 1}, [] { return "train.cc:41"; });
//    // The same error on every rank:
//    //    fully_shard: the ranks differ in pass 7:
//    //      rank 0: gathers "vision" for forward (train.cc:41)
//    //      rank 1: gathers "layers.0" for forward (train.cc:44)
//
// A unit may have been gathered ahead on all ranks before one of them skips it. So each comparison
// also covers the units that the ranks have used in this pass so far.
//
// A comparison gathers 40 bytes from each rank over the CPU; texts travel only where they differ.
// The bytes of a small collective may travel behind them: one message then does both.
// With `joins` the ranks do the earliest of the turns that they name, and those that named another
// one take part in it without using it. Each comparison then does a turn that some rank waits for,
// so every rank gets to its own.
//
// Thread: used by one thread.

#ifndef LOCKSTEP_SHARDING_FULLY_SHARD_TURNS_H_
#define LOCKSTEP_SHARDING_FULLY_SHARD_TURNS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/hash.h"
#include "sharding/agreement/collective.h"

namespace lockstep::sharding {

// In the order in which ranks that join do them.
enum class Phase : int16_t { kForward, kBackward, kUpdate };
enum class Action : int16_t { kScales, kGather, kReduce, kFinish, kNorm, kExport };

struct Turn {
  int64_t pass = 0;  // forward passes of the whole model so far
  Phase phase = Phase::kForward;
  Action action = Action::kGather;
  int32_t unit = 0;

  friend bool operator==(const Turn&, const Turn&) = default;
};

// Ranks that name the same turn must also have these terms in common: trained parameters, say.
struct Terms {
  uint64_t hash = 0;
  // A line for each thing, in the same order on every rank. It travels where the hashes differ.
  std::function<std::string()> lines = [] { return std::string(); };
  // A byte for each thing that ranks may differ in, such as parameters with a gradient. See AnyOf.
  std::string flags = "";
};

// The turn that the ranks do now.
struct AgreedTurn {
  Turn turn;
  // Every rank named this turn with the same flags, and the parts of it have come.
  bool is_unanimous = true;
};

class Turns {
 public:
  // `collective` outlives this, and is for this alone. `units`: names as messages have them; "" is
  // the whole model.
  Turns(Collective* collective, std::vector<std::string> units, bool joins);

  // Blocks until every rank has named its next turn. Returns the turn that all ranks do now: `next`
  // if they agree. With `joins` it may be another one; call Agree again after doing it.
  //
  // Returns FailedPrecondition, the same on every rank, if the ranks differ without `joins`, or if
  // a rank cannot join. Returns the collective's own error if a rank is lost. After an error it
  // returns the same error for ever. Collective: every rank calls this equally often.
  absl::StatusOr<Turn> Agree(const Turn& next, const std::function<std::string()>& place);

  // Does the same, and moves the parts of the turn `next`, if the collective can exchange. All
  // ranks that name the same turn must give the same terms.
  absl::StatusOr<AgreedTurn> Agree(const Turn& next, const Collective::Parts& parts,
                                   const std::function<std::string()>& place,
                                   const Terms& terms = Terms());

  // Returns for each byte whether it is not 0 on any rank, as 0 or 1: the same on every rank. Call
  // it after an agreement that was not unanimous. Collective, with equally many bytes.
  absl::StatusOr<std::string> AnyOf(const std::string& flags);

  // Begin a pass, and note a unit that this rank uses in it. With `joins` ranks may use different
  // units, and this does nothing.
  void BeginPass();
  void Use(int32_t unit);

 private:
  absl::StatusOr<std::vector<std::string>> GatherTurns(const std::string& own,
                                                       const Collective::Parts& parts);
  absl::Status Disagreement(int64_t pass, const Turn& next, const std::string& place);
  absl::Status DifferentTerms(const Turn& next, const Terms& terms);
  std::string Describe(const Turn& turn) const;
  std::string DescribeUsed() const;

  Collective* collective_;
  std::vector<std::string> units_;
  bool joins_;
  std::vector<int32_t> used_;  // units, in this pass
  base::Hash used_hash_;       // of the same
  absl::Status failed_;
};

}  // namespace lockstep::sharding

#endif  // LOCKSTEP_SHARDING_FULLY_SHARD_TURNS_H_
