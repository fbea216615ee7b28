#include "kernels/rows.h"

#include <string>

#include "ATen/Version.h"
#include "ATen/core/dispatch/Dispatcher.h"

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

namespace {

// Set before any thread computes.
const RowKernels* replacement = nullptr;

}  // namespace

void ReplaceRowKernels(const RowKernels& kernels) { replacement = &kernels; }

const RowKernels& ChosenRowKernels() {
  if (replacement != nullptr) return *replacement;
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

const RowKernels* CudaRowKernels() {
  // The library of the kernels is loaded before the first tensor on a GPU exists.
  static const RowKernels* const kernels = []() -> const RowKernels* {
    const auto op = c10::Dispatcher::singleton().findSchema({"lockstep::row_kernels_of_cuda", ""});
    if (!op.has_value()) return nullptr;
    return reinterpret_cast<const RowKernels*>(op->typed<int64_t()>().call());
  }();
  return kernels;
}

}  // namespace lockstep::kernels
