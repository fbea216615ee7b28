#include "kernels/cuda/testing/mistakes.h"

#include <cstdint>

#include "kernels/cuda/launch.h"

namespace lockstep::kernels::emulator {
namespace {

constexpr Geometry kOneBlock = {.threads_x = 64};

__global__ void Reverse(int mistake, const float* x, float* y) {
  __shared__ float numbers[64];
  const unsigned i = threadIdx.x;
  if (mistake == 5 && i == 0) return;
  if (mistake != 2 || i != 7) numbers[i] = x[mistake == 4 ? i + 1 : i];
  if (mistake != 1) __syncthreads();
  y[i] = numbers[mistake == 3 ? 64 - i : 63 - i];
  if (mistake == 6) numbers[i] = 0;
}

struct alignas(16) Four {
  float x[4];
};

__global__ void Copy(int mistake, const float* x, float* y) {
  const unsigned i = threadIdx.x;
  if (i >= 16) return;
  const auto* from = reinterpret_cast<const Four*>(x);
  auto* to = reinterpret_cast<Four*>(y);
  if (mistake == 1) {
    const_cast<Four*>(from)[i] = to[i];
  } else if (mistake == 2) {
    to[i / 2] = from[i];
  } else if (mistake == 3) {
    to[i + 1] = from[i];
  } else {
    to[i] = from[i];
  }
}

__global__ void Sum(int mistake, const float* x, float* y) {
  float sum = x[threadIdx.x];
  if (mistake == 1 && threadIdx.x == 3) return;
  const uint32_t half = threadIdx.x % 32 < 16 ? 0xffffu : 0xffff0000u;
  for (int offset = mistake == 3 ? 32 : 16; offset > 0; offset /= 2)
    sum += __shfl_xor_sync(mistake == 2 ? half : 0xffffffffu, sum, offset);
  y[threadIdx.x] = sum;
}

__global__ void Amax(int mistake, const float* x, uint32_t* amax) {
  const uint32_t bits = __float_as_uint(x[blockIdx.x * 32 + threadIdx.x]) & 0x7fffffffu;
  const uint32_t most = __reduce_max_sync(0xffffffffu, bits);
  if (threadIdx.x != 0) return;
  if (mistake == 1) {
    if (most > *amax) *amax = most;
  } else {
    atomicMax(amax, most);
  }
}

__global__ void WarpReverse(int mistake, const float* x, float* y) {
  __shared__ float numbers[64];
  const unsigned i = threadIdx.x;
  numbers[i] = x[i];
  if (mistake == 0) __syncwarp();
  if (mistake == 2) __syncwarp(0xffffu);
  // Lanes of one warp are 31 apart; a mistake reads from the other warp.
  y[i] = numbers[mistake == 3 ? 63 - i : i ^ 31];
}

}  // namespace

void RunReverse(int mistake, const float* x, float* y) {
  LaunchKernel(Reverse, kOneBlock, mistake, x, y);
}
void RunCopy(int mistake, const float* x, float* y) {
  LaunchKernel(Copy, kOneBlock, mistake, x, y);
}
void RunSum(int mistake, const float* x, float* y) { LaunchKernel(Sum, kOneBlock, mistake, x, y); }
void RunAmax(int mistake, const float* x, uint32_t* amax) {
  LaunchKernel(Amax, Geometry{.blocks_x = 2, .threads_x = 32}, mistake, x, amax);
}
void RunWarpReverse(int mistake, const float* x, float* y) {
  LaunchKernel(WarpReverse, kOneBlock, mistake, x, y);
}

}  // namespace lockstep::kernels::emulator
