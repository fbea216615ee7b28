#include "kernels/rows.h"

#include "ATen/core/dispatch/Dispatcher.h"
#include "kernels/aten/instruction_set.h"

namespace lockstep::kernels {

// One of rows_cpu.cc's compilations each.
LOCKSTEP_DECLARE_COMPILATIONS(RowKernels kRowKernels)

namespace {

// Set before any thread computes.
const RowKernels* replacement = nullptr;

}  // namespace

void ReplaceRowKernels(const RowKernels& kernels) { replacement = &kernels; }

const RowKernels& ChosenRowKernels() {
  if (replacement != nullptr) return *replacement;
  static const RowKernels& kernels = LOCKSTEP_CHOSEN_COMPILATION(kRowKernels);
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
