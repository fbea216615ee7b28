// Linear layers whose weights stay in 4 bits, the base of QLoRA (arXiv 2305.14314). A weight takes
// a quarter of the memory that it has in bfloat16. Forward and backward each make the whole numbers
// of one layer for as long as its product takes. Autograd keeps nothing but the packed bytes.
//
//    const at::Tensor y = FourBitLinear(x, weight, /*bias=*/std::nullopt);
//
// From Lua: models.load(folder, { load_in_4bit = true }).
//
// The format is bitsandbytes'. The numbers of a matrix, row after row, are cut into blocks.
// Each is one of 16 values ("nf4": quantiles of a normal distribution; "fp4": a sign and three
// bits) times its block's largest magnitude, absmax. A byte has two of them; the first is in the
// upper bits. With double quantization absmax itself is a byte:
//
//    absmax = map[byte] * nested_absmax[block / nested_block] + offset
//
// The whole numbers have the bits that bitsandbytes computes: a product and a sum in float32,
// rounded once to the dtype. FourBitLinear then multiplies in the dtype of x. Products in float32
// may be oneDNN's (kernels/lora/products.h).
//
// On CPUs a loop makes the whole numbers; on other devices ATen's operators do. A layer with an
// adapter is one operator: kernels/lora/lora.h.
//
// Thread-safe.

#ifndef LOCKSTEP_KERNELS_FOUR_BIT_FOUR_BIT_H_
#define LOCKSTEP_KERNELS_FOUR_BIT_FOUR_BIT_H_

#include <cstdint>
#include <optional>

#include "ATen/core/TensorBody.h"
#include "c10/util/string_view.h"

namespace lockstep::kernels {

// A matrix of 4-bit numbers.
struct FourBit {
  at::Tensor packed;  // uint8, rows * columns / 2 elements, contiguous
  // float32 [blocks]; with double quantization uint8.
  at::Tensor absmax;
  // Undefined, or of double quantization. float32 [ceil(blocks / nested_block)]; int32 is taken as
  // the bits of float32.
  at::Tensor nested_absmax;
  at::Tensor nested_map;  // float32 or its bits, [256]
  double offset = 0;
  int64_t rows = 0, columns = 0;
  int64_t block = 64, nested_block = 256;
  bool is_fp4 = false;
};

// Returns the matrix that these arguments of an operator describe. shape: {rows, columns}; blocks:
// {block, nested_block}; type: "nf4" or "fp4". Throws c10::ValueError for others.
FourBit MakeFourBit(const at::Tensor& packed, const at::Tensor& absmax,
                    const std::optional<at::Tensor>& nested_absmax,
                    const std::optional<at::Tensor>& nested_map, double offset,
                    at::IntArrayRef shape, at::IntArrayRef blocks, c10::string_view type);

// Returns the whole numbers, [rows, columns]. `dtype`: float32, bfloat16 or float16. Throws
// c10::ValueError if tensors do not fit together.
at::Tensor Dequantize(const FourBit& matrix, at::ScalarType dtype);

// Returns the same by ATen's operators, on any device.
at::Tensor DequantizeByOperators(const FourBit& matrix, at::ScalarType dtype);

// Returns x W^T + bias in x's dtype, or in autocast's. W gets no gradient. Gradients of gradients
// are an error. x: [..., columns]; bias: [rows].
at::Tensor FourBitLinear(const at::Tensor& x, const FourBit& weight,
                         const std::optional<at::Tensor>& bias);

// Returns x W^T + bias, and dy W, as FourBitLinear and its backward compute them. For callers below
// autograd. x and dy are matrices; the results have their dtypes.
at::Tensor FourBitProduct(const at::Tensor& x, const FourBit& weight,
                          const std::optional<at::Tensor>& bias);
at::Tensor FourBitInputGradient(const at::Tensor& dy, const FourBit& weight);

}  // namespace lockstep::kernels

#endif  // LOCKSTEP_KERNELS_FOUR_BIT_FOUR_BIT_H_
