// The loops of the cast to float8 over rows of memory, compiled once for each instruction set of
// the CPU. No tensors here: cast.cc checks them, and runs a loop's range on each thread.

#ifndef LOCKSTEP_KERNELS_FLOAT8_CAST_LOOPS_H_
#define LOCKSTEP_KERNELS_FLOAT8_CAST_LOOPS_H_

#include <cstdint>

#include "c10/core/ScalarType.h"

namespace lockstep::kernels::float8 {

// A matrix [rows, columns] whose rows are dense.
struct Matrix {
  at::ScalarType dtype;  // float32, bfloat16 or float16
  int64_t rows, columns;
  int64_t stride;  // elements from one row to the next
  const void* x;
  // The largest magnitude of each row or column, as the bits of dtype without the sign. NaN counts
  // as the largest.
  uint32_t* amax;
  // The scale of a number is at row * scale_row_stride + column * scale_column_stride.
  float* scale;
  int64_t scale_row_stride, scale_column_stride;
  bool is_e5m2;  // else e4m3
  uint8_t* y;    // contiguous
};

// A second copy of a matrix, transposed: [columns, padded], with zeros behind each row.
struct TransposedCopy {
  uint32_t* amax;        // of each column; not used where scale_stride is 0
  float* scale;          // of each column
  int64_t scale_stride;  // 0: the copy has the matrix's one scale
  int64_t padded;
  uint8_t* y;  // contiguous
};

struct CastLoops {
  // Writes the largest magnitude of each row, or of each column, to amax. Ranges count rows, or
  // columns.
  void (*amax_of_rows)(const Matrix&, int64_t begin, int64_t end);
  void (*amax_of_columns)(const Matrix&, int64_t begin, int64_t end);
  // Writes y, the rounded x * scale. The range counts rows.
  void (*cast)(const Matrix&, int64_t begin, int64_t end);
};

// The same on NVIDIA GPUs. Each launches on the current stream of the current device, and does not
// wait.
struct CudaCasts {
  // Finds the magnitudes, and writes scale and y. amax: zeros, one for each scale; not used where
  // rows have scales.
  void (*cast)(const Matrix&, bool power_of_2);
  // The same, and writes the transposed copy as well. One pass over x finds all magnitudes, and one
  // writes both copies. amax: zeros, for rows too. y of the matrix: null where only the transposed
  // copy is needed.
  void (*cast_transposed)(const Matrix&, const TransposedCopy&, bool power_of_2);
  // Writes the transposed bytes of a contiguous matrix, and zeros behind each row up to `padded`.
  //   from: [rows, columns]; to: [columns, padded].
  void (*transpose)(const uint8_t* from, int64_t rows, int64_t columns, int64_t padded,
                    uint8_t* to);
};

}  // namespace lockstep::kernels::float8

#endif  // LOCKSTEP_KERNELS_FLOAT8_CAST_LOOPS_H_
