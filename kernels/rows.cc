#include "kernels/rows.h"

#include <string>

#include "ATen/Version.h"

namespace lockstep::kernels {

// One of rows_cpu.cc's compilations each.
namespace DEFAULT {
extern const RowKernels kRowKernels;
}
#if defined(__x86_64__)
namespace AVX2 {
extern const RowKernels kRowKernels;
}
namespace AVX512 {
extern const RowKernels kRowKernels;
}
#endif

const RowKernels& ChosenRowKernels() {
  static const RowKernels& kernels = []() -> const RowKernels& {
#if defined(__x86_64__)
    const std::string capability = at::get_cpu_capability();
    if (capability == "AVX512") return AVX512::kRowKernels;
    if (capability == "AVX2") return AVX2::kRowKernels;
#endif
    return DEFAULT::kRowKernels;
  }();
  return kernels;
}

}  // namespace lockstep::kernels
