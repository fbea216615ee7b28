// A hash of numbers and texts. Ranks compare hashes in place of long values, and files of a cache
// are named by them.
//
//    base::Hash hash;
//    hash.Add(samples.size());
//    hash.AddText(label);
//    ... hash.value() ...               // the same in every process, of every build
//
// Not absl::Hash, whose results differ from process to process on purpose, and not std::hash, which
// two builds may compute differently.
//
// Source: FNV-1a, 64 bits (Fowler, Noll and Vo). Not thread-safe; a hash is one thread's.

#ifndef LOCKSTEP_BASE_HASH_H_
#define LOCKSTEP_BASE_HASH_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace lockstep::base {

class Hash {
 public:
  // Adds a whole number as one step of the hash.
  void Add(uint64_t value) { value_ = (value_ ^ value) * 1099511628211u; }
  // Adds the bytes of a text, without its length: "ab" and then "c" hash as "abc".
  void AddText(absl::string_view text) {
    for (const char c : text) Add(static_cast<unsigned char>(c));
  }

  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 14695981039346656037u;
};

// Returns the hash of one text.
inline uint64_t TextHash(absl::string_view text) {
  Hash hash;
  hash.AddText(text);
  return hash.value();
}

}  // namespace lockstep::base

#endif  // LOCKSTEP_BASE_HASH_H_
