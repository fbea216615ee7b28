// Reads the bits of a tensor of the CPU at the memory's speed.

#ifndef LOCKSTEP_DRIVER_LUA_TENSOR_BITS_H_
#define LOCKSTEP_DRIVER_LUA_TENSOR_BITS_H_

#include <cstdint>

#include "ATen/core/Tensor.h"

namespace lockstep::lua {

// Returns a sum of the bits of a contiguous tensor: of its 64-bit words with odd weights by their
// places, and of the bytes behind the last whole word. Two tensors of one shape and dtype whose
// sums differ hold different values. replicas.lua computes the same sum for tensors of a GPU.
int64_t SumOfBits(const at::Tensor& tensor);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_TENSOR_BITS_H_
