// Attention over sequences that lie one after the other, without padding. A sequence sees itself
// alone.
//
//    // q [8, heads, dim], k and v [8, kv_heads, dim]: a sequence of 5 tokens, and one of 3.
//    const at::Tensor y = Attention(q, k, v, {5, 3});
//
// A loop of at::scaled_dot_product_attention takes a dozen operators for each sequence, and as many
// nodes of autograd. For short sequences these take longer than the kernel. A few heads do not keep
// all threads busy. So on the CPU the whole row is one operator with one node. Threads take
// sequences, balanced by their lengths squared. A sequence that is too long for one thread has them
// all, in backward one for each head. Other devices run the loop.
//
// In float32 and float64 flash.h computes each sequence. ATen's kernel for the CPU computes
// sequences with a mask, and 16-bit dtypes (FlashAttention-2, arXiv 2307.08691). The loop runs
// where ATen would not choose its kernel: if the rows of a head are not dense, or after
// at::globalContext().setSDPUseFlash(false).
//
// Results and gradients of flash.h have the same bits for any number of threads.
// AttentionBySequence gives these bits too after ReplaceAtenFlashAttention(true). ATen's kernel,
// which computes sequences with a mask, promises less. MKL rounds a product differently on one
// thread than on several, so the last bit of float32 and float64 gradients may change with the
// number of threads. With a single head they may differ from the loop's for the same reason.
//
// Operators: lockstep::attention, lockstep::attention_by_sequence (the loop), and below autograd
// lockstep::packed_attention. Autocast casts q, k and v as for at::scaled_dot_product_attention.
// A gradient cannot be differentiated again, nor can ATen's own on the CPU. Thread-safe.

#ifndef LOCKSTEP_KERNELS_ATTENTION_ATTENTION_H_
#define LOCKSTEP_KERNELS_ATTENTION_ATTENTION_H_

#include <cstdint>
#include <optional>

#include "ATen/core/TensorBody.h"

namespace lockstep::kernels {

struct AttentionOptions {
  bool causal = true;                            // a token sees itself and the tokens before it
  std::optional<double> scale = {};              // default: dim^-0.5
  std::optional<int64_t> window = std::nullopt;  // a token sees itself, window - 1 before it and,
                                                 // if not causal, window - 1 after it
};

// Returns [tokens, heads, dim]. Throws c10::ValueError for other shapes, dtypes, seq_lens or
// windows.
//
//   q         [tokens, heads, dim]
//   k, v      [tokens, kv_heads, dim], of q's dtype. heads is a multiple of kv_heads.
//   seq_lens  at least 1 each, and tokens together
at::Tensor Attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     at::IntArrayRef seq_lens, const AttentionOptions& options = {});

// Computes the same by at::scaled_dot_product_attention for each sequence, on any device.
at::Tensor AttentionBySequence(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               at::IntArrayRef seq_lens, const AttentionOptions& options = {});

}  // namespace lockstep::kernels

#endif  // LOCKSTEP_KERNELS_ATTENTION_ATTENTION_H_
