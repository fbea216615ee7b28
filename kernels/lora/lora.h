// A linear layer with a LoRA adapter (arXiv 2106.09685) as one operator and one node of autograd.
//
//    const at::Tensor y = LoraLinear(x, weight, bias, a, b, alpha / r);
//
// The operators that it stands for make a cast of x, two products, a scaled copy, a sum and a cast
// back, and each saves its inputs for backward. Here the product with b is added into the layer's
// result, the gradient of x likewise, and backward saves x in its own dtype, once, and x a^T.

#ifndef LOCKSTEP_KERNELS_LORA_LORA_H_
#define LOCKSTEP_KERNELS_LORA_LORA_H_

#include <optional>

#include "ATen/core/TensorBody.h"
#include "kernels/few_bits/few_bits.h"

namespace lockstep::kernels {

// Returns x weight^T + bias + scale x a^T b^T in x's dtype. With `dropout` the adapter's x has
// numbers at random set to 0, each with that probability, and the others divided by 1 - dropout.
// The adapter computes in the dtype of a and b. The sum is rounded to x's dtype. It runs as one
// operator where all tensors are dense, `weight` has x's dtype, and a and b have it too or are
// float32 next to float16 or bfloat16. Elsewhere, and in autocast, it calls Linear and ATen's
// operators. Products in float32 may be oneDNN's (products.h). Gradients of gradients are computed
// by ATen's operators. Shapes that do not fit throw c10::ValueError. Thread-safe. From Lua:
// torch.ops.lockstep.lora_linear.
//   x: [..., in]; weight: [out, in]; bias: [out]; a: [r, in]; b: [out, r].
at::Tensor LoraLinear(const at::Tensor& x, const at::Tensor& weight,
                      const std::optional<at::Tensor>& bias, const at::Tensor& a,
                      const at::Tensor& b, double scale, double dropout = 0);

// The same with a frozen weight in 4 or 8 bits. The layer multiplies in `compute_dtype`, by default
// x's dtype, and has the bits that FewBitsLinear gives, but for a bias that is trained: it is added
// within the product, not behind it. Forward and backward each make the whole weight for as long as
// its product takes. From Lua: torch.ops.lockstep.lora_linear_few_bits.
at::Tensor LoraLinear(const at::Tensor& x, const FewBits& weight,
                      std::optional<at::ScalarType> compute_dtype,
                      const std::optional<at::Tensor>& bias, const at::Tensor& a,
                      const at::Tensor& b, double scale, double dropout = 0);

}  // namespace lockstep::kernels

#endif  // LOCKSTEP_KERNELS_LORA_LORA_H_
