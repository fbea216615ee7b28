// Runs a program on a GPU: writes its source (source.h), compiles it or finds it in the cache
// (compiler.h), and launches it by CUDA's driver on the current stream. It has not run on a GPU
// yet.

#ifndef LOCKSTEP_KERNELS_POINTWISE_CUDA_LAUNCH_H_
#define LOCKSTEP_KERNELS_POINTWISE_CUDA_LAUNCH_H_

#include <cstdint>

#include "ATen/core/TensorBody.h"
#include "c10/core/Device.h"
#include "kernels/pointwise/program.h"

namespace lockstep::kernels::pointwise::cuda {

// Returns whether a kernel can be compiled and loaded for this GPU; the first call for it tries.
// Warns once where NVRTC and the driver are there, but fail.
bool CanLaunch(c10::Device device);

// Writes the results, which are contiguous. Inputs of rows are broadcast to ShapeOfRows(shape), the
// others to `shape`. `number` tells programs apart. Throws c10::Error where NVRTC or the driver
// fails. Thread-safe.
void Launch(int64_t number, const Program& program, at::TensorList inputs,
            at::ArrayRef<double> numbers, at::IntArrayRef shape, at::TensorList results);

}  // namespace lockstep::kernels::pointwise::cuda

#endif  // LOCKSTEP_KERNELS_POINTWISE_CUDA_LAUNCH_H_
