// A CUDA graph: kernels recorded once, launched all at once as often as one likes.
//
//   std::unique_ptr<CudaGraph> graph = NewCudaGraph();
//   graph->Begin();   // on a stream that is not the device's default one
//   Step();           // nothing runs: what would is recorded; its memory belongs to the graph
//   graph->End();
//   graph->Replay();  // the step runs, on the same addresses
//
// Source: at::cuda::CUDAGraph of libtorch 2.11, which also has the default generator draw anew in
// each replay. Thread: one thread.

#ifndef LOCKSTEP_DRIVER_CUDA_CUDA_GRAPH_H_
#define LOCKSTEP_DRIVER_CUDA_CUDA_GRAPH_H_

#include <memory>

namespace lockstep::driver {

// An interface, since what implements it lies in a library that is loaded only where there is a
// GPU.
class CudaGraph {
 public:
  virtual ~CudaGraph() = default;

  // Records from here on what the current stream is given. Throws c10::Error where that is the
  // default stream, or is recording already.
  virtual void Begin() = 0;
  // Throws c10::Error where something between could not be recorded; the graph is then of no use.
  virtual void End() = 0;
  // On the current stream; does not wait.
  virtual void Replay() = 0;
};

// Throws c10::Error where there is no GPU, or CUDA's libraries cannot be loaded.
std::unique_ptr<CudaGraph> NewCudaGraph();

// The exported symbol of liblockstep_cuda.so: a variable of this type.
using MakeCudaGraph = std::unique_ptr<CudaGraph> (*)();
inline constexpr char kMakeCudaGraphSymbol[] = "lockstep_make_cuda_graph";

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_CUDA_CUDA_GRAPH_H_
