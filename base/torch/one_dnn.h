// Whether oneDNN multiplies float32 matrices faster than MKL, which at::mm calls.

#ifndef LOCKSTEP_BASE_TORCH_ONE_DNN_H_
#define LOCKSTEP_BASE_TORCH_ONE_DNN_H_

namespace lockstep::base {

// MKL has AVX-512 code for processors of Intel alone. On others its products run AVX2 code, and
// oneDNN's take about half the time.
constexpr bool IsOneDnnFaster(bool has_avx512, bool is_intel) { return has_avx512 && !is_intel; }

// Returns this for the processor, and for the instructions that ATen uses in this process:
// ATEN_CPU_CAPABILITY=avx2 makes it false. It is false, too, in a libtorch without oneDNN.
bool IsOneDnnFaster();

}  // namespace lockstep::base

#endif  // LOCKSTEP_BASE_TORCH_ONE_DNN_H_
