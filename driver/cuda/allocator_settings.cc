#include "driver/cuda/allocator_settings.h"

#include "c10/util/env.h"

namespace lockstep::driver {

void SetAllocatorDefaults() {
  for (const char* name : {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}) {
    if (c10::utils::has_env(name)) return;
  }
  c10::utils::set_env("PYTORCH_ALLOC_CONF", "expandable_segments:True");
}

}  // namespace lockstep::driver
