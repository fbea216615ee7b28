// A CUDA graph: kernels are recorded once and then launched together, any number of times.
//
//    std::unique_ptr<CudaGraph> graph = NewCudaGraph();
//    graph->Begin();   // on a stream that is not the device's default one
//    Step();           // records the kernels without running them; the graph owns their memory
//    const std::string broken = graph->End();  // "": there is a graph
//    graph->Replay();  // the step runs, on the same addresses
//
// Source: at::cuda::CUDAGraph of libtorch 2.11. The default generator draws new numbers in each
// replay. Other threads may use the device during a recording. Thread: one thread.

#ifndef LOCKSTEP_DRIVER_CUDA_CUDA_GRAPH_H_
#define LOCKSTEP_DRIVER_CUDA_CUDA_GRAPH_H_

#include <memory>
#include <string>

namespace lockstep::driver {

// An interface, because the implementation lies in a library that is loaded only if there is a GPU.
class CudaGraph {
 public:
  virtual ~CudaGraph() = default;

  // Starts to record the work of the current stream. Throws c10::Error if that is the default
  // stream or is already recording.
  virtual void Begin() = 0;
  // Ends the recording. Returns "", or why CUDA could not record; the graph cannot be used then,
  // and later work is as if there had been no recording.
  virtual std::string End() = 0;
  // Runs the recorded work on the current stream. Does not wait.
  virtual void Replay() = 0;
};

// Throws c10::Error if there is no GPU, or if CUDA's libraries cannot be loaded.
std::unique_ptr<CudaGraph> NewCudaGraph();

// The exported symbol of liblockstep_cuda.so: a variable of this type.
using MakeCudaGraph = std::unique_ptr<CudaGraph> (*)();
inline constexpr char kMakeCudaGraphSymbol[] = "lockstep_make_cuda_graph";

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_CUDA_CUDA_GRAPH_H_
