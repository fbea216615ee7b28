// A copy engine for tests: four streams that exist on paper only.
//
//   RecordingEngine engine;
//   engine.Compute({}, {x});                       // a kernel of the current stream that writes x
//   auto offload = HostOffload::New({.engine = engine.Pointer()});
//   ...
//   EXPECT_EQ(engine.Problems(), std::vector<std::string>());
//
// Memory is the CPU's and work is done at once, so that values are right whatever the order. The
// engine writes down each operation, on two streams that compute and two that copy, and what it
// waits for. Problems() then runs these lists in every order that streams may take, and names each
// pair of operations that touch the same elements and whose order is open: use before ready, and
// freed or overwritten while in use.
//
// What is freed counts as written to by the stream that owns it: that is what an allocator does
// with it next, at the earliest.
//
// Not thread-safe.

#ifndef LOCKSTEP_CHECKPOINT_OFFLOAD_RECORDING_ENGINE_H_
#define LOCKSTEP_CHECKPOINT_OFFLOAD_RECORDING_ENGINE_H_

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "checkpoint/offload/copy_engine.h"

namespace lockstep::checkpoint {

class RecordingEngine : public CopyEngine, public std::enable_shared_from_this<RecordingEngine> {
 public:
  static constexpr int kStreams = 4;  // 0 and 1 compute, 2 and 3 copy for them

  // Whether an event that the host asks about is finished. Yes, and the host knows: what it gives
  // to streams from then on comes after.
  std::function<bool()> is_finished = [] { return false; };
  // Whether the device has memory.
  std::function<bool()> has_memory = [] { return true; };
  // Whether the device has failed: every call throws.
  bool has_failed = false;

  // The stream that computes from now on, 0 or 1, as on another thread.
  void SetCurrent(int stream) { current_ = stream; }

  // A new tensor of float64 that is the current stream's, and written by it.
  at::Tensor Make(at::IntArrayRef sizes);
  // Gives the current stream a kernel.
  void Compute(const std::vector<at::Tensor>& reads, const std::vector<at::Tensor>& writes);

  c10::Stream Current(at::Device device) override;
  c10::Stream Copies(at::Device device) override;
  EventPointer Record(c10::Stream stream) override;
  void Block(c10::Stream stream, const EventPointer& event) override;
  c10::Storage Allocate(at::Device device, int64_t bytes) override;
  void AlsoUsedBy(const c10::Storage& storage, c10::Stream stream) override;
  void Copy(const at::Tensor& to, const at::Tensor& from, c10::Stream stream) override;
  HostMemory host_memory() override;

  // Sentences, each once: "2: copy #1 to the host may run before 0: compute #1".
  std::vector<std::string> Problems() const;
  int64_t num_operations() const { return static_cast<int64_t>(operations_.size()); }

 private:
  class Event;
  using Positions = std::array<size_t, kStreams>;  // of each stream, how many operations are done

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
    Positions after;  // comes after so many of each stream
  };
  struct Buffer {
    int64_t id;
    int owner;
    std::set<int> users;
  };

  void CheckDevice() const;
  Operation& Add(int stream, const std::string& text, std::vector<Access> accesses = {});
  Access AccessTo(const at::Tensor& tensor, bool is_write) const;
  std::string NameOf(const at::Tensor& tensor) const;
  void Free(void* data);

  int current_ = 0;
  int64_t num_buffers_ = 0;
  std::map<const void*, Buffer> buffers_;  // that are allocated, by address
  std::vector<Operation> operations_;      // in the order in which the host gave them
  Positions queued_{};                     // to each stream
  Positions known_{};                      // to be done, by the host
};

}  // namespace lockstep::checkpoint

#endif  // LOCKSTEP_CHECKPOINT_OFFLOAD_RECORDING_ENGINE_H_
