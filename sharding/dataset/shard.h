// Splits a dataset over ranks. Each rank iterates over the indices of its own samples.
//
//    absl::StatusOr<Shard> shard =
//        Shard::Make({.size = 1'000'000'000, .rank = 3, .world = 8, .seed = 1});
//    while (std::optional<int64_t> index = shard->Next()) {
//      Train(Load(*index));
//    }
//
// Use it for a dataset whose samples a rank can read by number. For a stream of samples see pack.h;
// to give ranks samples of one kind and similar cost, see batching.
//
// Why not a shuffled list of indices: it needs memory for every sample, and a run that resumes on a
// different number of ranks loses or repeats samples. Shard computes each index from the seed and
// the position.
//
// Rank r takes the positions start + r, start + r + world, and so on. So the positions that all
// ranks have finished are a prefix of the epoch, and any number of ranks can continue from there:
//
//    ShardOptions rest = shard->options();
//    rest.start = shard->StartAfter(shard->taken());   // when every rank has taken equally many
//    rest.world = 5;
//
// Method: a Feistel network over the indices, keyed by seed and epoch; cycle walking if the
// size is not a power of four (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002).
// It needs O(1) memory. Not thread-safe.

#ifndef LOCKSTEP_SHARDING_DATASET_SHARD_H_
#define LOCKSTEP_SHARDING_DATASET_SHARD_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"

namespace lockstep::sharding {

// A permutation of 0 to size - 1 in O(1) memory. The same arguments give the same permutation on
// every machine.
class Permutation {
 public:
  // `size` is at least 0. A new epoch gives a new permutation.
  Permutation(int64_t size, uint64_t seed, int64_t epoch);

  // Returns the index at position i, which is from 0 to size - 1. Cost: six rounds of a mixing
  // function, repeated up to four times on average.
  int64_t operator()(int64_t i) const;

 private:
  static constexpr int kRounds = 6;
  uint64_t size_;
  int half_bits_;  // half the bits of the domain: the smallest power of four that is >= size
  uint64_t keys_[kRounds];
};

// The treatment of samples that remain if the dataset size is not a multiple of the number of
// ranks.
enum class Tail {
  kUneven,  // Some ranks get one more sample. Every sample is used exactly once.
  kDrop,    // Skips the remaining samples; `dropped()` counts them.
  kPad,     // Repeats samples from the start of the epoch; `padded()` counts them.
};

// The dataset, this rank, and the order of samples.
struct ShardOptions {
  int64_t size = 0;  // number of samples of the dataset
  int rank = 0;
  int world = 1;
  uint64_t seed = 0;
  int64_t epoch = 0;
  bool shuffle = true;
  Tail tail = Tail::kUneven;
  int64_t start = 0;  // number of positions of the epoch that all ranks together have finished
};

// The indices of one rank in one epoch.
class Shard {
 public:
  // Returns InvalidArgument, with the option that is out of range.
  static absl::StatusOr<Shard> Make(const ShardOptions& options);

  // Returns the index of the next sample, from 0 to size - 1, or nothing at the end of the epoch.
  std::optional<int64_t> Next();

  const ShardOptions& options() const { return options_; }

  int64_t length() const { return length_; }    // Number of samples for this rank, with padding.
  int64_t taken() const { return taken_; }      // Number of samples returned so far.
  int64_t padded() const { return padded_; }    // Number of repeated samples in length().
  int64_t dropped() const { return dropped_; }  // Number of samples that no rank gets.

  // Returns the `start` of a shard that continues after every rank has taken `taken` samples, for
  // any number of ranks.
  int64_t StartAfter(int64_t taken) const;

 private:
  explicit Shard(const ShardOptions& options);

  ShardOptions options_;
  Permutation permutation_;
  int64_t length_ = 0;
  int64_t taken_ = 0;
  int64_t padded_ = 0;
  int64_t dropped_ = 0;
};

}  // namespace lockstep::sharding

#endif  // LOCKSTEP_SHARDING_DATASET_SHARD_H_
