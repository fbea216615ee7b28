// A hash of a text that ranks compare in place of the text.
//
// Not absl::Hash: its results differ from process to process on purpose.
//
// Source: FNV-1a, 64 bits (Fowler, Noll and Vo). Thread-safe: no state.

#ifndef LOCKSTEP_BASE_TEXT_HASH_H_
#define LOCKSTEP_BASE_TEXT_HASH_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace lockstep::base {

// Returns the same hash for the same text in every process.
inline uint64_t TextHash(absl::string_view text) {
  uint64_t hash = 14695981039346656037u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

}  // namespace lockstep::base

#endif  // LOCKSTEP_BASE_TEXT_HASH_H_
