// Tells the operators of the kernels for GPUs. They find them through the dispatcher, because the
// kernels may be in a library that is loaded later (liblockstep_cuda.so).

#include "kernels/cuda/float8_cuda.h"
#include "kernels/cuda/rows_cuda.h"
#include "torch/library.h"

namespace lockstep::kernels {
namespace {

int64_t Address() { return reinterpret_cast<int64_t>(&kRowKernelsOfCuda); }

int64_t AddressOfFloat8() { return reinterpret_cast<int64_t>(&kFloat8CastsOfCuda); }

TORCH_LIBRARY_FRAGMENT(lockstep, library) {
  library.def("row_kernels_of_cuda() -> int", Address);
  library.def("float8_casts_of_cuda() -> int", AddressOfFloat8);
}

}  // namespace
}  // namespace lockstep::kernels
