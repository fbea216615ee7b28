// The order of calls that records a CUDA graph, and that ends what libtorch leaves open.
//
// The failure this prevents: a recording that CUDA invalidates. CUDAGraph::capture_end stops at
// CUDA's error, before it closes the allocator's pool and lets the generators stop counting. From
// then on the allocator frees no block that another stream used, and a dropout is an error.
//
//    Capture capture(&calls);
//    capture.Begin();
//    Step();
//    const std::string broken = capture.End();  // "" or why the graph cannot be used
//
// Mend: capture_end can go its whole way with another capture, one of nothing. It is begun on the
// same stream after the error. Source: CUDAGraph.cpp of libtorch 2.11 to 2.14. Thread: one thread.

#ifndef LOCKSTEP_DRIVER_CUDA_CAPTURE_H_
#define LOCKSTEP_DRIVER_CUDA_CAPTURE_H_

#include <string>

namespace lockstep::driver {

// The calls of libtorch and CUDA that a capture makes. An interface: a test can fail each call.
class CaptureCalls {
 public:
  virtual ~CaptureCalls() = default;

  // CUDAGraph::capture_begin: opens a pool, then begins the capture. Throws c10::Error.
  virtual void Begin() = 0;
  // CUDAGraph::capture_end: ends the capture, closes the pool and lets the generators stop
  // counting; then makes the graph. Throws c10::Error.
  virtual void End() = 0;
  // Begins a capture of nothing on the stream, without a pool. Throws c10::Error.
  virtual void BeginEmpty() = 0;
  // CUDAGraph::reset: forgets the graph and releases its pool.
  virtual void Reset() = 0;
  // Closes and releases the pool and lets the generators stop counting, where that is not done.
  virtual void Abandon() = 0;
};

class Capture {
 public:
  explicit Capture(CaptureCalls* calls) : calls_(calls) {}

  // Throws c10::Error if no recording has begun. No pool is open then.
  void Begin();
  // Returns "", or CUDA's reason why there is no graph. In both cases the pool is closed.
  std::string End();

 private:
  CaptureCalls* calls_;
};

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_CUDA_CAPTURE_H_
