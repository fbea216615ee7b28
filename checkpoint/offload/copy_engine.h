// The device as copies to and from host memory see it: streams, events, memory.
//
//   CopyEngine& engine = ...;                     // of the tensor's device
//   const c10::Stream copies = engine.Copies(device);
//   engine.Block(copies, engine.Record(engine.Current(device)));   // after what computes x
//   engine.Copy(host, x, copies);
//   EventPointer copied = engine.Record(copies);
//
// Why an interface: the order of work on streams decides whether a tensor is right, and no CPU
// test shows that order. A test's engine writes down what is asked of it and tries all orders in
// which streams may run (recording_engine.h).
//
// The rules that every user keeps:
// - Memory belongs to the stream on which it was allocated. Once it is freed, that stream may
//   write to it at once, and no other stream is waited for.
// - Another stream that uses the memory says so (AlsoUsedBy), or has the owner wait for it.
// - Work of two streams has an order only where one of them waits for an event of the other.
//
// Thread-safe.

#ifndef LOCKSTEP_CHECKPOINT_OFFLOAD_COPY_ENGINE_H_
#define LOCKSTEP_CHECKPOINT_OFFLOAD_COPY_ENGINE_H_

#include <cstdint>
#include <memory>

#include "ATen/core/TensorBody.h"
#include "c10/core/Device.h"
#include "c10/core/Storage.h"
#include "c10/core/Stream.h"
#include "checkpoint/offload/host_pool.h"

namespace lockstep::checkpoint {

// A point in the work of a stream.
class CopyEvent {
 public:
  virtual ~CopyEvent() = default;
  // Returns whether the stream has come to this point. Does not wait.
  virtual bool IsFinished() const = 0;
};
using EventPointer = std::shared_ptr<const CopyEvent>;  // null: nothing to wait for

class CopyEngine {
 public:
  virtual ~CopyEngine() = default;

  // The stream on which the calling thread computes, and the one for its copies.
  virtual c10::Stream Current(at::Device device) = 0;
  virtual c10::Stream Copies(at::Device device) = 0;

  // Returns the point that `stream` has been given work up to.
  virtual EventPointer Record(c10::Stream stream) = 0;
  // Makes later work of `stream` wait for the event. The caller does not wait.
  virtual void Block(c10::Stream stream, const EventPointer& event) = 0;

  // Allocates memory that belongs to the current stream. Throws c10::Error where there is none.
  // The storage frees it.
  virtual c10::Storage Allocate(at::Device device, int64_t bytes) = 0;
  // Keeps the memory, once it is freed, until the work that `stream` has then is done.
  virtual void AlsoUsedBy(const c10::Storage& storage, c10::Stream stream) = 0;

  // Gives `stream` the copy between a tensor on the device and one in host memory.
  virtual void Copy(const at::Tensor& to, const at::Tensor& from, c10::Stream stream) = 0;

  // Returns where host memory for these copies comes from.
  virtual HostMemory host_memory() = 0;
};

// On the CPU: everything is done when it is asked for.
std::shared_ptr<CopyEngine> PlainCopies();
// On an accelerator, on its own streams, with page-locked memory.
std::shared_ptr<CopyEngine> AcceleratorCopies();

}  // namespace lockstep::checkpoint

#endif  // LOCKSTEP_CHECKPOINT_OFFLOAD_COPY_ENGINE_H_
