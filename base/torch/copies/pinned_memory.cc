#include "base/torch/copies/pinned_memory.h"

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "c10/util/Exception.h"

namespace lockstep::base {
namespace {

constexpr int64_t kPageBytes = 4096;
constexpr int64_t kSlabBytes = 4 << 20;
// The CUDA runtime's functions; they return 0 on success.
using HostRegister = int (*)(void* data, size_t bytes, unsigned int flags);
using HostUnregister = int (*)(void* data);
constexpr unsigned int kPortable = 1;  // cudaHostRegisterPortable: locked for every device

void* Symbol(const char* name) {
  for (const char* library : {"libcudart.so.13", "libcudart.so.12"}) {
    void* const handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    if (handle == nullptr) continue;
    if (void* const symbol = dlsym(handle, name)) return symbol;
  }
  TORCH_CHECK(
      false, "offload: page-locked memory needs ", name,
      " of the CUDA runtime 12 or 13, which this process has not loaded; leave offload out");
}

}  // namespace

HostMemory PinnedMemory() {
  const auto lock = reinterpret_cast<HostRegister>(Symbol("cudaHostRegister"));
  const auto unlock = reinterpret_cast<HostUnregister>(Symbol("cudaHostUnregister"));
  const auto allocate = [lock](int64_t bytes) -> void* {
    const int64_t rounded = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
    void* const data = std::aligned_alloc(kPageBytes, rounded);
    if (data == nullptr || lock(data, rounded, kPortable) == 0) return data;
    std::free(data);
    return nullptr;
  };
  const auto release = [unlock](void* data, int64_t) {
    unlock(data);
    std::free(data);
  };
  return {.allocate = allocate, .release = release, .slab_bytes = kSlabBytes};
}

}  // namespace lockstep::base
