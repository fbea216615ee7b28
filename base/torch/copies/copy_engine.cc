#include "base/torch/copies/copy_engine.h"

#include <cstring>
#include <map>

#include "ATen/TensorOperators.h"
#include "base/torch/copies/pinned_memory.h"
#include "c10/core/CPUAllocator.h"
#include "c10/core/Event.h"
#include "c10/core/StreamGuard.h"
#include "c10/core/impl/VirtualGuardImpl.h"

namespace lockstep::base {
namespace {

c10::Storage AllocateWith(c10::Allocator* allocator, int64_t bytes) {
  return c10::Storage(c10::Storage::use_byte_size_t(), bytes, allocator, /*resizable=*/false);
}

class PlainEngine : public CopyEngine {
 public:
  c10::Stream Current(at::Device device) override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream Copies(at::Device device) override { return Current(device); }
  EventPointer Record(c10::Stream) override { return nullptr; }
  void MakeWait(c10::Stream, const EventPointer&) override {}
  c10::Storage Allocate(at::Device, int64_t bytes) override {
    return AllocateWith(c10::GetCPUAllocator(), bytes);
  }
  void AlsoUsedBy(const c10::Storage&, c10::Stream) override {}
  void Copy(const at::Tensor& to, const at::Tensor& from, c10::Stream) override {
    if (to.is_contiguous() && from.is_contiguous()) {
      std::memcpy(to.data_ptr(), from.const_data_ptr(), to.nbytes());
    } else {
      to.copy_(from);
    }
  }
  HostMemory host_memory() override { return PageableMemory(); }
};

class DeviceEvent : public CopyEvent {
 public:
  explicit DeviceEvent(c10::Stream stream) : event_(stream.device_type()) { event_.record(stream); }
  bool IsFinished() const override { return event_.query(); }
  void Wait() const override { event_.synchronize(); }
  void MakeWait(c10::Stream stream) const { event_.block(stream); }

 private:
  c10::Event event_;
};

class AcceleratorEngine : public CopyEngine {
 public:
  c10::Stream Current(at::Device device) override {
    return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  }

  // Returns the stream of this thread and device. Copies in both directions take turns on it.
  c10::Stream Copies(at::Device device) override {
    thread_local std::map<at::Device, c10::Stream, ByIndex> streams;
    const auto found = streams.find(device);
    if (found != streams.end()) return found->second;
    const c10::Stream stream =
        c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
    return streams.emplace(device, stream).first->second;
  }

  EventPointer Record(c10::Stream stream) override { return std::make_shared<DeviceEvent>(stream); }

  void MakeWait(c10::Stream stream, const EventPointer& event) override {
    if (event != nullptr) static_cast<const DeviceEvent&>(*event).MakeWait(stream);
  }

  c10::Storage Allocate(at::Device device, int64_t bytes) override {
    const c10::DeviceGuard guard(device);
    return AllocateWith(c10::GetAllocator(device.type()), bytes);
  }

  void AlsoUsedBy(const c10::Storage& storage, c10::Stream stream) override {
    c10::impl::VirtualGuardImpl(stream.device_type())
        .recordDataPtrOnStream(storage.data_ptr(), stream);
  }

  void Copy(const at::Tensor& to, const at::Tensor& from, c10::Stream stream) override {
    const c10::StreamGuard guard(stream);
    to.copy_(from, /*non_blocking=*/true);
  }

  HostMemory host_memory() override { return PinnedMemory(); }

 private:
  struct ByIndex {
    bool operator()(at::Device a, at::Device b) const { return a.index() < b.index(); }
  };
};

}  // namespace

void CopyEngine::CopyOnHost(const at::Tensor& to, const at::Tensor& from) { to.copy_(from); }

std::shared_ptr<CopyEngine> PlainCopies() {
  static const auto engine = std::make_shared<PlainEngine>();
  return engine;
}

std::shared_ptr<CopyEngine> AcceleratorCopies() {
  static const auto engine = std::make_shared<AcceleratorEngine>();
  return engine;
}

}  // namespace lockstep::base
