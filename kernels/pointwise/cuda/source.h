// The CUDA C++ source of a program without reductions: one kernel, whose threads compute an element
// in each turn of a loop. It includes no header, so NVRTC compiles it with nothing else installed.
// The functions that it needs of CUDA are few, so that g++ compiles it too: source_test runs it on
// a CPU, and compares it with ATen.
//
//    const Tensors tensors = {.inputs = {{at::kFloat, Access::kFlat}}, .results = {at::kFloat}};
//    const std::string source = SourceOf(program, tensors);
//
// No tensors here, and no CUDA.

#ifndef LOCKSTEP_KERNELS_POINTWISE_CUDA_SOURCE_H_
#define LOCKSTEP_KERNELS_POINTWISE_CUDA_SOURCE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "c10/core/ScalarType.h"
#include "c10/util/ArrayRef.h"
#include "kernels/pointwise/interpreter.h"
#include "kernels/pointwise/program.h"

namespace lockstep::kernels::pointwise::cuda {

inline constexpr const char* kKernelName = "lockstep_pointwise";

// The properties of a call that its source depends on.
struct Signature {
  struct Input {
    at::ScalarType dtype;
    Access access;
  };
  std::vector<Input> inputs;
  std::vector<at::ScalarType> results;
  int64_t num_dims = 0;   // of strided inputs
  bool is_large = false;  // 2^31 elements or more: indices have 64 bits
};

// Returns the source. The kernel's one parameter is a struct, which ArgumentsOf fills.
std::string SourceOf(const Program& program, const Signature& signature,
                     const std::string& name = kKernelName);

// Returns the bytes of the kernel's parameter, as words. `sizes` has signature.num_dims numbers.
std::vector<int64_t> ArgumentsOf(const Signature& signature, int64_t num_elements,
                                 at::IntArrayRef sizes, at::ArrayRef<InputMemory> inputs,
                                 at::ArrayRef<ResultMemory> results, at::ArrayRef<double> numbers);

}  // namespace lockstep::kernels::pointwise::cuda

#endif  // LOCKSTEP_KERNELS_POINTWISE_CUDA_SOURCE_H_
