// Compiled three times, with other flags and another CPU_CAPABILITY each time: see BUILD.
//
// Includes as little as it can. The linker keeps one copy of an inline function: if that copy were
// compiled here with AVX-512, the program would crash on a machine without it. capability_test.sh
// looks for such functions.

#include <cstdint>

#include "kernels/few_rows.h"
#include "kernels/loops.h"
#include "kernels/pack.h"
#include "kernels/rows.h"

namespace lockstep::kernels::CPU_CAPABILITY {
namespace {

// By dtype. The operator has refused all others.
void LinearOnCpu(const LinearRows& rows, int64_t begin, int64_t end) {
  switch (rows.dtype) {
    case at::kFloat:
      return FewRows<float>::Run(rows, begin, end);
    case at::kDouble:
      return FewRows<double>::Run(rows, begin, end);
    case at::kBFloat16:
      return FewRows<at::BFloat16>::Run(rows, begin, end);
    default:
      return FewRows<at::Half>::Run(rows, begin, end);
  }
}

constexpr RowKernels Kernels() {
  RowKernels kernels = KernelsOfOneThread<Cpu>();
  kernels.linear = LinearOnCpu;
  return kernels;
}

}  // namespace

extern const RowKernels kRowKernels;
const RowKernels kRowKernels = Kernels();

}  // namespace lockstep::kernels::CPU_CAPABILITY
