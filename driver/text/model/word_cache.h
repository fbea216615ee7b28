// Remembers the ids of words, which come again and again in any text.
//
//   if (const auto found = cache.Find(word)) return Append(*found, ids);
//   ...
//   cache.Insert(word, ids);
//
// One open hash table of 32 bytes a word: up to 16 bytes of the word and up to 3 ids lie in the
// slot itself, longer ones in an arena. A word costs no allocation,
// except when one of the two grows. A full cache is emptied. Belongs to one thread.

#ifndef LOCKSTEP_DRIVER_TEXT_MODEL_WORD_CACHE_H_
#define LOCKSTEP_DRIVER_TEXT_MODEL_WORD_CACHE_H_

#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/types/span.h"

namespace lockstep::text {

class WordCache {
 public:
  // `max_words` is a power of two. Longer words than kMaxBytes are not kept.
  explicit WordCache(size_t max_words = size_t{1} << 18) : max_words_(max_words) {}

  static constexpr size_t kMaxBytes = 200;
  static constexpr size_t kMaxIds = 200;

  // Returns the ids of a word that is here. The span is valid until the next Insert.
  std::optional<absl::Span<const int32_t>> Find(std::string_view word) const {
    const Key key = KeyOf(word);
    for (size_t at = key.hash >> shift_;; at = (at + 1) & (slots_.size() - 1)) {
      const Slot& slot = slots_[at];
      if (slot.size == 0) return std::nullopt;
      if (slot.size != key.size || slot.low != key.low) continue;
      if (slot.high != key.high && !(key.size == kLong && IsLongWord(slot, word))) continue;
      const int32_t* ids = slot.num_ids <= kFewIds ? slot.ids : long_ids_.data() + slot.ids[0];
      return absl::Span<const int32_t>(ids, slot.num_ids);
    }
  }

  // Keeps the ids of a word that is not here.
  void Insert(std::string_view word, absl::Span<const int32_t> ids);

 private:
  static constexpr size_t kShortBytes = 16;
  static constexpr size_t kFewIds = 3;
  static constexpr uint8_t kLong = 255;

  // A short word: its size and bytes. A long one: kLong, its hash, where its bytes are and how
  // many.
  struct Slot {
    uint64_t low = 0;
    uint64_t high = 0;
    int32_t ids[kFewIds] = {};  // or where they are
    uint8_t size = 0;           // 0: an empty slot
    uint8_t num_ids = 0;
  };
  struct Key {
    uint64_t low;
    uint64_t high;
    uint64_t hash;
    uint8_t size;
  };

  static uint64_t Load(const char* p, size_t size) {
    uint64_t value = 0;
    std::memcpy(&value, p, size);
    return value;
  }

  static uint64_t Mix(uint64_t a, uint64_t b) {
    const auto product =
        static_cast<unsigned __int128>(a ^ 0x9E3779B97F4A7C15) * (b ^ 0xD6E8FEB86659FD93);
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }

  // Overlapping loads: no loop, no byte beyond the word.
  static Key KeyOf(std::string_view word) {
    const char* p = word.data();
    const size_t size = word.size();
    if (size > kShortBytes) return LongKey(word);
    uint64_t low = 0, high = 0;
    if (size >= 8) {
      low = Load(p, 8), high = Load(p + size - 8, 8);
    } else if (size >= 4) {
      low = Load(p, 4) | Load(p + size - 4, 4) << 32;
    } else if (size > 0) {
      low = Load(p, 1) | Load(p + size / 2, 1) << 8 | Load(p + size - 1, 1) << 16;
    }
    return {low, high, Mix(low + size, high), static_cast<uint8_t>(size)};
  }

  static Key LongKey(std::string_view word);

  bool IsLongWord(const Slot& slot, std::string_view word) const {
    return (slot.high & 0xFFFFFFFF) == word.size() &&
           std::memcmp(long_words_.data() + (slot.high >> 32), word.data(), word.size()) == 0;
  }

  void Put(const Slot& slot, uint64_t hash);
  void Grow();

  size_t max_words_;
  size_t num_words_ = 0;
  std::vector<Slot> slots_ = std::vector<Slot>(size_t{1} << 10);
  int shift_ = 64 - 10;
  std::vector<char> long_words_;
  std::vector<int32_t> long_ids_;
};

}  // namespace lockstep::text

#endif  // LOCKSTEP_DRIVER_TEXT_MODEL_WORD_CACHE_H_
