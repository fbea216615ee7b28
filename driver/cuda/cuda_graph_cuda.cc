// The part of cuda_graph.h that links CUDA: in liblockstep_cuda.so.

#include <memory>

#include "ATen/cuda/CUDAGraph.h"
#include "driver/cuda/cuda_graph.h"

namespace lockstep::driver {
namespace {

class AtenGraph : public CudaGraph {
 public:
  void Begin() override { graph_.capture_begin(); }
  void End() override { graph_.capture_end(); }
  void Replay() override { graph_.replay(); }

 private:
  at::cuda::CUDAGraph graph_;
};

std::unique_ptr<CudaGraph> Make() { return std::make_unique<AtenGraph>(); }

}  // namespace
}  // namespace lockstep::driver

extern "C" __attribute__((visibility("default")))
lockstep::driver::MakeCudaGraph lockstep_make_cuda_graph;
lockstep::driver::MakeCudaGraph lockstep_make_cuda_graph = &lockstep::driver::Make;
