// Attention on NVIDIA GPUs by one of libtorch's kernels. backends.h chooses it.
//
//    // q [8, heads, dim], k and v [8, kv_heads, dim], ends int32 [3] on the device: 0, 5, 8
//    const at::Tensor y = AttentionOnDevice(q, k, v, ends, {5, 3}, Backend::kFlash);
//
// at::scaled_dot_product_attention takes one sequence at a time, reads a window as a mask of
// tokens x tokens numbers, has no sinks, and chooses cuDNN for the growing cache of a decoder.
//
// Sinks (gpt-oss) are a score of each head that takes part in the softmax. FlashAttention has none.
// It returns the logarithm of each query's sum, so the sink is added afterwards: the result shrinks
// by exp(logarithm without - logarithm with). Its backward reads the result and the logarithm with
// sinks, and then computes the gradients with sinks. Nothing is written out.
//
// Operators: lockstep::attention_backend, lockstep::attention_on_device and
// lockstep::cached_attention_on_device. Below autograd they call those of ATen. Autocast casts q, k
// and v as for at::scaled_dot_product_attention. Thread-safe.
//
// No GPU has run this. on_device_test runs it on the CPU, with kernels of its own in place of
// libtorch's.

#ifndef LOCKSTEP_KERNELS_ATTENTION_ON_DEVICE_H_
#define LOCKSTEP_KERNELS_ATTENTION_ON_DEVICE_H_

#include <optional>

#include "ATen/core/TensorBody.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/backends.h"

namespace lockstep::kernels {

// Returns [tokens, heads, value_dim]. Throws c10::ValueError for other shapes or lengths, for sinks
// with another backend than kFlash, and for a window shorter than a sequence with another one than
// kFlash or kMath. Whether the backend can run otherwise is the caller's to know. The numbers of
// `ends` must be those of seq_lens: they are on the device, so they are not checked.
//
//   q         [tokens, heads, dim]
//   k         [tokens, kv_heads, dim], v [tokens, kv_heads, value_dim]
//   ends      int32 [sequences + 1] on the device: 0, and where each sequence ends
//   seq_lens  the same on the host
//   sinks     [heads]
at::Tensor AttentionOnDevice(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const at::Tensor& ends, at::IntArrayRef seq_lens, Backend backend,
                             const AttentionOptions& options = {},
                             const std::optional<at::Tensor>& sinks = {});

// Returns attention of new tokens to all columns of a cache, by the table's backend for a GPU of
// this capability. Without gradients.
//
//   q             [sequences, kv_heads, heads / kv_heads, dim]
//   keys, values  [sequences, kv_heads, columns, dim]
//   mask          [sequences, columns], is added to the scores
at::Tensor CachedAttentionOnDevice(const at::Tensor& q, const at::Tensor& keys,
                                   const at::Tensor& values, int64_t capability,
                                   const std::optional<at::Tensor>& mask = {});

}  // namespace lockstep::kernels

#endif  // LOCKSTEP_KERNELS_ATTENTION_ON_DEVICE_H_
