// The CUDA C++ source of a program: one kernel. Without reductions a thread computes an element in
// each turn of a loop. With them a block of threads computes a row in each turn, in passes that end
// at reductions. It includes no header, so NVRTC compiles it with nothing else installed. The
// functions that it needs of CUDA are few, so that g++ compiles it too: source_test runs it on a
// CPU, and compares it with ATen.
//
//    const Signature signature = SignatureOf(num_elements, memory.inputs(), memory.results());
//    const std::string source = SourceOf(program, signature);
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
    bool is_row = false;  // has one number for each row
  };
  std::vector<Input> inputs;
  std::vector<at::ScalarType> results;
  int64_t num_dims = 0;      // of strided inputs of elements
  int64_t num_row_dims = 0;  // of strided inputs of rows
  bool is_large = false;     // 2^31 elements or more: indices have 64 bits
};

Signature SignatureOf(int64_t num_elements, at::ArrayRef<InputMemory> inputs,
                      at::ArrayRef<ResultMemory> results);

// Returns the source. The kernel's one parameter is a struct, which ArgumentsOf fills. Blocks have
// whole warps of threads, at most 1,024.
std::string SourceOf(const Program& program, const Signature& signature,
                     const std::string& name = kKernelName);

// Returns the bytes of the kernel's parameter, as words. `count` is the number of rows of `length`
// elements if the program needs rows, else the number of elements.
std::vector<int64_t> ArgumentsOf(int64_t count, int64_t length, at::ArrayRef<InputMemory> inputs,
                                 at::ArrayRef<ResultMemory> results, at::ArrayRef<double> numbers);

}  // namespace lockstep::kernels::pointwise::cuda

#endif  // LOCKSTEP_KERNELS_POINTWISE_CUDA_SOURCE_H_
