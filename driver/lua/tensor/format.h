// tostring(tensor): the text that PyTorch prints.

#ifndef LOCKSTEP_DRIVER_LUA_TENSOR_FORMAT_H_
#define LOCKSTEP_DRIVER_LUA_TENSOR_FORMAT_H_

#include <string>

#include "ATen/core/TensorBody.h"

namespace lockstep::lua {

// Returns "tensor([[1.0000, 2.5000],\n        [3.0000, 4.0000]])", character for character the text
// of Python's str(tensor) at its default print options. It prints four decimals, scientific
// notation if the range needs it, and lines of 80 columns. A tensor of more than 1,000 elements
// shows three items at each end of a dimension. After these come device, size (without elements),
// dtype, and grad_fn or requires_grad, unless they have the default. One difference: the indices
// and values of a sparse tensor are not listed.
std::string FormatTensor(const at::Tensor& tensor);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_TENSOR_FORMAT_H_
