// Calls the operators of ATen whose names begin with an underscore. They may change with each
// version of libtorch, so no other file of this library calls them. Thread-safe.

#ifndef LOCKSTEP_KERNELS_ATEN_PRIVATE_OPERATORS_H_
#define LOCKSTEP_KERNELS_ATEN_PRIVATE_OPERATORS_H_

#include <optional>
#include <tuple>

#include "ATen/core/TensorBody.h"

namespace lockstep::kernels {

// Returns x in another shape: for autograd a tensor of its own, not a view of x.
at::Tensor UnsafeView(const at::Tensor& x, at::IntArrayRef shape);

// Adds 1 to each tensor: one launch for all, on a GPU.
void AddOneToAll(at::TensorList tensors);

// ATen's attention on the CPU, past the dispatcher: kernels/attention/flash.h has its arguments.
std::tuple<at::Tensor, at::Tensor> AtenFlashAttention(const at::Tensor& q, const at::Tensor& k,
                                                      const at::Tensor& v, double dropout,
                                                      bool causal,
                                                      const std::optional<at::Tensor>& mask,
                                                      std::optional<double> scale);

// Returns the gradients of q, k and v.
std::tuple<at::Tensor, at::Tensor, at::Tensor> AtenFlashAttentionBackward(
    const at::Tensor& dy, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const at::Tensor& y, const at::Tensor& logsumexp, double dropout, bool causal,
    const std::optional<at::Tensor>& mask, std::optional<double> scale);

// Returns the product of two matrices of float8 numbers, times factors: one for each matrix, or for
// each row of `a` [m, 1] and each column of `b` [1, n]. `fast`: a GPU adds up in less than float32.
//   a: [m, k], contiguous; b: [k, n], column-major. k and n are multiples of 16.
at::Tensor ScaledMatrixProduct(const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_factor,
                               const at::Tensor& b_factor, at::ScalarType dtype, bool fast);

}  // namespace lockstep::kernels

#endif  // LOCKSTEP_KERNELS_ATEN_PRIVATE_OPERATORS_H_
