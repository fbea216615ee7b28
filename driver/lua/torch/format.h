// tostring(tensor): the text that PyTorch prints.

#ifndef LOCKSTEP_DRIVER_LUA_TORCH_FORMAT_H_
#define LOCKSTEP_DRIVER_LUA_TORCH_FORMAT_H_

#include <string>

#include "ATen/core/TensorBody.h"

namespace lockstep::lua {

// "tensor([[1.0000, 2.5000],\n        [3.0000, 4.0000]])", character for character what Python's
// str(tensor) gives at its default print options: four decimals, scientific notation where the
// range needs it, lines of 80 columns, three items at each end of a dimension of a tensor of more
// than 1,000 elements; then device, size (where there are no elements), dtype and grad_fn or
// requires_grad where they are not the default. One difference: a sparse tensor's indices and
// values are not listed.
std::string FormatTensor(const at::Tensor& tensor);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_TORCH_FORMAT_H_
