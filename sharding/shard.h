// A rank's part of a shuffled dataset, by arithmetic alone.
//
//   absl::StatusOr<Shard> shard = Shard::Make({.size = 1'000'000'000, .rank = 3, .world = 8, .seed
//   = 1}); while (std::optional<int64_t> index = shard->Next()) Train(Load(*index));
//
// The failures this prevents: a sample lost or seen twice where a run resumes on another number of
// ranks; shards that depend on when a rank asked; a permutation of 10^9 indices in the memory of
// every rank.
//
// The order of an epoch is a permutation that is computed, not stored: a Feistel network over the
// indices, keyed by seed and epoch, with cycle walking where the size is no power of four (Black
// and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). Rank r takes the positions start +
// r, start + r + world, ...: shards differ by one sample at most, and what all ranks have taken
// together is a prefix of the epoch, which any number of ranks can go on from.
//
// Thread: used by one thread.

#ifndef LOCKSTEP_SHARDING_SHARD_H_
#define LOCKSTEP_SHARDING_SHARD_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"

namespace lockstep::sharding {

// A permutation of 0 to size - 1 in O(1) memory; the same for the same arguments on every machine.
class Permutation {
 public:
  Permutation(int64_t size, uint64_t seed, int64_t epoch);

  // Where position i, from 0 to size - 1, goes: six rounds of a mixing function, up to four times
  // over on average.
  int64_t operator()(int64_t i) const;

 private:
  static constexpr int kRounds = 6;
  uint64_t size_;
  int half_bits_;  // of the network's domain, the least power of four that is not below size
  uint64_t keys_[kRounds];
};

// What ranks do where the samples do not divide by them.
enum class Tail {
  kUneven,  // some ranks have one sample more: every sample is seen once
  kDrop,    // those are left out: `dropped`
  kPad,     // the others take one from the epoch's beginning again: `padded`
};

struct ShardOptions {
  int64_t size = 0;  // samples of the dataset
  int rank = 0;
  int world = 1;
  uint64_t seed = 0;
  int64_t epoch = 0;
  bool shuffle = true;
  Tail tail = Tail::kUneven;
  int64_t start = 0;  // positions of the epoch that are done already, on all ranks together
};

class Shard {
 public:
  // InvalidArgument names the option that is out of range.
  static absl::StatusOr<Shard> Make(const ShardOptions& options);

  // Index of the next sample, from 0 to size - 1; nothing at the end of the epoch.
  std::optional<int64_t> Next();

  const ShardOptions& options() const { return options_; }
  int64_t length() const {
    return length_;
  }  // samples of this rank from `start` on, padding included
  int64_t taken() const { return taken_; }      // of these, so far
  int64_t padded() const { return padded_; }    // of `length`, those seen before
  int64_t dropped() const { return dropped_; }  // left out, over all ranks

  // The `start` that goes on after every rank has taken `taken` samples of its shard.
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

#endif  // LOCKSTEP_SHARDING_SHARD_H_
