// The words of CUDA C++ that the kernels use, for g++: a source of nvcc that includes launch.h
// compiles for the CPU too, and runs on the emulator.

#ifndef LOCKSTEP_KERNELS_CUDA_TESTING_CUDA_ON_CPU_H_
#define LOCKSTEP_KERNELS_CUDA_TESTING_CUDA_ON_CPU_H_

#include <bit>
#include <cstdint>
#include <cstring>
#include <tuple>

#include "kernels/cuda/geometry.h"
#include "kernels/cuda/testing/emulator.h"

// NOLINTBEGIN(bugprone-reserved-identifier): the names are CUDA's.
#define __device__
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
// One copy for all threads of a block. Blocks run one after another.
#define __shared__ static

#define threadIdx (::lockstep::kernels::emulator::ThreadIndex())
#define blockIdx (::lockstep::kernels::emulator::BlockIndex())
#define blockDim (::lockstep::kernels::emulator::ThreadsOfBlock())
#define gridDim (::lockstep::kernels::emulator::BlocksOfGrid())

namespace lockstep::kernels {

// Shared memory is static here. The compiler must not keep it in registers over a barrier.
#define LOCKSTEP_EMULATED_FENCE() asm volatile("" ::: "memory")

inline void __syncthreads() {
  LOCKSTEP_EMULATED_FENCE();
  emulator::Barrier();
  LOCKSTEP_EMULATED_FENCE();
}

inline void __syncwarp(uint32_t mask = 0xffffffffu) {
  LOCKSTEP_EMULATED_FENCE();
  emulator::WarpBarrier(mask);
  LOCKSTEP_EMULATED_FENCE();
}

template <typename T>
T __shfl_xor_sync(uint32_t mask, T number, int offset) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  memcpy(&bits, &number, sizeof(T));
  bits = emulator::ShuffleXor(mask, bits, offset);
  memcpy(&number, &bits, sizeof(T));
  return number;
}

#define LOCKSTEP_KERNEL_ASSERT(condition) emulator::Assert(condition, #condition)

inline uint32_t __reduce_max_sync(uint32_t mask, uint32_t number) {
  return emulator::ReduceMax(mask, number);
}

inline uint32_t atomicMax(uint32_t* at, uint32_t number) { return emulator::AtomicMax(at, number); }

inline uint32_t __float_as_uint(float number) { return std::bit_cast<uint32_t>(number); }
inline float __uint_as_float(uint32_t bits) { return std::bit_cast<float>(bits); }

template <typename... Parameters, typename... Arguments>
void LaunchKernel(void (*kernel)(Parameters...), const Geometry& geometry,
                  const Arguments&... arguments) {
  struct Call {
    void (*kernel)(Parameters...);
    std::tuple<Parameters...> arguments;
  } call = {kernel, {arguments...}};
  // Each thread copies the arguments to its stack.
  const auto thread = [](void* of) {
    std::apply(static_cast<Call*>(of)->kernel, static_cast<Call*>(of)->arguments);
  };
  emulator::RunGrid(geometry, thread, &call, sizeof(call));
}

}  // namespace lockstep::kernels

// NOLINTEND(bugprone-reserved-identifier)

#endif  // LOCKSTEP_KERNELS_CUDA_TESTING_CUDA_ON_CPU_H_
