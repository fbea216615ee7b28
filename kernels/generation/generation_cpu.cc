// Compiled three times, with other flags and another CPU_CAPABILITY each time: see BUILD.
//
// Includes as little as it can. The linker keeps one copy of an inline function: if that copy were
// compiled here with AVX-512, the program would crash on a machine without it. capability_test.sh
// looks for such functions.

#include <cstdint>

#include "kernels/generation/cached_attention.h"
#include "kernels/generation/few_rows.h"
#include "kernels/generation/generation.h"
#include "kernels/loops.h"
#include "kernels/pack.h"

namespace lockstep::kernels::CPU_CAPABILITY {
namespace {

template <typename Machine, typename T>
struct Linear {
  static void Run(const Machine& /*machine*/, const LinearRows& rows, int64_t begin, int64_t end) {
    FewRows<T>::Run(rows, begin, end);
  }
};

void LinearInt8(const LinearRows& rows, int64_t begin, int64_t end) {
  FewRows<float, float, int8_t>::Run(rows, begin, end);
}

}  // namespace

extern const GenerationKernels kGenerationKernels;
const GenerationKernels kGenerationKernels = {
    .linear = RunByDtype<Cpu, Linear, LinearRows>,
    .linear_int8 = LinearInt8,
    .cached_attention = RunByDtype<Cpu, CachedAttention, CachedAttentionRows>,
};

}  // namespace lockstep::kernels::CPU_CAPABILITY
