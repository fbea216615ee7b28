#include "sharding/dataset/shard.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace lockstep::sharding {
namespace {

// The finaliser of splitmix64 (Steele, Lea and Flood 2014): every bit of x moves every bit of the
// result.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

// --- The permutation -----------------------------------------------------------------------------

Permutation::Permutation(int64_t size, uint64_t seed, int64_t epoch)
    : size_(static_cast<uint64_t>(size)), half_bits_(1) {
  while (half_bits_ < 31 && (uint64_t{1} << (2 * half_bits_)) < size_) ++half_bits_;
  uint64_t key =
      Mix(seed + 0x9e3779b97f4a7c15u) ^ Mix(static_cast<uint64_t>(epoch) + 0x632be59bd9b4e019u);
  for (uint64_t& round_key : keys_) round_key = key = Mix(key + 0x9e3779b97f4a7c15u);
}

int64_t Permutation::operator()(int64_t i) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t x = static_cast<uint64_t>(i);
  do {  // what falls outside is sent on, until it falls inside: still one to one
    uint64_t left = x >> half_bits_;
    uint64_t right = x & mask;
    for (const uint64_t key : keys_) {
      const uint64_t next = left ^ (Mix(right ^ key) & mask);
      left = right;
      right = next;
    }
    x = left << half_bits_ | right;
  } while (x >= size_);
  return static_cast<int64_t>(x);
}

// --- The shard -----------------------------------------------------------------------------------

absl::StatusOr<Shard> Shard::Make(const ShardOptions& options) {
  constexpr int64_t kMost = int64_t{1} << 53;  // what a Lua number holds exactly
  if (options.size < 0 || options.size > kMost) {
    return absl::InvalidArgumentError(
        absl::StrCat("sharding: size must be from 0 to 2^53, not ", options.size));
  }
  if (options.world < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("sharding: world must be at least 1, not ", options.world));
  }
  if (options.rank < 0 || options.rank >= options.world) {
    return absl::InvalidArgumentError(absl::StrCat("sharding: rank must be from 0 to world - 1 = ",
                                                   options.world - 1, ", not ", options.rank));
  }
  if (options.epoch < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("sharding: epoch must be at least 0, not ", options.epoch));
  }
  if (options.start < 0 || options.start > options.size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sharding: start must be from 0 to size = ", options.size, ", not ", options.start));
  }
  return Shard(options);
}

Shard::Shard(const ShardOptions& options)
    : options_(options), permutation_(options.size, options.seed, options.epoch) {
  const int64_t left = options.size - options.start;
  const int64_t rest = left % options.world;
  length_ = left / options.world;
  if (rest == 0) return;
  if (options.tail == Tail::kDrop) {
    dropped_ = rest;
  } else if (options.rank < rest) {
    ++length_;
  } else if (options.tail == Tail::kPad) {
    ++length_;
    padded_ = 1;
  }
}

std::optional<int64_t> Shard::Next() {
  if (taken_ == length_) return std::nullopt;
  const int64_t position = options_.start + options_.rank + options_.world * taken_++;
  const int64_t in_epoch = position % options_.size;  // padding begins again
  return options_.shuffle ? permutation_(in_epoch) : in_epoch;
}

int64_t Shard::StartAfter(int64_t taken) const {
  return std::min(options_.size, options_.start + taken * options_.world);
}

}  // namespace lockstep::sharding
