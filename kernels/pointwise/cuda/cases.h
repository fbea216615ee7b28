// Programs for tests of sources. Together they have each operator, dtype and access to memory.

#ifndef LOCKSTEP_KERNELS_POINTWISE_CUDA_CASES_H_
#define LOCKSTEP_KERNELS_POINTWISE_CUDA_CASES_H_

#include <string>
#include <vector>

#include "kernels/pointwise/cuda/source.h"
#include "kernels/pointwise/program.h"

namespace lockstep::kernels::pointwise::cuda {

struct Case {
  std::string name;
  Program program;
  Signature signature;  // strided inputs have two dimensions, those of rows one
};

// Always the same list.
std::vector<Case> Cases();

}  // namespace lockstep::kernels::pointwise::cuda

#endif  // LOCKSTEP_KERNELS_POINTWISE_CUDA_CASES_H_
