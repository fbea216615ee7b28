#include "sharding/dataset/pack.h"

#include <algorithm>
#include <utility>

namespace lockstep::sharding {

void Packer::Append(int64_t begin, int64_t end) {
  waiting_.push_back({samples_, begin, end});
  waiting_tokens_ += end - begin;
}

std::vector<Chunk> Packer::Add(int64_t tokens) {
  std::vector<Chunk> chunks;
  const auto close = [&] {
    chunks.push_back(std::exchange(waiting_, {}));
    waiting_tokens_ = 0;
  };
  if (!options_.split) {
    dropped_tokens_ += std::max<int64_t>(0, tokens - options_.seq_len);
    tokens = std::min(tokens, options_.seq_len);
    if (waiting_tokens_ + tokens > options_.seq_len) close();
  }
  for (int64_t begin = 0; begin < tokens;) {
    const int64_t end = std::min(tokens, begin + options_.seq_len - waiting_tokens_);
    Append(begin, end);
    begin = end;
    if (waiting_tokens_ == options_.seq_len) close();
  }
  ++samples_;
  return chunks;
}

std::optional<Chunk> Packer::Finish() {
  if (waiting_tokens_ == 0) return std::nullopt;
  if (options_.drop_last) {
    dropped_tokens_ += waiting_tokens_;
    waiting_.clear();
    waiting_tokens_ = 0;
    return std::nullopt;
  }
  waiting_tokens_ = 0;
  return std::exchange(waiting_, {});
}

}  // namespace lockstep::sharding
