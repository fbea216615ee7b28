#include "driver/text/model/word_cache.h"

#include <algorithm>

namespace lockstep::text {

WordCache::Key WordCache::LongKey(std::string_view word) {
  uint64_t hash = word.size();
  size_t at = 0;
  for (; at + 8 <= word.size(); at += 8) hash = Mix(hash, Load(word.data() + at, 8));
  hash = Mix(hash, Load(word.data() + at, word.size() - at));
  return {hash, ~uint64_t{0}, Mix(hash, 0), kLong};
}

void WordCache::Put(const Slot& slot, uint64_t hash) {
  size_t at = hash >> shift_;
  while (slots_[at].size != 0) at = (at + 1) & (slots_.size() - 1);
  slots_[at] = slot;
}

void WordCache::Grow() {
  std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(2 * slots_.size()));
  --shift_;
  for (const Slot& slot : old) {
    if (slot.size == 0) continue;
    Put(slot, slot.size == kLong ? Mix(slot.low, 0) : Mix(slot.low + slot.size, slot.high));
  }
}

void WordCache::Insert(std::string_view word, absl::Span<const int32_t> ids) {
  if (word.empty() || word.size() > kMaxBytes || ids.size() > kMaxIds) return;
  if (num_words_ == max_words_) {
    std::fill(slots_.begin(), slots_.end(), Slot{});
    long_words_.clear(), long_ids_.clear();
    num_words_ = 0;
  }
  if (2 * (num_words_ + 1) > slots_.size()) Grow();
  ++num_words_;
  const Key key = KeyOf(word);
  Slot slot;
  slot.low = key.low;
  slot.high = key.high;
  slot.size = key.size;
  if (key.size == kLong) {
    slot.high = uint64_t{long_words_.size()} << 32 | word.size();
    long_words_.insert(long_words_.end(), word.begin(), word.end());
  }
  slot.num_ids = static_cast<uint8_t>(ids.size());
  if (ids.size() <= kFewIds) {
    std::copy(ids.begin(), ids.end(), slot.ids);
  } else {
    slot.ids[0] = static_cast<int32_t>(long_ids_.size());
    long_ids_.insert(long_ids_.end(), ids.begin(), ids.end());
  }
  Put(slot, key.hash);
}

}  // namespace lockstep::text
