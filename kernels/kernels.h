// Fused operators of a transformer, with gradients: RMS norm, SwiGLU, rotary embedding, and linear
// layers and attention on few rows. Each is one pass over memory. A chain of n ATen operators moves
// the same numbers n times, and saves its intermediate results for backward. A fused operator saves
// only its inputs (AddRmsNorm also its sum).
//
//    const at::Tensor h = RmsNorm(x, weight, 1e-6);
//    const at::Tensor y = at::linear(Swiglu(at::linear(h, gate), at::linear(h, up)), down);
//
// Each is an operator of the dispatcher too: lockstep::rms_norm and so on, from Lua
// torch.ops.lockstep.rms_norm(x, weight, eps). On the CPU they are kernels for AVX-512, AVX2 and
// any other machine, chosen as ATen chooses (ATEN_CPU_CAPABILITY overrides it). On an NVIDIA GPU
// they are kernels of the same loops, if the program has //kernels:cuda. On meta tensors they
// return empty results. On any other device they call the operators of ATen that they stand for.
//
// Tensors: float16, bfloat16, float32 or float64, all of one dtype (but see Rotate) and on one
// device. float16 and bfloat16 are computed in float32. The last dimension is the row; any number
// of others, of any size and 0 too, comes before it. Rows may lie apart in memory (a chunk of a
// wider tensor); other strides cost a copy. Results are contiguous, and have the same bits for any
// number of threads. Gradients of gradients are computed by ATen's operators. Other dtypes, shapes
// that do not fit, and several devices in one call throw c10::ValueError. Thread-safe.

#ifndef LOCKSTEP_KERNELS_KERNELS_H_
#define LOCKSTEP_KERNELS_KERNELS_H_

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "ATen/core/TensorBody.h"

namespace lockstep::kernels {

// Returns x / sqrt(mean(x^2) + eps) * weight along the last dimension (arXiv 1910.07467). The first
// factor is rounded to x's dtype before it is scaled, as in Llama and Qwen.
//   x: [..., size]; weight: [size].
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps);

// Returns RmsNorm(sum, weight, eps) and sum = x + residual, rounded to x's dtype.
//   x, residual: [..., size]; weight: [size].
std::pair<at::Tensor, at::Tensor> AddRmsNorm(const at::Tensor& x, const at::Tensor& residual,
                                             const at::Tensor& weight, double eps);

// Returns RmsNorm(x, weight, eps) and x. Use the second result where x is read again, as in a
// residual. Backward adds its gradient in the pass that computes the norm's, and rounds the sum
// once. If x itself were read again, autograd would read and write x's gradient once more.
//   x: [..., size]; weight: [size].
std::pair<at::Tensor, at::Tensor> RmsNormAndInput(const at::Tensor& x, const at::Tensor& weight,
                                                  double eps);

// Returns silu(gate) * up (arXiv 2002.05202).
//   gate, up: [...], of one shape.
at::Tensor Swiglu(const at::Tensor& gate, const at::Tensor& up);

// Applies rotary embeddings: turns the pairs (i, i + size / 2) of the last dimension (arXiv
// 2104.09864). The first half of `sin` is negated, as nn.rotary returns it: it has the sine of a
// pair at i + size / 2, and its negative at i. In transformers' `sin` it is not; negate it there.
// No gradient for cos and sin.
//   x: [..., heads, size], size even; cos, sin: [..., 1, size], of x's dtype, or
//   float32 with a float16 or bfloat16 x.
at::Tensor Rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

// Returns x W^T + bias. A kernel for few rows reads the weight once, at the speed of memory. It
// runs on the CPU if nothing needs a gradient, x has at most 8 rows, and a row has at least 32
// times as many numbers as there are rows. A row's bits do not depend on the other rows. It adds up
// in float32 (float64 for float64). Elsewhere values and gradients have the bits of at::linear's,
// and a gradient costs one node of autograd, not four.
//   x: [..., in]; weight: [out, in]; bias: [out].
at::Tensor Linear(const at::Tensor& x, const at::Tensor& weight,
                  const std::optional<at::Tensor>& bias = std::nullopt);

// The most layers of Linears: q, k and v.
inline constexpr size_t kMostLinears = 3;

// Returns Linear(x, W, bias) of several layers, with the same bits. Backward adds each layer's
// share to the gradient of x within the product (addmm), so that no gradient of x is written for
// each layer and read again to add them. The sum is rounded no more often than by such additions.
//   x: [..., in]; weights: [out, in] each, 1 to 3; biases: [out] each, or none.
std::vector<at::Tensor> Linears(const at::Tensor& x, at::TensorList weights,
                                at::TensorList biases = {});

// Attention in generation (arXiv 1911.02150). Writes the keys and values of one new token of each
// sequence into `column` of a cache. Returns what the tokens see in the columns from `first` to
// `column`: softmax(q keys^T / sqrt(size) + mask) values. Runs on CPUs alone, and where nothing
// needs a gradient; else throws c10::ValueError. A row's bits do not depend on other sequences.
//   q: [sequences, heads, size].
//   k, v: [sequences, kv_heads, size]. Query head i looks at key head i * kv_heads / heads.
//   keys, values: [sequences, kv_heads, columns, size]. The columns of a head are contiguous.
//   mask: [sequences, columns], of q's dtype. Minus infinity hides a column.
//   Result: [sequences, heads, size].
at::Tensor CachedAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           at::Tensor& keys, at::Tensor& values, int64_t column, int64_t first = 0,
                           const std::optional<at::Tensor>& mask = std::nullopt);

// The attention of a layer in generation with its norm and linear layers, as one operator. Results
// have the bits of these calls: h = RmsNorm(x, norm, eps); Linear makes q, k and v of it; RmsNorm
// of q and k, if head_norms are given; Rotate; CachedAttention, whose limits and errors it shares;
// Linear. Where Linear runs its kernel for few rows, no operator but CachedAttention is called.
// Call it outside of autocast: its kernels compute in their tensors' dtype all the same, while the
// calls of Linear elsewhere follow autocast.
//
//   x: [sequences, hidden]; norm: [hidden]; cos, sin: [sequences, 1, size].
//   weights: of q, k, v and of the result, [heads * size, hidden], [kv_heads * size, hidden] twice,
//     and [outputs, heads * size]. biases: theirs, or of the first three, or none.
//   head_norms: of q and of k, [size] each, or none.
//   keys, values, column, first, mask: as CachedAttention's.
//   Result: [sequences, outputs].
at::Tensor AttentionOfNewTokens(const at::Tensor& x, const at::Tensor& norm, at::TensorList weights,
                                at::TensorList biases, at::TensorList head_norms, double eps,
                                const at::Tensor& cos, const at::Tensor& sin, at::Tensor& keys,
                                at::Tensor& values, int64_t column, int64_t first = 0,
                                const std::optional<at::Tensor>& mask = std::nullopt);

// The gated MLP of a layer in generation, likewise. Returns sum + Linear(Swiglu(Linear(h, gate),
// Linear(h, up)), down), where h and sum are AddRmsNorm(x, residual, norm, eps). Call it outside of
// autocast, too.
//
//   x, residual: [sequences, hidden]; norm: [hidden].
//   weights: gate and up, [wide, hidden], and down, [hidden, wide]. biases: theirs, or none.
at::Tensor MlpOfNewTokens(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& norm,
                          at::TensorList weights, at::TensorList biases, double eps);

}  // namespace lockstep::kernels

#endif  // LOCKSTEP_KERNELS_KERNELS_H_
