// The words of CUDA C++ that the sources of programs use, in C++, so that g++ compiles them too.

#ifndef LOCKSTEP_KERNELS_POINTWISE_CUDA_DEVICE_WORDS_H_
#define LOCKSTEP_KERNELS_POINTWISE_CUDA_DEVICE_WORDS_H_

#include <cmath>
#include <cstring>
#include <vector>

#define __global__
#define __device__ inline

struct Dim {
  unsigned x;
};
inline Dim gridDim, blockDim, blockIdx, threadIdx;

inline float __uint_as_float(unsigned bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}
inline unsigned __float_as_uint(float x) {
  unsigned bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}
inline double __longlong_as_double(long long bits) {
  double x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

using std::cos;
using std::erf;
using std::exp;
using std::fabs;
using std::log;
using std::pow;
using std::sin;
using std::sqrt;
using std::tanh;

// Each runs a kernel for the thread that gridDim and the others say.
extern const std::vector<void (*)(const void* arguments)> kRuns;

#endif  // LOCKSTEP_KERNELS_POINTWISE_CUDA_DEVICE_WORDS_H_
