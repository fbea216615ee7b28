// The part of free_memory.h that links CUDA: in liblockstep_cuda.so.

#include "c10/cuda/CUDACachingAllocator.h"
#include "driver/cuda/free_memory.h"

extern "C" __attribute__((visibility("default")))
lockstep::driver::FreeMemoryVariable lockstep_free_memory;
lockstep::driver::FreeMemoryVariable lockstep_free_memory = nullptr;

namespace lockstep::driver {
namespace {

class CallDriver : public c10::FreeMemoryCallback {
 public:
  bool Execute() override {
    const FreeMemory function = lockstep_free_memory.load();
    return function != nullptr && function();
  }
};

}  // namespace
}  // namespace lockstep::driver

namespace c10 {

REGISTER_FREE_MEMORY_CALLBACK(lockstep, lockstep::driver::CallDriver);

}  // namespace c10
