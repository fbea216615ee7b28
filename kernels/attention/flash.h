// Attention on the CPU in float32 and float64.
//
//    lockstep::kernels::ReplaceAtenFlashAttention(true);
//    const at::Tensor y = at::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/true);
//
// ATen's kernel computes every score of a block, then discards those that a causal mask hides. It
// calls MKL for each block. This kernel skips hidden scores, and multiplies in registers. In
// float32 it takes 0.5 to 0.6 of the time for causal sequences of up to 512 tokens, and as long as
// ATen's for long sequences without a mask (docs/BENCHMARKS.md). Masks, dropout, 16-bit dtypes, and
// fewer than 8 queries of more than 32 keys stay ATen's.
//
// Results and gradients have the same bits for any number of threads. Threads share blocks of
// queries in forward. In backward they share heads, so that nothing is added up in turns. A NaN or
// an infinity in v may also reach up to 7 queries before it.
//
// Source: FlashAttention-2, arXiv 2307.08691. Thread-safe, except for the first call of
// ReplaceAtenFlashAttention.

#ifndef LOCKSTEP_KERNELS_ATTENTION_FLASH_H_
#define LOCKSTEP_KERNELS_ATTENTION_FLASH_H_

#include <optional>

#include "ATen/core/TensorBody.h"

namespace lockstep::kernels {

// Returns whether FlashAttention takes q, k and v: on the CPU, of one dtype (float32 or float64),
// of the shapes below, and not empty.
bool CanUseFlashAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

// Writes y = softmax(scale q k^T) v, and for each query logsumexp = log(sum(exp(scale q k^T))).
// Records no gradients. Throws c10::ValueError unless CanUseFlashAttention(q, k, v) and y fits.
//
//   q, y       [batch, heads, queries, dim]. y is dense along dim.
//   k, v       [batch, heads, keys, dim]. Heads that share keys have a stride of 0.
//   logsumexp  [batch, heads, queries], of q's dtype.
//   causal     Query i sees keys 0 to i. There may be more or fewer keys than queries.
//   scale      Default: dim^-0.5.
void FlashAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal,
                    std::optional<double> scale, const at::Tensor& y, const at::Tensor& logsumexp);

// Writes the gradients of q, k and v: dq, dk and dv, dense along dim. dy is the gradient of y. dk
// and dv are of each head. The caller adds those of heads that share keys.
void FlashAttentionBackward(const at::Tensor& dy, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const at::Tensor& y, const at::Tensor& logsumexp,
                            bool causal, std::optional<double> scale, const at::Tensor& dq,
                            const at::Tensor& dk, const at::Tensor& dv);

// Makes at::scaled_dot_product_attention in this thread call these functions on CPUs (true), or
// ATen's kernel (false, the default in C++). Returns the previous setting. A forward and its
// backward may differ in it. Programs in Lua start with true, and nn.use_fused changes it.
//
// The operator is aten::_scaled_dot_product_flash_attention_for_cpu, and its results keep the
// strides of ATen's. The first call registers it: make it before other threads compute.
bool ReplaceAtenFlashAttention(bool enabled);

}  // namespace lockstep::kernels

#endif  // LOCKSTEP_KERNELS_ATTENTION_FLASH_H_
