// Matrix products in float32 on processors for which MKL has no AVX-512 code.

#ifndef LOCKSTEP_KERNELS_LORA_PRODUCTS_H_
#define LOCKSTEP_KERNELS_LORA_PRODUCTS_H_

#include "ATen/core/TensorBody.h"

namespace lockstep::kernels {

// Returns x weight^T: at::mm, or the product of oneDNN where IsForOneDnn is true. Records nothing
// for backward. Call it below autograd.
//   x: [rows, in]; weight: [out, in], which may be a transposed view.
at::Tensor ProductOfRows(const at::Tensor& x, const at::Tensor& weight);

// Returns whether oneDNN computes this product. MKL has AVX-512 code for processors of Intel alone.
// On others its products run AVX2 code, and oneDNN's take about half the time. The rule: float32 on
// a CPU of another maker that has AVX-512, at least 16 rows, and dense memory. The two round
// differently. torch.backends.mkldnn.enabled = false turns it off.
bool IsForOneDnn(const at::Tensor& x, const at::Tensor& weight);

}  // namespace lockstep::kernels

#endif  // LOCKSTEP_KERNELS_LORA_PRODUCTS_H_
