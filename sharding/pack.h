// Samples one behind the other, cut into chunks of one length: which tokens of which sample a chunk
// holds.
//
//   Packer packer({.seq_len = 8});
//   packer.Add(5);                             // sample 0: no chunk is full yet
//   std::vector<Chunk> chunks = packer.Add(7); // sample 1: {{0, 0, 5}, {1, 0, 3}}, and 4 tokens
//   wait
//
// Knows lengths alone; whoever holds the tokens copies them. Source: the CatDataset of prime-rl,
// which drops what is left at the end and says nothing; here every token is in a chunk or counted
// as dropped. Thread: used by one thread.

#ifndef LOCKSTEP_SHARDING_PACK_H_
#define LOCKSTEP_SHARDING_PACK_H_

#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep::sharding {

// Tokens begin to end - 1 of a sample; samples count from 0 in the order of Add.
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
  // A sample that does not fit is cut at the chunk's end, and goes on in the next. Otherwise it is
  // carried over whole, chunks may be shorter than seq_len, and of a sample longer than seq_len the
  // rest is dropped.
  bool split = true;
  bool drop_last = true;  // what is left at the end, where it fills no chunk
};

class Packer {
 public:
  explicit Packer(const PackOptions& options) : options_(options) {}

  // A sample of so many tokens, 0 or more. The chunks that it completes, in order.
  std::vector<Chunk> Add(int64_t tokens);

  // The end: the last chunk, unless nothing waits or it is dropped.
  std::optional<Chunk> Finish();

  const Chunk& waiting() const { return waiting_; }  // what no chunk has had yet
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

#endif  // LOCKSTEP_SHARDING_PACK_H_
