#include "driver/cuda/cuda_graph.h"

#include "driver/cuda/cuda_library.h"

namespace lockstep::driver {

std::unique_ptr<CudaGraph> NewCudaGraph() {
  return (*static_cast<MakeCudaGraph*>(CudaSymbol(kMakeCudaGraphSymbol)))();
}

}  // namespace lockstep::driver
