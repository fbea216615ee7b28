// The words of CUDA C++ that the sources of programs use, in C++, so that g++ compiles them too. A
// thread of a block is a thread of the CPU, and blocks run one after another.

#ifndef LOCKSTEP_KERNELS_POINTWISE_CUDA_DEVICE_WORDS_H_
#define LOCKSTEP_KERNELS_POINTWISE_CUDA_DEVICE_WORDS_H_

#include <barrier>
#include <cmath>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#define __global__
#define __device__ inline
#define __shared__ static

struct Dim {
  unsigned x;
};
inline Dim gridDim, blockDim;
inline thread_local Dim blockIdx, threadIdx;

struct Block {
  explicit Block(unsigned threads) : barrier(threads), exchanged(threads) {}

  std::barrier<> barrier;
  std::vector<double> exchanged;
};
inline std::unique_ptr<Block> the_block;

inline void __syncthreads() { the_block->barrier.arrive_and_wait(); }

// All threads of the block take part.
inline double __shfl_xor_sync(unsigned /*mask*/, double x, int lanes) {
  the_block->exchanged[threadIdx.x] = x;
  __syncthreads();
  const double other = the_block->exchanged[threadIdx.x ^ static_cast<unsigned>(lanes)];
  __syncthreads();
  return other;
}

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
using RunThread = void (*)(const void* arguments);
extern const std::vector<RunThread> kRuns;

// Runs a kernel.
inline void RunGrid(RunThread run, unsigned blocks, unsigned threads, const void* arguments) {
  gridDim = {blocks};
  blockDim = {threads};
  the_block = std::make_unique<Block>(threads);
  std::vector<std::jthread> all;
  for (unsigned thread = 0; thread < threads; ++thread) {
    all.emplace_back([=] {
      threadIdx = {thread};
      for (blockIdx = {0}; blockIdx.x < blocks; ++blockIdx.x) {
        run(arguments);
        __syncthreads();
      }
    });
  }
}

#endif  // LOCKSTEP_KERNELS_POINTWISE_CUDA_DEVICE_WORDS_H_
