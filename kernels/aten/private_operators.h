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

// --- Attention on NVIDIA GPUs. Autograd records these calls, unless it says otherwise.

// Sequences that lie one after the other: q [tokens, heads, dim], k and v [tokens, kv_heads, dim].
struct PackedSequences {
  at::Tensor ends;      // int32 on the device: 0, and where each sequence ends
  int64_t longest = 0;  // tokens
  bool causal = true;
  std::optional<double> scale;
  // A token sees itself and window - 1 tokens before it, and if not causal after it.
  std::optional<int64_t> window;
};

// FlashAttention-2. Returns [tokens, heads, dim] and logsumexp [heads, tokens], float32.
std::tuple<at::Tensor, at::Tensor> FlashForward(const at::Tensor& q, const at::Tensor& k,
                                                const at::Tensor& v, const PackedSequences& s);

// Returns the gradients of q, k and v. Autograd does not record it.
std::tuple<at::Tensor, at::Tensor, at::Tensor> FlashBackward(
    const at::Tensor& dy, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const at::Tensor& y, const at::Tensor& logsumexp, const PackedSequences& s);

// cuDNN. Returns [tokens, heads, value_dim]. Ignores a window, so one must be at least `longest`.
at::Tensor CudnnAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const PackedSequences& s, bool needs_gradient);

// The same for a batch: q [batch, heads, tokens, dim], k and v [batch, kv_heads, tokens, dim].
at::Tensor CudnnAttentionOfBatch(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 bool causal, std::optional<double> scale, bool needs_gradient);

// Memory-efficient attention. k and v have as many heads as q. It ignores a window, which autograd
// would forget, so one must be at least `longest`.
at::Tensor EfficientAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const PackedSequences& s, bool needs_gradient);

// The same for a batch: q, k and v [batch, heads, tokens, dim].
at::Tensor EfficientAttentionOfBatch(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                     bool causal, std::optional<double> scale, bool needs_gradient);

// Attention of new tokens to all keys, without gradients: q [batch, heads, queries, dim], k and v
// [batch, heads, keys, dim].
at::Tensor FlashAttentionToCache(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

// The same. `mask` [batch, heads, queries, keys] of q's dtype is added to the scores; its rows
// begin at multiples of 16 bytes.
at::Tensor EfficientAttentionToCache(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                     const std::optional<at::Tensor>& mask);

// Returns the product of two matrices of float8 numbers, times factors: one for each matrix, or for
// each row of `a` [m, 1] and each column of `b` [1, n]. `fast`: a GPU adds up in less than float32.
//   a: [m, k], contiguous; b: [k, n], column-major. k and n are multiples of 16.
at::Tensor ScaledMatrixProduct(const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_factor,
                               const at::Tensor& b_factor, at::ScalarType dtype, bool fast);

}  // namespace lockstep::kernels

#endif  // LOCKSTEP_KERNELS_ATEN_PRIVATE_OPERATORS_H_
