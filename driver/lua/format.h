// tostring(tensor): the values as PyTorch prints them.

#ifndef LOCKSTEP_DRIVER_LUA_FORMAT_H_
#define LOCKSTEP_DRIVER_LUA_FORMAT_H_

#include <string>

#include "ATen/core/TensorBody.h"

namespace lockstep::lua {

// "tensor([[1.0000, 2.5000],\n        [3.0000, 4.0000]])": four decimals, scientific notation where
// the range needs it, three items at each end of a dimension of a tensor of more than 1,000
// elements; then what is not the default of size (where empty), dtype, device and requires_grad.
std::string FormatTensor(const at::Tensor& tensor);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_FORMAT_H_
