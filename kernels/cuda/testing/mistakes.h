// Kernels with one mistake each, and the same without it, for emulator_test.cc.

#ifndef LOCKSTEP_KERNELS_CUDA_TESTING_MISTAKES_H_
#define LOCKSTEP_KERNELS_CUDA_TESTING_MISTAKES_H_

#include <cstdint>

namespace lockstep::kernels::emulator {

// Each has a block of 64 threads, or two. x and y: 64 numbers. `mistake` 0 runs the right kernel.
void RunReverse(int mistake, const float* x, float* y);      // by way of shared memory
void RunCopy(int mistake, const float* x, float* y);         // 16 bytes for each of 16 threads
void RunSum(int mistake, const float* x, float* y);          // of each warp, to all of its lanes
void RunAmax(int mistake, const float* x, uint32_t* amax);   // one number, by two blocks
void RunWarpReverse(int mistake, const float* x, float* y);  // of each warp, without shuffles

}  // namespace lockstep::kernels::emulator

#endif  // LOCKSTEP_KERNELS_CUDA_TESTING_MISTAKES_H_
