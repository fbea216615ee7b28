// Plain values as the bytes that ranks send each other: numbers, and structs without padding.
//
//    const std::string message = base::BytesOf(uint32_t{7}) + text;
//    const auto size = base::FromBytes<uint32_t>(message.data());
//
// The bytes are in this machine's order: all machines of a run are alike. Thread-safe.

#ifndef LOCKSTEP_BASE_RAW_BYTES_H_
#define LOCKSTEP_BASE_RAW_BYTES_H_

#include <cstring>
#include <string>
#include <type_traits>

namespace lockstep::base {

template <typename T>
std::string BytesOf(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

// Returns the value whose sizeof(T) bytes begin at `bytes`.
template <typename T>
T FromBytes(const char* bytes) {
  static_assert(std::is_trivially_copyable_v<T>);
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

}  // namespace lockstep::base

#endif  // LOCKSTEP_BASE_RAW_BYTES_H_
