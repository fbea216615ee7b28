// A copy engine for tests: it records the operations of four imaginary streams and of the host.
//
//    auto engine = std::make_shared<RecordingEngine>();
//    engine->Compute({}, {x});     // a kernel of the current stream writes x
//    auto offload = HostOffload::New({.engine = engine});
//    ...
//    engine->ComputeOnHost({x}, {});   // the caller reads x
//    EXPECT_EQ(engine->Problems(), std::vector<std::string>());
//
// Memory is on the CPU and each operation runs at once, so values are right in any order. The
// engine records each operation, on two streams that compute and two that copy, and the events that
// it waits for. The host is a fifth list: what it does itself comes after all that it knows to be
// done, and what it gives to a stream comes later. Problems() then runs these lists in every order
// that streams may take. It names each pair of operations that touch the same elements in no fixed
// order: use before ready, and freed or overwritten while in use.
//
// Memory that the engine did not allocate is the host's. It is never freed too early here.
//
// Freed memory counts as written to by the stream that owns it: an allocator may reuse it at once.
//
// Not thread-safe.

#ifndef LOCKSTEP_BASE_TORCH_COPIES_RECORDING_ENGINE_H_
#define LOCKSTEP_BASE_TORCH_COPIES_RECORDING_ENGINE_H_

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "base/torch/copies/copy_engine.h"

namespace lockstep::base {

class RecordingEngine : public CopyEngine, public std::enable_shared_from_this<RecordingEngine> {
 public:
  static constexpr int kStreams = 5;  // 0 and 1 compute, 2 and 3 copy for them, 4 is the host

  // Returns whether an event that the host asks about is finished. If so, the host knows it, and
  // all work that it gives to streams later comes after the event.
  std::function<bool()> is_finished = [] { return false; };
  // Returns whether the device has memory.
  std::function<bool()> has_memory = [] { return true; };
  // True if the device has failed: every call throws.
  bool has_failed = false;

  // Sets the stream that computes from now on, 0 or 1, as on another thread.
  void SetCurrent(int stream) { current_ = stream; }

  // Returns a new float64 tensor that the current stream owns and has written.
  at::Tensor Make(at::IntArrayRef sizes);
  // Gives the current stream a kernel.
  void Compute(const std::vector<at::Tensor>& reads, const std::vector<at::Tensor>& writes);

  // Lets the host read and write tensors itself, now.
  void ComputeOnHost(const std::vector<at::Tensor>& reads, const std::vector<at::Tensor>& writes);

  c10::Stream Current(at::Device device) override;
  c10::Stream Copies(at::Device device) override;
  EventPointer Record(c10::Stream stream) override;
  void MakeWait(c10::Stream stream, const EventPointer& event) override;
  c10::Storage Allocate(at::Device device, int64_t bytes) override;
  void AlsoUsedBy(const c10::Storage& storage, c10::Stream stream) override;
  void Copy(const at::Tensor& to, const at::Tensor& from, c10::Stream stream) override;
  void CopyOnHost(const at::Tensor& to, const at::Tensor& from) override;
  HostMemory host_memory() override;

  // Returns the problems as sentences, each once: "2: copy #1 to the host may run before 0: compute
  // #1".
  std::vector<std::string> Problems() const;
  int64_t num_operations() const { return static_cast<int64_t>(operations_.size()); }

 private:
  class Event;
  using Positions = std::array<size_t, kStreams>;  // for each stream, the number of operations done

  struct Access {
    const void* memory;  // of the host; null: of the device
    int64_t buffer;      // of the device
    std::set<int64_t> bytes;
    bool is_everything;  // of the buffer
    bool is_write;
    bool Conflicts(const Access& other) const;
  };
  struct Operation {
    int stream;
    size_t position;  // on its stream
    std::string text;
    std::vector<Access> accesses;
    Positions after;  // runs after this many operations of each stream
  };
  struct Buffer {
    int64_t id;
    int owner;
    std::set<int> users;
  };

  void CheckDevice() const;
  void Compute(int stream, const std::vector<at::Tensor>& reads,
               const std::vector<at::Tensor>& writes);
  Operation& Add(int stream, const std::string& text, std::vector<Access> accesses = {});
  Access AccessTo(const at::Tensor& tensor, bool is_write) const;
  std::string NameOf(const at::Tensor& tensor) const;
  void Free(void* data);

  int current_ = 0;
  int64_t num_buffers_ = 0;
  std::map<const void*, Buffer> buffers_;  // the allocated ones, by address
  std::vector<Operation> operations_;      // in the order in which the host gave them
  Positions queued_{};                     // given to each stream
  Positions known_{};                      // known to be done by the host
};

}  // namespace lockstep::base

#endif  // LOCKSTEP_BASE_TORCH_COPIES_RECORDING_ENGINE_H_
