// Cuts a stream of samples into chunks of one length, and says which tokens of which sample each
// chunk holds.
//
//   Packer packer({.seq_len = 8});
//   packer.Add(5);                              // sample 0: no chunk is full yet
//   std::vector<Chunk> chunks = packer.Add(7);  // sample 1: one chunk, {{0, 0, 5}, {1, 0, 3}};
//                                               // 4 tokens wait for the next chunk
//
// Packer sees lengths only; the caller copies the tokens. Every token is in a chunk or counted in
// dropped_tokens(). Source: the CatDataset of prime-rl, which drops the rest at the end without
// counting it. Not thread-safe.

#ifndef LOCKSTEP_SHARDING_DATASET_PACK_H_
#define LOCKSTEP_SHARDING_DATASET_PACK_H_

#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep::sharding {

// The tokens begin to end - 1 of a sample. Samples count from 0 in the order of Add.
struct Piece {
  int64_t sample = 0;
  int64_t begin = 0;
  int64_t end = 0;
};
inline bool operator==(const Piece& a, const Piece& b) {
  return a.sample == b.sample && a.begin == b.begin && a.end == b.end;
}

using Chunk = std::vector<Piece>;

struct PackOptions {
  int64_t seq_len = 1;  // at least 1
  // true: a sample that does not fit is cut at the end of the chunk and continues in the next one.
  // false: it moves to the next chunk whole. Chunks may then be shorter than seq_len, and a sample
  // longer than seq_len loses the tokens beyond it; dropped_tokens() counts them.
  bool split = true;
  bool drop_last = true;  // Drops the last chunk if it is not full.
};

class Packer {
 public:
  explicit Packer(const PackOptions& options) : options_(options) {}

  // Adds a sample of `tokens` tokens, 0 or more. Returns the chunks that it completes, in order.
  std::vector<Chunk> Add(int64_t tokens);

  // Ends the stream. Returns the last chunk, or nothing if it is empty or dropped.
  std::optional<Chunk> Finish();

  const Chunk& waiting() const { return waiting_; }  // the pieces of the chunk that is not full
  int64_t waiting_tokens() const { return waiting_tokens_; }
  int64_t dropped_tokens() const { return dropped_tokens_; }

 private:
  void Append(int64_t begin, int64_t end);

  PackOptions options_;
  Chunk waiting_;
  int64_t waiting_tokens_ = 0;
  int64_t samples_ = 0;
  int64_t dropped_tokens_ = 0;
};

}  // namespace lockstep::sharding

#endif  // LOCKSTEP_SHARDING_DATASET_PACK_H_
