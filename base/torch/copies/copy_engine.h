// The streams, events and memory of a device, as the copies to and from host memory use them.
//
//    CopyEngine& engine = ...;                     // of the tensor's device
//    const c10::Stream copies = engine.Copies(device);
//    engine.MakeWait(copies, engine.Record(engine.Current(device)));   // after x is computed
//    engine.Copy(host, x, copies);
//    engine.AlsoUsedBy(x.storage(), copies);       // x may be freed before it is copied
//    EventPointer copied = engine.Record(copies);
//
// Why an interface: the order of work on streams decides whether a tensor is right, and a test on a
// CPU cannot show that order. A test's engine records each call and tries all orders in which
// streams may run (recording_engine.h).
//
// The rules that every user keeps:
//
//    - Memory belongs to the stream on which it was allocated. Once the memory is freed, that
//      stream may write to it at once. It does not wait for other streams.
//    - Another stream that uses the memory calls AlsoUsedBy, or makes the owner wait for it.
//    - Work of two streams has an order only if one of them waits for an event of the other.
//
// Thread-safe.

#ifndef LOCKSTEP_BASE_TORCH_COPIES_COPY_ENGINE_H_
#define LOCKSTEP_BASE_TORCH_COPIES_COPY_ENGINE_H_

#include <cstdint>
#include <memory>

#include "ATen/core/TensorBody.h"
#include "base/host_memory.h"
#include "c10/core/Device.h"
#include "c10/core/Storage.h"
#include "c10/core/Stream.h"

namespace lockstep::base {

// A point in the work of a stream.
class CopyEvent {
 public:
  virtual ~CopyEvent() = default;
  // Returns whether the stream has reached this point. Does not wait.
  virtual bool IsFinished() const = 0;
  // Returns once the stream has reached this point.
  virtual void Wait() const = 0;
};
using EventPointer = std::shared_ptr<const CopyEvent>;  // null: nothing to wait for

class CopyEngine {
 public:
  virtual ~CopyEngine() = default;

  // Return the stream on which the calling thread computes, and the stream for its copies.
  virtual c10::Stream Current(at::Device device) = 0;
  virtual c10::Stream Copies(at::Device device) = 0;

  // Returns an event after all work that `stream` has been given so far.
  virtual EventPointer Record(c10::Stream stream) = 0;
  // Makes later work of `stream` wait for the event. The caller does not wait.
  virtual void MakeWait(c10::Stream stream, const EventPointer& event) = 0;

  // Allocates memory that belongs to the current stream. Throws c10::Error if the device has too
  // little memory. The storage frees it.
  virtual c10::Storage Allocate(at::Device device, int64_t bytes) = 0;
  // Delays the reuse of the memory, once it is freed, until `stream` has done the work that it has
  // by then. PyTorch calls this record_stream.
  virtual void AlsoUsedBy(const c10::Storage& storage, c10::Stream stream) = 0;

  // Gives `stream` a copy between a tensor on the device and a tensor in host memory.
  virtual void Copy(const at::Tensor& to, const at::Tensor& from, c10::Stream stream) = 0;

  // Copies between two tensors in host memory, and casts. Done when it returns.
  virtual void CopyOnHost(const at::Tensor& to, const at::Tensor& from);

  // Returns the source of host memory for these copies.
  virtual HostMemory host_memory() = 0;
};

// Returns the engine for the CPU: each call is done when it returns.
std::shared_ptr<CopyEngine> PlainCopies();
// Returns the engine for an accelerator: copies on streams of their own, to and from page-locked
// memory.
std::shared_ptr<CopyEngine> AcceleratorCopies();

}  // namespace lockstep::base

#endif  // LOCKSTEP_BASE_TORCH_COPIES_COPY_ENGINE_H_
