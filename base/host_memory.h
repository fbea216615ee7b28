// A source of host memory.

#ifndef LOCKSTEP_BASE_HOST_MEMORY_H_
#define LOCKSTEP_BASE_HOST_MEMORY_H_

#include <cstdint>
#include <cstdlib>
#include <functional>

namespace lockstep::base {

// `allocate` returns nullptr if the machine has no more memory, otherwise memory that is aligned to
// 64 bytes.
struct HostMemory {
  std::function<void*(int64_t bytes)> allocate;
  std::function<void(void* data, int64_t bytes)> release;
  // Requests below this size, in bytes, share allocations of this size, because page-locking is
  // slow. 0: each request gets its own allocation.
  int64_t slab_bytes = 0;
};

// Returns a source of ordinary memory, for copies that need no page-locking.
inline HostMemory PageableMemory() {
  constexpr int64_t kAlignment = 64;
  return {.allocate =
              [](int64_t bytes) {
                return std::aligned_alloc(kAlignment,
                                          (bytes + kAlignment - 1) / kAlignment * kAlignment);
              },
          .release = [](void* data, int64_t) { std::free(data); }};
}

}  // namespace lockstep::base

#endif  // LOCKSTEP_BASE_HOST_MEMORY_H_
