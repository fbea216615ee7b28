// Compiled three times, with other flags and another CPU_CAPABILITY each time: see BUILD.
//
// Includes as little as it can. The linker keeps one copy of an inline function: if that copy were
// compiled here with AVX-512, the program would crash on a machine without it. capability_test.sh
// looks for such functions.

#include <cstdint>

#include "kernels/loops.h"
#include "kernels/pack.h"
#include "kernels/rows.h"

namespace lockstep::kernels::CPU_CAPABILITY {
namespace {

// By dtype. The operators have refused all others.
template <template <typename, typename> typename Kernel, typename Rows>
void RunByDtype(const Rows& rows, int64_t begin, int64_t end) {
  switch (rows.dtype) {
    case at::kFloat:
      return Kernel<Cpu, float>::Run({}, rows, begin, end);
    case at::kDouble:
      return Kernel<Cpu, double>::Run({}, rows, begin, end);
    case at::kBFloat16:
      return Kernel<Cpu, at::BFloat16>::Run({}, rows, begin, end);
    default:
      return Kernel<Cpu, at::Half>::Run({}, rows, begin, end);
  }
}

void AdamWOnCpu(const AdamWTensors& all, int64_t begin, int64_t end) {
  RunAdamW(Cpu{}, all, begin, end);
}

}  // namespace

extern const RowKernels kRowKernels;
const RowKernels kRowKernels = {
    .rms_norm = RunByDtype<RmsNorm, RmsNormRows>,
    .rms_norm_gradient = RunByDtype<RmsNormGradient, RmsNormGradientRows>,
    .swiglu = RunByDtype<Swiglu, SwigluRows>,
    .swiglu_gradient = RunByDtype<SwigluGradient, SwigluRows>,
    .rotate = RunByDtype<Rotate, RotateRows>,
    .adamw = AdamWOnCpu,
};

}  // namespace lockstep::kernels::CPU_CAPABILITY
