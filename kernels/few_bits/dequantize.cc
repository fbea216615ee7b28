#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "ATen/TensorIndexing.h"
#include "ATen/TensorOperators.h"
#include "ATen/ops/bitwise_and.h"
#include "ATen/ops/bitwise_right_shift.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/from_blob.h"
#include "ATen/ops/stack.h"
#include "c10/core/InferenceMode.h"
#include "c10/util/Exception.h"
#include "kernels/aten/instruction_set.h"
#include "kernels/aten/parallel.h"
#include "kernels/few_bits/blocks.h"
#include "kernels/few_bits/few_bits.h"

namespace lockstep::kernels {

LOCKSTEP_DECLARE_COMPILATIONS(FewBitsKernels kFewBitsKernels)

namespace {

constexpr int kValues = 16;
using Table = std::array<float, kValues>;

// Quantiles of a normal distribution, scaled to [-1, 1], with an exact 0: appendix E of the paper.
constexpr Table kNf4 = {-1.0F,
                        -0.6961928009986877F,
                        -0.5250730514526367F,
                        -0.39491748809814453F,
                        -0.28444138169288635F,
                        -0.18477343022823334F,
                        -0.09105003625154495F,
                        0.0F,
                        0.07958029955625534F,
                        0.16093020141124725F,
                        0.24611230194568634F,
                        0.33791524171829224F,
                        0.44070982933044434F,
                        0.5626170039176941F,
                        0.7229568362236023F,
                        1.0F};

// A sign and three bits. bitsandbytes divides 0.0625, 8, 12, 4, 6, 2 and 3 by 12.
constexpr Table kFp4 = {0.0F,       0.0625F / 12, 8.0F / 12,  1.0F,          4.0F / 12,  6.0F / 12,
                        2.0F / 12,  3.0F / 12,    -0.0F,      -0.0625F / 12, -8.0F / 12, -1.0F,
                        -4.0F / 12, -6.0F / 12,   -2.0F / 12, -3.0F / 12};

const Table& TableOf(const FewBits& matrix) {
  return matrix.type == FewBitsType::kFp4 ? kFp4 : kNf4;
}

bool IsInt8(const FewBits& matrix) { return matrix.type == FewBitsType::kInt8; }

at::Tensor AsFloat(const at::Tensor& bits) {
  return bits.scalar_type() == at::kInt ? bits.view(at::kFloat) : bits;
}

// Returns the number of blocks. A sum of both numbers could overflow.
int64_t BlocksOf(int64_t count, int64_t block) { return count / block + (count % block != 0); }

void CheckTensor(const char* name, const at::Tensor& given, const FewBits& matrix, int64_t count) {
  TORCH_CHECK_VALUE(given.defined() && given.is_contiguous() && given.numel() == count,
                    "dequantize_few_bits: ", name, " must be ", count,
                    " numbers in a row for a weight [", matrix.rows, ", ", matrix.columns,
                    "] in blocks of ", IsInt8(matrix) ? matrix.columns : matrix.block, ", got ",
                    given.defined() ? given.sizes() : at::IntArrayRef());
  TORCH_CHECK_VALUE(given.device() == matrix.packed.device(), "dequantize_few_bits: ", name,
                    " is on ", given.device(), ", but the weight is on ", matrix.packed.device(),
                    "; move the whole module");
}

void CheckInt8(const FewBits& matrix) {
  TORCH_CHECK_VALUE(matrix.packed.defined() && matrix.packed.scalar_type() == at::kChar,
                    "dequantize_few_bits: a weight in 8 bits must be int8");
  TORCH_CHECK_VALUE(!matrix.nested_absmax.defined() && matrix.absmax.defined() &&
                        AsFloat(matrix.absmax).scalar_type() == at::kFloat,
                    "dequantize_few_bits: the magnitudes of rows in 8 bits must be float32");
  CheckTensor("the weight", matrix.packed, matrix, matrix.rows * matrix.columns);
  CheckTensor("absmax", matrix.absmax, matrix, matrix.rows);
}

void Check(const FewBits& matrix, at::ScalarType dtype) {
  TORCH_CHECK_VALUE(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf,
                    "dequantize_few_bits: the dtype must be float32, bfloat16 or float16, got ",
                    dtype);
  if (IsInt8(matrix)) return CheckInt8(matrix);
  TORCH_CHECK_VALUE(matrix.block > 0 && matrix.block % 2 == 0 && matrix.nested_block > 0,
                    "dequantize_few_bits: blocks must be an even number, got ", matrix.block);
  const int64_t count = matrix.rows * matrix.columns;
  TORCH_CHECK_VALUE(count >= 0 && count % 2 == 0, "dequantize_few_bits: a weight [", matrix.rows,
                    ", ", matrix.columns, "] has an odd number of elements, and two make a byte");
  TORCH_CHECK_VALUE(matrix.packed.defined() && matrix.packed.scalar_type() == at::kByte,
                    "dequantize_few_bits: the packed weight must be uint8");
  CheckTensor("the packed weight", matrix.packed, matrix, count / 2);
  const int64_t blocks = BlocksOf(count, matrix.block);
  CheckTensor("absmax", matrix.absmax, matrix, blocks);
  if (!matrix.nested_absmax.defined()) {
    TORCH_CHECK_VALUE(AsFloat(matrix.absmax).scalar_type() == at::kFloat,
                      "dequantize_few_bits: absmax must be float32, got ",
                      matrix.absmax.scalar_type());
    return;
  }
  TORCH_CHECK_VALUE(matrix.absmax.scalar_type() == at::kByte,
                    "dequantize_few_bits: absmax must be uint8 with nested_absmax, got ",
                    matrix.absmax.scalar_type());
  CheckTensor("nested_absmax", matrix.nested_absmax, matrix, BlocksOf(blocks, matrix.nested_block));
  CheckTensor("nested_map", matrix.nested_map, matrix, 256);
  TORCH_CHECK_VALUE(AsFloat(matrix.nested_absmax).scalar_type() == at::kFloat &&
                        AsFloat(matrix.nested_map).scalar_type() == at::kFloat,
                    "dequantize_few_bits: nested_absmax and nested_map must be float32, got ",
                    matrix.nested_absmax.scalar_type(), " and ", matrix.nested_map.scalar_type());
}

// Returns the factors of the blocks, float32: their largest magnitudes, for bytes divided by 127.
at::Tensor Magnitudes(const FewBits& matrix) {
  if (IsInt8(matrix)) return AsFloat(matrix.absmax).view(-1) * (1.0 / 127);
  if (!matrix.nested_absmax.defined()) return AsFloat(matrix.absmax);
  const int64_t blocks = matrix.absmax.numel();
  const at::Tensor factors = AsFloat(matrix.nested_absmax)
                                 .repeat_interleave(std::min(matrix.nested_block, blocks))
                                 .narrow(0, 0, blocks);
  return AsFloat(matrix.nested_map).index_select(0, matrix.absmax.view(-1).to(at::kInt)) * factors +
         matrix.offset;
}

// --- CPUs

BlocksLoop LoopOf(const FewBits& matrix, at::ScalarType dtype) {
  static const FewBitsKernels& kernels = LOCKSTEP_CHOSEN_COMPILATION(kFewBitsKernels);
  if (IsInt8(matrix)) {
    if (dtype == at::kFloat) return kernels.int8_to_float;
    return dtype == at::kBFloat16 ? kernels.int8_to_bfloat16 : kernels.int8_to_half;
  }
  if (dtype == at::kFloat) return kernels.to_float;
  return dtype == at::kBFloat16 ? kernels.to_bfloat16 : kernels.to_half;
}

at::Tensor OnCpu(const FewBits& matrix, at::ScalarType dtype) {
  const at::Tensor magnitudes = Magnitudes(matrix).contiguous();
  at::Tensor result =
      at::empty({matrix.rows, matrix.columns}, matrix.packed.options().dtype(dtype));
  const int64_t numbers_of_block = IsInt8(matrix) ? matrix.columns : matrix.block;
  const Blocks blocks = {.packed = static_cast<const uint8_t*>(matrix.packed.const_data_ptr()),
                         .magnitudes = magnitudes.const_data_ptr<float>(),
                         .table = TableOf(matrix).data(),
                         .bytes = matrix.packed.numel(),
                         .bytes_of_block = IsInt8(matrix) ? matrix.columns : matrix.block / 2,
                         .out = result.mutable_data_ptr()};
  const BlocksLoop loop = LoopOf(matrix, dtype);
  ParallelFor(magnitudes.numel(),
              std::max<int64_t>(1, 32768 / std::max<int64_t>(1, numbers_of_block)),
              [&](int64_t begin, int64_t end) { loop(blocks, begin, end); });
  return result;
}

// The table on the weight's device. It is copied there once: that copy waits for the device, and a
// graph cannot record it.
at::Tensor TableOn(const FewBits& matrix) {
  static std::mutex mutex;
  static auto* const tables = new std::map<std::pair<FewBitsType, std::string>, at::Tensor>();
  const std::lock_guard<std::mutex> lock(mutex);
  at::Tensor& table = (*tables)[{matrix.type, matrix.packed.device().str()}];
  if (!table.defined()) {
    const c10::InferenceMode no_inference(false);
    Table values = TableOf(matrix);
    table = at::from_blob(values.data(), {kValues}, at::kFloat).clone().to(matrix.packed.device());
  }
  return table;
}

}  // namespace

at::Tensor FactorsOfBlocks(const FewBits& matrix) {
  Check(matrix, at::kFloat);
  return Magnitudes(matrix).contiguous();
}

at::Tensor Dequantize(const FewBits& matrix, at::ScalarType dtype) {
  if (!matrix.packed.is_cpu()) return DequantizeByOperators(matrix, dtype);
  Check(matrix, dtype);
  return OnCpu(matrix, dtype);
}

at::Tensor DequantizeByOperators(const FewBits& matrix, at::ScalarType dtype) {
  Check(matrix, dtype);
  const at::Tensor magnitudes = Magnitudes(matrix);
  if (IsInt8(matrix)) {
    const at::Tensor numbers = matrix.packed.view({matrix.rows, matrix.columns}).to(at::kFloat);
    return (numbers * magnitudes.unsqueeze(1)).to(dtype);
  }
  const at::Tensor packed = matrix.packed.view(-1);
  const at::Tensor table = TableOn(matrix);
  const at::Tensor codes =
      at::stack({at::bitwise_right_shift(packed, 4), at::bitwise_and(packed, 15)}, -1);
  at::Tensor numbers = table.index_select(0, codes.view(-1).to(at::kInt));
  if (numbers.numel() % matrix.block == 0) {
    numbers.view({-1, matrix.block}).mul_(magnitudes.unsqueeze(1));
  } else {
    numbers.mul_(magnitudes.repeat_interleave(std::min(matrix.block, numbers.numel()))
                     .narrow(0, 0, numbers.numel()));
  }
  return numbers.to(dtype).view({matrix.rows, matrix.columns});
}

}  // namespace lockstep::kernels
