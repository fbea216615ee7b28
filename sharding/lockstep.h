// A loop that every rank leaves at the same step.
//
//   Lockstep<Batch> loop(&collective, [&] { return loader.Next(); });   // std::optional<Batch>
//   while (true) {
//     absl::StatusOr<std::optional<Lockstep<Batch>::Step>> step = loop.Next();
//     if (!step.ok()) return step.status();      // some rank failed: the same error on every rank
//     if (!step->has_value()) break;             // every rank is here now
//     Train((*step)->batch);
//   }
//
// With Policy::kUntilLast a rank that has run out gets `filler(last batch)`, or its last batch
// again, with `real` false: give it no weight, and means over all ranks are exact.
//
// The next batch is read one step ahead, and the ranks agree on it while the present one trains:
// the agreement costs the loop nothing but its start. To leave early on one rank, call Stop and go
// on calling Next until it returns nothing. Thread: used by one thread.

#ifndef LOCKSTEP_SHARDING_LOCKSTEP_H_
#define LOCKSTEP_SHARDING_LOCKSTEP_H_

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sharding/agreement.h"

namespace lockstep::sharding {

template <typename Batch>
class Lockstep {
 public:
  struct Step {
    Batch batch;
    bool real = true;  // false: a filler
  };
  struct Options {
    Policy policy = Policy::kUntilFirst;
    std::function<Batch(const std::optional<Batch>& last)> filler = nullptr;
  };

  // `next` returns the next batch, or nothing when it has run out; it is not called again then.
  // What it, or the filler, throws ends the loop on every rank. `collective` outlives this; null:
  // one rank.
  Lockstep(Collective* collective, std::function<std::optional<Batch>()> next, Options options = {})
      : agreement_(collective, options.policy),
        next_(std::move(next)),
        options_(std::move(options)) {}

  // Collective: every rank calls this equally often. Nothing, on every rank, when the loop is over;
  // an error, the same on every rank, when one has failed. After either it returns the same again,
  // and communicates no more.
  absl::StatusOr<std::optional<Step>> Next() {
    if (!result_.ok()) return result_;
    if (over_) return std::optional<Step>();
    if (!started_) ReadAhead();
    started_ = true;
    const absl::StatusOr<Decision> decision = agreement_.Decide();
    if (!decision.ok()) {
      over_ = true;
      result_ = decision.status();
      return result_;
    }
    if (*decision == Decision::kStop) {
      over_ = true;
      return std::optional<Step>();
    }
    ++steps_;
    if (!ahead_real_) ++filled_;
    Step step{*std::move(ahead_), ahead_real_};
    ahead_.reset();
    if (step.real) last_ = step.batch;
    ReadAhead();
    return std::optional<Step>(std::move(step));
  }

  // From the next agreement on every rank stops. The batch that this rank has read ahead is
  // dropped.
  void Stop() { stop_ = true; }

  int64_t steps() const { return steps_; }    // taken so far
  int64_t filled() const { return filled_; }  // of these, with a filler on this rank

  // Batches of this rank that no step has taken. Once the loop is over this reads what is left of
  // `next` to count it: do not ask where that has no end.
  int64_t CountDropped() {
    if (!over_) return 0;
    if (ahead_.has_value() && ahead_real_) ++dropped_;
    ahead_.reset();
    while (!exhausted_) {
      if (!next_().has_value()) {
        exhausted_ = true;
      } else {
        ++dropped_;
      }
    }
    return dropped_;
  }

 private:
  // Reads what this rank has for the coming step, and offers it.
  void ReadAhead() {
    Offer offer;
    try {
      offer.has = Read();
    } catch (const std::exception& error) {
      exhausted_ = true;
      offer = {Has::kError, error.what()};
    }
    agreement_.MakeOffer(offer);
  }

  Has Read() {
    if (stop_) return Has::kStop;
    ahead_real_ = true;
    if (!exhausted_) ahead_ = next_();
    if (ahead_.has_value()) return Has::kBatch;
    exhausted_ = true;
    if (options_.policy == Policy::kUntilFirst) return Has::kNothing;
    ahead_real_ = false;
    if (options_.filler) {
      ahead_ = options_.filler(last_);
    } else {
      ahead_ = last_;
    }
    return ahead_.has_value() ? Has::kFiller : Has::kNothing;
  }

  Agreement agreement_;
  std::function<std::optional<Batch>()> next_;
  Options options_;
  std::optional<Batch> ahead_;  // for the coming step
  bool ahead_real_ = true;
  std::optional<Batch> last_;  // the last real one that a step took
  bool started_ = false;
  bool exhausted_ = false;
  bool stop_ = false;
  bool over_ = false;
  absl::Status result_;
  int64_t steps_ = 0;
  int64_t filled_ = 0;
  int64_t dropped_ = 0;
};

}  // namespace lockstep::sharding

#endif  // LOCKSTEP_SHARDING_LOCKSTEP_H_
