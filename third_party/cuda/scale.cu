#include "third_party/cuda/scale.h"

namespace lockstep {
namespace {

__global__ void Scale(float* x, int64_t n, float factor) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= factor;
}

}  // namespace

int ScaleOnDevice(float* x, int64_t n, float factor) {
  constexpr int64_t kThreads = 256;
  if (n > 0)
    Scale<<<static_cast<unsigned>((n + kThreads - 1) / kThreads), kThreads>>>(x, n, factor);
  return cudaGetLastError();
}

}  // namespace lockstep
