// Whether oneDNN multiplies float32 matrices faster than MKL, which at::mm calls.

#ifndef LOCKSTEP_KERNELS_ATEN_ONE_DNN_H_
#define LOCKSTEP_KERNELS_ATEN_ONE_DNN_H_

#include "kernels/aten/instruction_set.h"

namespace lockstep::kernels {

// MKL has AVX-512 code for processors of Intel alone. On others its products run AVX2 code, and
// oneDNN's take about half the time.
constexpr bool IsOneDnnFaster(InstructionSet set, bool is_intel) {
  return set == InstructionSet::kAvx512 && !is_intel;
}

// Returns this for the processor, and for the instruction set that ATen uses in this process.
bool IsOneDnnFaster();

}  // namespace lockstep::kernels

#endif  // LOCKSTEP_KERNELS_ATEN_ONE_DNN_H_
