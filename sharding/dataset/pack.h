// Cuts a stream of samples into chunks of equal length. A chunk lists the tokens of each sample in
// it.
//
//    Packer packer({.seq_len = 8});
//    packer.Add(5);                              // sample 0: no chunk is full yet
//    std::vector<Chunk> chunks = packer.Add(7);  // sample 1 completes a chunk:
//    // chunks[0] == {{.sample = 0, .begin = 0, .end = 5}, {.sample = 1, .begin = 0, .end = 3}}
//    packer.waiting_tokens();                    // 4 tokens wait for the next chunk
//
// The failure this prevents: padding each sample to seq_len wastes most of a batch of short
// samples, and packing that drops the rest without counting it loses data silently. Here every
// token is in a chunk or counted by dropped_tokens().
//
// Use it for text samples in a stream. To balance samples over ranks, or to pack images, use
// batching. The packer sees lengths only; the caller copies the tokens.
//
// Source: the CatDataset of prime-rl, which drops the rest at the end without counting it. Not
// thread-safe.

#ifndef LOCKSTEP_SHARDING_DATASET_PACK_H_
#define LOCKSTEP_SHARDING_DATASET_PACK_H_

#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep::sharding {

// The tokens from `begin` to `end` - 1 of a sample. Samples are numbered from 0 in the order of
// Add.
struct SamplePart {
  int64_t sample = 0;
  int64_t begin = 0;
  int64_t end = 0;

  friend bool operator==(const SamplePart&, const SamplePart&) = default;
};

// The parts of samples in one chunk, in order. Their lengths sum to seq_len at most.
using Chunk = std::vector<SamplePart>;

struct PackOptions {
  int64_t seq_len = 1;  // tokens of a chunk, at least 1
  // true: cuts a sample that does not fit at the end of the chunk, and continues it in the next
  // one. false: moves the sample to the next chunk whole. Chunks may then be shorter than seq_len.
  // A sample longer than seq_len loses the tokens beyond it; dropped_tokens() counts them.
  bool split = true;
  bool drop_last = true;  // whether Finish drops a last chunk that is not full
};

class Packer {
 public:
  explicit Packer(const PackOptions& options) : options_(options) {}

  // Adds a sample of `tokens` tokens, 0 or more. Returns the chunks that it completes, in order.
  std::vector<Chunk> Add(int64_t tokens);

  // Ends the stream. Returns the last chunk, or nothing if it is empty or dropped.
  std::optional<Chunk> Finish();

  const Chunk& waiting() const { return waiting_; }  // parts of samples in the next chunk
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
