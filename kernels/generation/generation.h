// The loops of generation over rows of memory, compiled once for each instruction set of the CPU: a
// linear layer of few rows, and the attention of new tokens. GPUs have none. As in kernels/rows.h,
// the operators (linear.cc, cached_attention.cc, new_tokens.cc) check the tensors. Strides count
// elements. Pointers are to `dtype`, those to Acc to float64 if dtype is float64, else to float32.

#ifndef LOCKSTEP_KERNELS_GENERATION_GENERATION_H_
#define LOCKSTEP_KERNELS_GENERATION_GENERATION_H_

#include <cstdint>

#include "c10/core/ScalarType.h"

namespace lockstep::kernels {

// y = x W^T + bias, or with `residual` that sum rounded, plus the residual. x has few rows. A range
// of it counts outputs, the rows of the weight.
struct LinearRows {
  at::ScalarType dtype;
  int64_t rows;
  int64_t size;        // of a row of x and of the weight; at least 1
  int64_t outputs;     // rows of the weight
  const void* x;       // Acc, contiguous
  const void* weight;  // of linear_int8: int8
  int64_t weight_stride;
  const float* scales;   // of linear_int8: [outputs], the factors of the sums. Else nullptr
  const void* bias;      // [outputs], or nullptr
  const void* residual;  // as y, or nullptr
  void* y;               // contiguous [rows, outputs]
};

// Returns whether LinearRows is faster than a product of matrices: see docs/BENCHMARKS.md. To add
// up the lanes of a result costs as much as some numbers of the weight do.
inline constexpr bool IsForLinearRows(int64_t rows, int64_t size) {
  return 0 < rows && rows <= 8 && size >= 32 * rows;
}

// Attention of one new token of each sequence to the columns of a cache. A range of it counts pairs
// (sequence, key head). Query heads that share a key head are next to one another.
struct CachedAttentionRows {
  at::ScalarType dtype;
  int64_t kv_heads;
  int64_t group;   // query heads of a key head
  int64_t size;    // of a head; at least 1
  int64_t first;   // the first column that the new token sees
  int64_t column;  // the last one: the new key and value are written to it
  double scale;
  const void* q;  // Acc, contiguous [sequences, kv_heads, group, size]
  const void* k;  // contiguous [sequences, kv_heads, size]
  const void* v;  // likewise
  void* keys;     // [sequences, kv_heads, columns, size]; a head's columns are contiguous
  int64_t keys_sequence_stride, keys_head_stride;
  void* values;  // likewise
  int64_t values_sequence_stride, values_head_stride;
  const void* mask;  // Acc [sequences, columns], or nullptr
  int64_t mask_stride;
  void* weights;  // Acc, room for [sequences, kv_heads, group, column + 1 - first]
  void* y;        // contiguous, as q
};

// Each runs the range [begin, end): of outputs (linear), or of key heads (cached_attention).
struct GenerationKernels {
  void (*linear)(const LinearRows&, int64_t begin, int64_t end);
  void (*linear_int8)(const LinearRows&, int64_t begin, int64_t end);  // in float32
  void (*cached_attention)(const CachedAttentionRows&, int64_t begin, int64_t end);
};

// Returns the kernels of the instruction set that ATen has chosen for itself.
const GenerationKernels& ChosenGenerationKernels();

// The size of a thread's smallest share of a linear layer, in numbers of the weight.
inline constexpr int64_t kWeightGrain = 65536;

}  // namespace lockstep::kernels

#endif  // LOCKSTEP_KERNELS_GENERATION_GENERATION_H_
