// Runs the steps of a fused function over a range of elements, a block of numbers at a time. A
// block is loaded from memory once, all steps run over it in the first cache, and the results are
// stored. interpreter_cpu.cc is compiled once for each instruction set. No tensors here.

#ifndef LOCKSTEP_KERNELS_POINTWISE_INTERPRETER_H_
#define LOCKSTEP_KERNELS_POINTWISE_INTERPRETER_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "c10/core/ScalarType.h"
#include "kernels/pointwise/program.h"

namespace lockstep::kernels::pointwise {

// Numbers of a block. Less, and the choice of the next step costs more than the step; more, and the
// slots leave the first cache.
inline constexpr int64_t kBlock = 512;
// The distance of slots in memory. Whole vectors may be written beyond a block's end. Slots that
// were a power of 2 apart would share lines of the cache.
inline constexpr int64_t kSlotNumbers = kBlock + 64;
inline constexpr int64_t kMostSlots = 256;

struct Step {
  Op op;
  uint16_t to = 0;
  std::array<uint16_t, 3> args = {0, 0, 0};
};

// Where an input's numbers lie.
enum class Access : uint8_t {
  kFlat,     // element i at i
  kUniform,  // all at 0
  kStrided,  // by the position of i in `sizes`
};

struct InputMemory {
  const void* data;
  at::ScalarType dtype;  // float16, bfloat16, float32, float64 or bool
  Access access;
  const int64_t* sizes;    // num_dims of them
  const int64_t* strides;  // likewise, in elements
  int64_t num_dims;        // at least 1 if it is strided
  bool is_row = false;     // has one number for each row
};

struct ResultMemory {
  void* data;  // contiguous
  at::ScalarType dtype;
  bool is_row = false;
};

struct Execution {
  const Step* steps;
  int64_t num_steps;
  const InputMemory* inputs;
  int64_t num_inputs;
  const double* uniforms;
  int64_t num_uniforms;
  const ResultMemory* results;
  int64_t num_results;
  int64_t num_temporaries;
};

inline int64_t NumSlots(const Execution& run) {
  return run.num_inputs + run.num_uniforms + run.num_results + run.num_temporaries;
}

// A part of a function that reduces rows: steps over the numbers of rows, then steps over blocks of
// elements. It ends where a later step needs the result of a reduction of these blocks.
struct Phase {
  int32_t end_of_row_steps, end_of_block_steps;  // begins where the phase before ends
};

// A function that reduces rows; row_code.h has the steps. `kept` of its temporaries are as long as
// a row; they come last.
struct RowExecution {
  Execution run;
  const Phase* phases;
  int64_t num_phases;
  int64_t length;  // of a row
  int64_t num_kept;
};

// Returns the numbers of a slot that holds elements of one phase for another.
inline int64_t KeptNumbers(int64_t length) {
  return length <= kBlock ? kSlotNumbers : (length + 79) / 16 * 16;
}

// Returns the bytes that a thread needs for elements of `size` bytes.
inline size_t ScratchBytes(const Execution& run, size_t size) {
  return static_cast<size_t>(NumSlots(run) * kSlotNumbers) * size;
}
// Numbers of rows are float64, in slots of their own, which come first.
inline size_t ScratchBytes(const RowExecution& rows, size_t size) {
  const int64_t more = rows.num_kept * (KeptNumbers(rows.length) - kSlotNumbers);
  return ScratchBytes(rows.run, sizeof(double)) + ScratchBytes(rows.run, size) +
         static_cast<size_t>(more) * size;
}

// Functions for elements, or rows, begin to end - 1. `scratch` has ScratchBytes, aligned to 64. An
// element has the same bits whatever the range is.
struct Interpreters {
  void (*elements)(const Execution& run, int64_t begin, int64_t end, void* scratch);
  void (*rows)(const RowExecution& rows, int64_t begin, int64_t end, void* scratch);
};

// Returns those of this machine, which compute in float64 if `wide`, else in float32.
// ATEN_CPU_CAPABILITY, ATen's own variable, overrides the choice.
const Interpreters& ChosenInterpreters(bool wide);

}  // namespace lockstep::kernels::pointwise

#endif  // LOCKSTEP_KERNELS_POINTWISE_INTERPRETER_H_
