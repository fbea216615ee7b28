// The dtypes of the kernels' tests, and how exact results in them are.

#ifndef LOCKSTEP_KERNELS_CUDA_TESTING_DTYPES_H_
#define LOCKSTEP_KERNELS_CUDA_TESTING_DTYPES_H_

#include "c10/core/ScalarType.h"

namespace lockstep::kernels::emulator {

// The difference between two neighbours near 1.
template <typename T>
constexpr double Epsilon() {
  switch (c10::CppTypeToScalarType<T>::value) {
    case at::kDouble: return 0x1p-52;
    case at::kFloat: return 0x1p-23;
    case at::kHalf: return 0x1p-10;
    default: return 0x1p-7;
  }
}

// Calls run(a number of the dtype) for each dtype that models train in.
template <typename Run>
void ForEachDtype(const Run& run) {
  run(float());
  run(at::BFloat16());
  run(at::Half());
}

}  // namespace lockstep::kernels::emulator

#endif  // LOCKSTEP_KERNELS_CUDA_TESTING_DTYPES_H_
