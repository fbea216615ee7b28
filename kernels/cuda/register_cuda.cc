// Tells the operators of the kernels for GPUs. They find them through the dispatcher, because the
// kernels may be in a library that is loaded later (liblockstep_cuda.so).

#include "kernels/cuda/rows_cuda.h"
#include "torch/library.h"

namespace lockstep::kernels {
namespace {

int64_t Address() { return reinterpret_cast<int64_t>(&kRowKernelsOfCuda); }

TORCH_LIBRARY_FRAGMENT(lockstep, library) { library.def("row_kernels_of_cuda() -> int", Address); }

}  // namespace
}  // namespace lockstep::kernels
