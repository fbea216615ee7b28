// The part of cuda_graph.h that links CUDA: in liblockstep_cuda.so.

#include <memory>
#include <string>

#include "ATen/cuda/CUDAGeneratorImpl.h"
#include "ATen/cuda/CUDAGraph.h"
#include "c10/cuda/CUDACachingAllocator.h"
#include "c10/cuda/CUDAException.h"
#include "c10/util/Exception.h"
#include "driver/cuda/capture.h"
#include "driver/cuda/cuda_graph.h"

namespace lockstep::driver {
namespace {

// Another thread may do what a capture forbids to its own: a worker of a loader allocates pinned
// memory meanwhile.
constexpr cudaStreamCaptureMode kMode = cudaStreamCaptureModeThreadLocal;

// libtorch warns of a graph without kernels, as the one that ends a broken recording is.
class NoWarnings : public c10::WarningHandler {
  void process(const c10::Warning& /*warning*/) override {}
};

class AtenCapture : public at::cuda::CUDAGraph, public CaptureCalls {
 public:
  void Begin() override { capture_begin({0, 0}, kMode); }

  void End() override {
    if (!is_empty_) return capture_end();
    NoWarnings none;
    const c10::WarningUtils::WarningHandlerGuard guard(&none);
    capture_end();
  }

  void BeginEmpty() override {
    (void)cudaGetLastError();  // that of the broken capture
    is_empty_ = true;
    C10_CUDA_CHECK(cudaStreamBeginCapture(capture_stream_, kMode));
  }

  void Reset() override { reset(); }
  void Abandon() override { AbandonBy(*this); }

 private:
  // From libtorch 2.14 on, reset() itself closes and releases a pool.
  template <typename Self>
  static void AbandonBy(Self& self) {
    if constexpr (!requires { self.capturing_to_pool_; }) {
      if (self.mempool_id_ == c10::MempoolId_t{0, 0}) return;  // no pool was made
      try {
        c10::cuda::CUDACachingAllocator::endAllocateToPool(self.capture_dev_, self.mempool_id_);
      } catch (const c10::Error&) {  // it is closed
      }
      if (!self.capture_ended_) {
        c10::cuda::CUDACachingAllocator::releasePool(self.capture_dev_, self.mempool_id_);
      }
    }
    for (auto& [state, increment] : self.captured_generator_states_) {
      if constexpr (requires { state->capturing_; }) state->capturing_ = false;
    }
  }

  bool is_empty_ = false;
};

class AtenGraph : public CudaGraph {
 public:
  void Begin() override { capture_.Begin(); }
  std::string End() override { return capture_.End(); }
  void Replay() override { calls_.replay(); }

 private:
  AtenCapture calls_;
  Capture capture_{&calls_};
};

std::unique_ptr<CudaGraph> Make() { return std::make_unique<AtenGraph>(); }

}  // namespace
}  // namespace lockstep::driver

extern "C" __attribute__((visibility("default")))
lockstep::driver::MakeCudaGraph lockstep_make_cuda_graph;
lockstep::driver::MakeCudaGraph lockstep_make_cuda_graph = &lockstep::driver::Make;
