// Linear layers whose weights stay in 4 or 8 bits, the base of QLoRA (arXiv 2305.14314). A weight
// takes a quarter or half of the memory that it has in bfloat16. Forward and backward each make the
// whole numbers of one layer for as long as its product takes. Autograd keeps nothing but the
// bytes.
//
//    const at::Tensor y = FewBitsLinear(x, weight, /*bias=*/std::nullopt);
//
// From Lua: models.load(folder, { load_in_4bit = true }), or load_in_8bit.
//
// The formats are bitsandbytes'. In 4 bits the numbers of a matrix, row after row, are cut into
// blocks. Each is one of 16 values ("nf4": quantiles of a normal distribution; "fp4": a sign and
// three bits) times its block's largest magnitude, absmax. A byte has two of them; the first is in
// the upper bits. With double quantization absmax itself is a byte:
//
//    absmax = map[byte] * nested_absmax[block / nested_block] + offset
//
// "int8" is the format of LLM.int8 (arXiv 2208.07339): a row has a magnitude, and its numbers are
// int8 times magnitude / 127. Inputs are not rounded. As bitsandbytes trains on CPUs, columns with
// outliers are not told apart.
//
// The whole numbers have the bits that bitsandbytes computes: a product and a sum in float32,
// rounded once to the dtype. FewBitsLinear then multiplies in the dtype of x. Products in float32
// may be oneDNN's (kernels/lora/products.h).
//
// On CPUs a loop makes the whole numbers; on other devices ATen's operators do. A product of few
// rows with int8 on a CPU makes none: its loop reads the bytes (kernels/generation/few_rows.h). A
// layer with an adapter is one operator: kernels/lora/lora.h.
//
// Thread-safe.

#ifndef LOCKSTEP_KERNELS_FEW_BITS_FEW_BITS_H_
#define LOCKSTEP_KERNELS_FEW_BITS_FEW_BITS_H_

#include <cstdint>
#include <optional>

#include "ATen/core/TensorBody.h"
#include "c10/util/string_view.h"

namespace lockstep::kernels {

enum class FewBitsType { kNf4, kFp4, kInt8 };

// A matrix of 4-bit or 8-bit numbers.
struct FewBits {
  at::Tensor packed;  // uint8, rows * columns / 2 elements; or int8 [rows, columns]; contiguous
  // float32 [blocks], int32 is taken as the bits of float32; with double quantization uint8.
  at::Tensor absmax;
  // Undefined, or of double quantization. float32 or its bits, [ceil(blocks / nested_block)].
  at::Tensor nested_absmax;
  at::Tensor nested_map;  // float32 or its bits, [256]
  double offset = 0;
  int64_t rows = 0, columns = 0;
  int64_t block = 64, nested_block = 256;  // kInt8 takes no block: it is a row
  FewBitsType type = FewBitsType::kNf4;
};

// Returns the matrix that these arguments of an operator describe. shape: {rows, columns}; blocks:
// {block, nested_block}; type: "nf4", "fp4" or "int8". Throws c10::ValueError for others.
FewBits MakeFewBits(const at::Tensor& packed, const at::Tensor& absmax,
                    const std::optional<at::Tensor>& nested_absmax,
                    const std::optional<at::Tensor>& nested_map, double offset,
                    at::IntArrayRef shape, at::IntArrayRef blocks, c10::string_view type);

// Returns the whole numbers, [rows, columns]. `dtype`: float32, bfloat16 or float16. Throws
// c10::ValueError if tensors do not fit together.
at::Tensor Dequantize(const FewBits& matrix, at::ScalarType dtype);

// Returns the same by ATen's operators, on any device.
at::Tensor DequantizeByOperators(const FewBits& matrix, at::ScalarType dtype);

// Returns a factor for each block, float32: its largest magnitude, of kInt8 divided by 127.
at::Tensor FactorsOfBlocks(const FewBits& matrix);

// Returns x W^T + bias in x's dtype, or in autocast's. W gets no gradient. Gradients of gradients
// are an error. x: [..., columns]; bias: [rows].
at::Tensor FewBitsLinear(const at::Tensor& x, const FewBits& weight,
                         const std::optional<at::Tensor>& bias);

// Returns x W^T + bias, and dy W, as FewBitsLinear and its backward compute them. For callers below
// autograd. x and dy are matrices; the results have their dtypes.
at::Tensor FewBitsProduct(const at::Tensor& x, const FewBits& weight,
                          const std::optional<at::Tensor>& bias);
at::Tensor FewBitsInputGradient(const at::Tensor& dy, const FewBits& weight);

}  // namespace lockstep::kernels

#endif  // LOCKSTEP_KERNELS_FEW_BITS_FEW_BITS_H_
