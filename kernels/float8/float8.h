// Linear layers whose products are of 8-bit floating-point numbers, for training (arXiv
// 2209.05433). Each product scales its operands, so that their largest magnitude becomes the
// largest number of the format. Weights, gradients and activations keep their dtypes outside of it.
//
//    const at::Tensor y = Float8Linear(x, weight, bias, "rowwise");
//
// From Lua: float8.apply(model), and torch.ops.lockstep.float8_linear(x, weight, bias, recipe).
// Casts, scales and products are those of torchao's recipes of the same names:
//
//    recipe                 x, weight  dy    a scale for  scales       product for dweight
//    "tensorwise"           e4m3       e5m2  each tensor  any          float8
//    "rowwise"              e4m3       e4m3  each row     powers of 2  float8
//    "rowwise_with_gw_hp"   e4m3       e4m3  each row     powers of 2  in x's dtype
//
// The numbers that one sum of a product runs over share the scale of a row. In forward these are
// rows of x and of the weight. For dx they are rows of dy and columns of the weight; for dweight,
// columns of dy and of x. "rowwise_with_gw_hp" has one scale for the weight in backward.
//
// On NVIDIA GPUs the products are ATen's _scaled_mm, which needs compute capability 8.9. The casts
// are kernels if the program has //kernels:cuda, else ATen's operators. _scaled_mm sums over dense
// rows of both operands, so backward needs transposed casts of dy, x and the weight.
//
// On CPUs one loop finds the magnitudes and one casts. The products are float32 products of the
// same float8 numbers. They are for tests, and not fast. ATen's _scaled_mm takes a thousand times
// longer there, and supports one scale for each tensor only.
//
// Thread-safe.

#ifndef LOCKSTEP_KERNELS_FLOAT8_FLOAT8_H_
#define LOCKSTEP_KERNELS_FLOAT8_FLOAT8_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "ATen/core/TensorBody.h"

namespace lockstep::kernels {

// A matrix of float8 numbers, which stands for values / scale.
struct Float8 {
  at::Tensor values;  // [rows, columns], contiguous
  at::Tensor scale;   // float32: [], or [rows, 1] or [1, columns]
};

// Casts a matrix to `format` (kFloat8_e4m3fn or kFloat8_e5m2), rounding to the nearest. The scale
// is largest / max(amax, 1e-12), computed in float64 and rounded to float32; what is too large then
// becomes the largest number. An infinite or NaN number makes values / scale NaN wherever
// its scale applies.
//
//   x: [rows, columns], float32, bfloat16 or float16, of any strides.
//   dim: 1 scales each row, 0 each column; nullopt the tensor.
//   power_of_2: rounds scales down to powers of 2.
Float8 CastToFloat8(const at::Tensor& x, at::ScalarType format, std::optional<int64_t> dim,
                    bool power_of_2 = false);

// The next three are for a tensor that lies in parts on several ranks. sharding/fully_shard calls
// them through the dispatcher: lockstep::float8_scale, float8_cast_part and float8_give.
//
// Returns the scale for each number of `amax`, float32. If all parts are cast with the scale of the
// largest magnitude in any of them, the casts together are CastToFloat8 of the whole tensor with
// one scale.
at::Tensor Float8Scale(const at::Tensor& amax, at::ScalarType format);
// Casts x, contiguous, to `out`, which has its shape and a float8 format. scale: one number.
void CastPartToFloat8(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& out);
// Lets layers of the recipe "tensorwise" use this cast of a weight whose own values are not there,
// until base::ForgetCopiesOf. `values` has the weight's shape. `scale` has no dimension.
void GiveFloat8(const at::Tensor& weight, const Float8& cast);

// Returns the transposed matrix, contiguous, with zeros behind each row up to a multiple of 16:
// _scaled_mm sums over rows that are dense and that long.
Float8 Transposed(const Float8& matrix);

// Returns Transposed(CastToFloat8(x, ...)). On a GPU one pass over x writes the transposed copy.
Float8 CastTransposed(const at::Tensor& x, at::ScalarType format, std::optional<int64_t> dim,
                      bool power_of_2 = false);

// A cast for two products: one sums over the rows of x, the other over its columns.
struct Float8Both {
  Float8 as_is, transposed;
};

// Returns both copies. `by_row`: CastToFloat8 by rows, and CastTransposed by columns; else both
// with the one scale of the tensor. On a GPU one pass over x finds all magnitudes, and one writes
// both copies.
Float8Both CastBoth(const at::Tensor& x, at::ScalarType format, bool by_row,
                    bool power_of_2 = false);

// Returns x W^T + bias in x's dtype, or in autocast's. Backward casts x again, which is kept in its
// own dtype. The gradient of the weight has its dtype. Gradients of gradients are an error. Throws
// c10::ValueError unless `in` and `out` are multiples of 16, which _scaled_mm needs.
//
// `keep` casts the weight once until it changes (base/torch/weight_copies.h). A kept cast takes a
// byte for each number from the first forward on, and another one from the first backward for x on.
// Results have the same bits.
//
//   x: [..., in]; weight: [out, in]; bias: [out]: float32, bfloat16 or float16 each.
at::Tensor Float8Linear(const at::Tensor& x, const at::Tensor& weight,
                        const std::optional<at::Tensor>& bias, std::string_view recipe,
                        bool keep = false);

}  // namespace lockstep::kernels

#endif  // LOCKSTEP_KERNELS_FLOAT8_FLOAT8_H_
