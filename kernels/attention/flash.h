// Attention on the CPU in float32 and float64.
//
//    lockstep::kernels::ReplaceAtenFlashAttention(true);
//    const at::Tensor y = at::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/true);
//
// ATen's kernel computes all scores of a block, and throws those away that a causal mask hides. Its
// products are calls of MKL for each block of each head. This one leaves hidden scores out, and its
// products are loops of its own. So it takes about half the time where a sequence is short, and as
// long as ATen's where it is long and not causal (docs/BENCHMARKS.md). Masks, dropout and 16-bit
// dtypes stay ATen's. Results and gradients have the same bits for any number of threads.
//
// Source: FlashAttention-2, arXiv 2307.08691. Thread-safe.

#ifndef LOCKSTEP_KERNELS_ATTENTION_FLASH_H_
#define LOCKSTEP_KERNELS_ATTENTION_FLASH_H_

#include <optional>

#include "ATen/core/TensorBody.h"

namespace lockstep::kernels {

// Returns whether the functions below take these: float32 or float64 of one dtype, of the shapes
// below, and not empty.
bool HasFlashAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

// Writes softmax(q k^T * scale) v to y, and for each query the logarithm of its sum of exponentials
// to logsumexp. Below autograd.
//
//   q, y       [batch, heads, queries, dim]
//   k, v       [batch, heads, keys, dim]. A stride may be 0, for heads that share keys.
//   logsumexp  [batch, heads, queries]
//   causal     a query sees the keys up to its own number
//   scale      default: dim^-0.5
void FlashAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal,
                    std::optional<double> scale, const at::Tensor& y, const at::Tensor& logsumexp);

// Writes the gradients of q, k and v. dy is the gradient of y. dk and dv have memory of their own
// for each head: the caller adds those of heads that share keys.
void FlashAttentionBackward(const at::Tensor& dy, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const at::Tensor& y, const at::Tensor& logsumexp,
                            bool causal, std::optional<double> scale, const at::Tensor& dq,
                            const at::Tensor& dk, const at::Tensor& dv);

// Makes at::scaled_dot_product_attention call these functions on CPUs (true), or ATen's kernel as
// at first (false). Returns the setting before. The operator is
// aten::_scaled_dot_product_flash_attention_for_cpu; its results have the strides of ATen's. From
// Lua: torch.ops.lockstep.replace_flash_attention. The first call registers the operator: make it
// before other threads compute.
bool ReplaceAtenFlashAttention(bool enabled);

}  // namespace lockstep::kernels

#endif  // LOCKSTEP_KERNELS_ATTENTION_FLASH_H_
