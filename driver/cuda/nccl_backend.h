// NCCL's backend, which liblockstep_cuda.so exports: see cuda_library.h.

#ifndef LOCKSTEP_DRIVER_CUDA_NCCL_BACKEND_H_
#define LOCKSTEP_DRIVER_CUDA_NCCL_BACKEND_H_

#include <chrono>

#include "c10/util/intrusive_ptr.h"
#include "torch/csrc/distributed/c10d/Backend.hpp"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace lockstep::driver {

// Makes an NCCL backend for this rank's current device. Collective over the group.
using NewNcclBackend =
    c10::intrusive_ptr<c10d::Backend> (*)(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                          int size, std::chrono::milliseconds timeout);

// The exported symbol: a variable of type NewNcclBackend.
inline constexpr char kNewNcclBackendSymbol[] = "lockstep_new_nccl_backend";

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_CUDA_NCCL_BACKEND_H_
