#include "driver/cuda/nccl_backend.h"

#include "torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp"

namespace lockstep::driver {
namespace {

c10::intrusive_ptr<c10d::Backend> NewBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                             int size, std::chrono::milliseconds timeout) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
}

// The copy that NCCL's own watchdog keeps.
c10::intrusive_ptr<c10d::Work> WorkAlone(const c10::intrusive_ptr<c10d::Work>& work) {
  const auto* of_nccl = dynamic_cast<const c10d::ProcessGroupNCCL::WorkNCCL*>(work.get());
  if (of_nccl == nullptr) return work;
  return c10::make_intrusive<c10d::ProcessGroupNCCL::WorkNCCL>(*of_nccl);
}

}  // namespace
}  // namespace lockstep::driver

extern "C" __attribute__((visibility("default")))
lockstep::driver::NewNcclBackend lockstep_new_nccl_backend;
lockstep::driver::NewNcclBackend lockstep_new_nccl_backend = &lockstep::driver::NewBackend;

extern "C" __attribute__((visibility("default")))
lockstep::driver::NcclWorkAlone lockstep_nccl_work_alone;
lockstep::driver::NcclWorkAlone lockstep_nccl_work_alone = &lockstep::driver::WorkAlone;
