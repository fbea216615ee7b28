// Runs the steps of a fused function over a range of elements, a block of numbers at a time. A
// block is loaded from memory once, all steps run over it in the first cache, and the results are
// stored. interpreter_cpu.cc is compiled once for each instruction set. No tensors here.

#ifndef LOCKSTEP_KERNELS_POINTWISE_INTERPRETER_H_
#define LOCKSTEP_KERNELS_POINTWISE_INTERPRETER_H_

#include <array>
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
  const int64_t* strides;  // num_dims of them, in elements
};

struct ResultMemory {
  void* data;  // contiguous
  at::ScalarType dtype;
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
  const int64_t* sizes;
  int64_t num_dims;  // at least 1 if an input is strided
};

inline int64_t NumSlots(const Execution& run) {
  return run.num_inputs + run.num_uniforms + run.num_results + run.num_temporaries;
}

// Both compute elements begin to end - 1. `scratch` has NumSlots * kSlotNumbers numbers, aligned to
// 64 bytes. An element has the same bits whatever the range is.
struct Interpreters {
  void (*narrow)(const Execution& run, int64_t begin, int64_t end, float* scratch);
  void (*wide)(const Execution& run, int64_t begin, int64_t end, double* scratch);
};

// Those of this machine. ATEN_CPU_CAPABILITY, ATen's own variable, overrides the choice.
const Interpreters& ChosenInterpreters();

}  // namespace lockstep::kernels::pointwise

#endif  // LOCKSTEP_KERNELS_POINTWISE_INTERPRETER_H_
