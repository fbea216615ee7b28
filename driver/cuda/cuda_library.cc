#include "driver/cuda/cuda_library.h"

#include <dlfcn.h>

#include <string>

#include "c10/util/Exception.h"
#include "driver/cuda/allocator_settings.h"
#include "driver/files/files.h"

namespace lockstep::driver {

void* CudaSymbol(const char* name) {
  static void* const library = [] {
    SetAllocatorDefaults();
    const std::string path = FindRunfile("driver/cuda/liblockstep_cuda.so");
    void* opened = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    TORCH_CHECK(opened != nullptr, "cannot load ", path, ": ", dlerror());
    return opened;
  }();
  void* symbol = dlsym(library, name);
  TORCH_CHECK(symbol != nullptr, "liblockstep_cuda.so lacks ", name);
  return symbol;
}

}  // namespace lockstep::driver
