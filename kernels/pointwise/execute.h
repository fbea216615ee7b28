// Runs a program on the CPU over tensors: shares the elements, or the rows, among threads. Private
// to pointwise.cc, which has checked the arguments.

#ifndef LOCKSTEP_KERNELS_POINTWISE_EXECUTE_H_
#define LOCKSTEP_KERNELS_POINTWISE_EXECUTE_H_

#include <cstdint>

#include "ATen/core/TensorBody.h"
#include "kernels/pointwise/code.h"
#include "kernels/pointwise/program.h"
#include "kernels/pointwise/row_code.h"

namespace lockstep::kernels::pointwise {

struct Executable {
  Program program;
  bool needs_rows = false;
  Code code;         // unless it needs rows
  RowCode row_code;  // if it does
};

// Throws c10::ValueError if the program needs more than kMostSlots.
Executable Prepare(const Program& program);

// Writes the results, which are contiguous. Inputs of rows are broadcast to ShapeOfRows(shape), the
// others to `shape`.
void Execute(const Executable& executable, at::TensorList inputs, at::ArrayRef<double> numbers,
             at::IntArrayRef shape, at::TensorList results);

}  // namespace lockstep::kernels::pointwise

#endif  // LOCKSTEP_KERNELS_POINTWISE_EXECUTE_H_
