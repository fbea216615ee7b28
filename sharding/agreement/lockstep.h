// Runs a loop that every rank leaves at the same step.
//
//    Lockstep<Batch> loop(&collective, [&] { return loader.Next(); });  // std::optional<Batch>
//    while (true) {
//      absl::StatusOr<std::optional<Lockstep<Batch>::Step>> step = loop.Next();
//      if (!step.ok()) return step.status();  // a rank failed: the same error on every rank
//      if (!step->has_value()) break;         // every rank leaves the loop here
//      Train((*step)->batch);
//    }
//
// The failure this prevents: if one rank runs out of batches first, the others wait for it in their
// next collective until a timeout ends the run.
//
// With Policy::kUntilLast a rank that has run out gets `filler(last batch)`, or its last batch
// again, with `real` false. If such a batch has no weight, means over all ranks stay exact.
//
// Next reads the following batch before it returns this one, and the ranks agree on that batch
// while this one trains. So the agreement costs time only at the start of the loop; reading does
// not overlap, unless the source prefetches. A source whose next batch depends on the present step
// needs `read_ahead = false`: each Next then reads and waits for the agreement.
//
// To leave early on one rank, call Stop and go on calling Next until it returns nothing. `Batch`
// may be move-only; see Options::filler.
//
// Source: the protocol of agreement.h. Thread: used by one thread.

#ifndef LOCKSTEP_SHARDING_AGREEMENT_LOCKSTEP_H_
#define LOCKSTEP_SHARDING_AGREEMENT_LOCKSTEP_H_

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sharding/agreement/agreement.h"

namespace lockstep::sharding {

// A loop over the batches of `next`. A batch may be any type that can be moved.
template <typename Batch>
class Lockstep {
 public:
  // One batch, and whether it is a real one.
  struct Step {
    Batch batch;
    bool real = true;  // false: the batch is a filler
  };
  struct Options {
    // Must be the same on every rank. If it differs, Next returns an error that names the ranks.
    Policy policy = Policy::kUntilFirst;
    // Makes the batch of a rank that has run out under kUntilLast. `last` is its last batch. It is
    // empty if there was none, and always if Batch cannot be copied.
    std::function<Batch(const std::optional<Batch>& last)> filler = nullptr;
    // Whether to read the next batch before the present step has ended.
    bool read_ahead = true;
  };

  // `next` returns the next batch, or nothing when it has run out; it is not called again then. An
  // exception in `next` or in the filler ends the loop on every rank. `collective` must outlive
  // this object; null stands for one rank.
  Lockstep(Collective* collective, std::function<std::optional<Batch>()> next, Options options = {})
      : agreement_(collective, options.policy),
        next_(std::move(next)),
        options_(std::move(options)) {}

  // Returns the next step. Returns nothing, on every rank, when the loop is over, and the same
  // error on every rank if one has failed. After either it returns the same again and does not
  // communicate. Collective: every rank calls this equally often. Blocks until all ranks have made
  // their offers.
  absl::StatusOr<std::optional<Step>> Next() {
    if (!result_.ok()) return result_;
    if (over_) return std::optional<Step>();
    if (!offered_) ReadAndOffer();
    offered_ = false;
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
    if constexpr (std::is_copy_constructible_v<Batch>) {
      if (step.real && options_.policy == Policy::kUntilLast) last_ = step.batch;
    }
    if (options_.read_ahead) ReadAndOffer();
    return std::optional<Step>(std::move(step));
  }

  // Makes every rank stop at the next agreement. Drops the batch that this rank has read ahead.
  void Stop() { stop_ = true; }

  int64_t steps() const { return steps_; }    // number of steps so far
  int64_t filled() const { return filled_; }  // number of steps with a filler on this rank

  // Returns the number of this rank's batches that no step has used: 0 until the loop is over. It
  // reads the rest of `next`, but at most `limit` batches, because a source may have no end.
  // Returns nothing if more are left.
  std::optional<int64_t> CountDropped(int64_t limit) {
    if (!over_) return 0;
    if (ahead_.has_value() && ahead_real_) ++dropped_;
    ahead_.reset();
    while (!exhausted_ && dropped_ <= limit) {
      if (!next_().has_value()) {
        exhausted_ = true;
      } else {
        ++dropped_;
      }
    }
    if (dropped_ > limit) return std::nullopt;
    return dropped_;
  }

 private:
  // Reads this rank's next batch and offers it. An offer is made even if `next` throws, because the
  // other ranks wait for it.
  void ReadAndOffer() {
    Offer offer;
    try {
      offer.has = Read();
    } catch (const std::exception& error) {
      offer = {Has::kError, error.what()};
    } catch (...) {
      offer = {Has::kError, "the source of batches threw something that is no std::exception"};
    }
    if (offer.has == Has::kError) exhausted_ = true;
    agreement_.MakeOffer(offer);
    offered_ = true;
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
      ahead_.emplace(options_.filler(last_));
    } else if constexpr (std::is_copy_constructible_v<Batch>) {
      ahead_ = last_;
    }
    return ahead_.has_value() ? Has::kFiller : Has::kNothing;
  }

  Agreement agreement_;
  std::function<std::optional<Batch>()> next_;
  Options options_;
  std::optional<Batch> ahead_;  // the batch of the coming step
  bool ahead_real_ = true;
  std::optional<Batch> last_;  // the last real batch of a step
  bool offered_ = false;       // this rank has made its offer for the coming step
  bool exhausted_ = false;
  bool stop_ = false;
  bool over_ = false;
  absl::Status result_;
  int64_t steps_ = 0;
  int64_t filled_ = 0;
  int64_t dropped_ = 0;
};

}  // namespace lockstep::sharding

#endif  // LOCKSTEP_SHARDING_AGREEMENT_LOCKSTEP_H_
