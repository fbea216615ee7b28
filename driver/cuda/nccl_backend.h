// NCCL's backend, which liblockstep_cuda.so exports: see cuda_library.h.

#ifndef LOCKSTEP_DRIVER_CUDA_NCCL_BACKEND_H_
#define LOCKSTEP_DRIVER_CUDA_NCCL_BACKEND_H_

#include <chrono>

#include "c10/util/intrusive_ptr.h"
#include "torch/csrc/distributed/c10d/Backend.hpp"
#include "torch/csrc/distributed/c10d/Store.hpp"
#include "torch/csrc/distributed/c10d/Work.hpp"

namespace lockstep::driver {

// Makes an NCCL backend for this rank's current device. Collective over the group.
using NewNcclBackend =
    c10::intrusive_ptr<c10d::Backend> (*)(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                          int size, std::chrono::milliseconds timeout);

// Returns a work that ends when `work` ends, one of NCCL's, and does not hold its results. A report
// can keep it until the GPU is done without keeping the memory of the results.
using NcclWorkAlone =
    c10::intrusive_ptr<c10d::Work> (*)(const c10::intrusive_ptr<c10d::Work>& work);

// The exported symbols: variables of these types.
inline constexpr char kNewNcclBackendSymbol[] = "lockstep_new_nccl_backend";
inline constexpr char kNcclWorkAloneSymbol[] = "lockstep_nccl_work_alone";

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_CUDA_NCCL_BACKEND_H_
