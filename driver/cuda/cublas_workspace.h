// The size of cuBLAS's workspace, on which depends whether its products repeat bit by bit.
//
//    const absl::StatusOr<std::string> size =
//        DeterministicWorkspace(/*now=*/std::nullopt, /*gpu_was_used=*/false);
//    // ":4096:8", the value to give CUBLAS_WORKSPACE_CONFIG
//
// With streams of its own, cuBLAS divides a product by the workspace that is free. It repeats a
// product's bits only with a workspace of one of two sizes, and reads the size from the environment
// when a process first uses a GPU. Source: "Results reproducibility" in cuBLAS's documentation.

#ifndef LOCKSTEP_DRIVER_CUDA_CUBLAS_WORKSPACE_H_
#define LOCKSTEP_DRIVER_CUDA_CUBLAS_WORKSPACE_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace lockstep::driver {

inline constexpr char kCublasWorkspace[] = "CUBLAS_WORKSPACE_CONFIG";

// Returns the value that the variable must have. `now`: the value that it has, if any.
// `gpu_was_used`: whether this process may have read it already. Returns an error if another value
// was given, or if it is too late to give one.
absl::StatusOr<std::string> DeterministicWorkspace(const std::optional<std::string>& now,
                                                   bool gpu_was_used);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_CUDA_CUBLAS_WORKSPACE_H_
