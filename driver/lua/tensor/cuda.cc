#include "driver/lua/tensor/cuda.h"

#include "ATen/Context.h"
#include "absl/strings/str_cat.h"
#include "c10/core/CachingDeviceAllocator.h"
#include "c10/core/Event.h"
#include "c10/core/Stream.h"
#include "c10/core/StreamGuard.h"
#include "c10/core/impl/VirtualGuardImpl.h"
#include "driver/cuda/capability.h"
#include "driver/cuda/cuda_library.h"
#include "driver/cuda/free_memory.h"
#include "driver/lua/tensor/graph.h"
#include "driver/lua/tensor/pressure.h"
#include "driver/lua/vm/object.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/vm.h"

namespace lockstep::lua {

template <>
inline constexpr const char* kObjectName<c10::Stream> = "torch.cuda.Stream";
template <>
inline constexpr const char* kObjectName<c10::Event> = "torch.cuda.Event";

namespace {

using c10::impl::VirtualGuardImpl;
using MemoryStats = c10::CachingDeviceAllocator::DeviceStats;

VirtualGuardImpl Cuda() {
  if (!at::hasCUDA()) throw Error("torch.cuda: this machine has no GPU that the driver can use");
  return VirtualGuardImpl(at::kCUDA);
}

// The device at `index`, or the current one.
at::DeviceIndex DeviceAt(lua_State* state, int index) {
  const VirtualGuardImpl cuda = Cuda();
  if (lua_isnoneornil(state, index)) return cuda.getDevice().index();
  const int64_t device = ReadInteger(state, index, "torch.cuda: device");
  if (device < 0 || device >= cuda.deviceCount()) {
    throw Error(absl::StrCat("torch.cuda: device is ", device, ", but this machine has only 0 to ",
                             cuda.deviceCount() - 1));
  }
  return static_cast<at::DeviceIndex>(device);
}

// --- Devices and memory --------------------------------------------------------------------------

int IsAvailable(lua_State* state) { return PushBoolean(state, at::hasCUDA()); }

int DeviceCount(lua_State* state) {
  return PushInteger(state, at::hasCUDA() ? Cuda().deviceCount() : 0);
}

// get_device_capability(device) -> major, minor.
int GetDeviceCapability(lua_State* state) {
  const at::DeviceIndex device = DeviceAt(state, 1);
  const auto capability =
      *static_cast<driver::DeviceCapability*>(driver::CudaSymbol(driver::kDeviceCapabilitySymbol));
  const auto [major, minor] = capability(device);
  PushInteger(state, major);
  PushInteger(state, minor);
  return 2;
}

int Synchronize(lua_State* state) {
  const at::DeviceIndex device = DeviceAt(state, 1);
  CheckNotRecording("torch.cuda.synchronize");
  Cuda().synchronizeDevice(device);
  return 0;
}

MemoryStats StatsAt(lua_State* state, int index) {
  const at::DeviceIndex device = DeviceAt(state, index);
  return at::getDeviceAllocator(at::kCUDA)->getDeviceStats(device);
}

constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

int MemoryAllocated(lua_State* state) {
  return PushInteger(state, StatsAt(state, 1).allocated_bytes[kAll].current);
}

int MaxMemoryAllocated(lua_State* state) {
  return PushInteger(state, StatsAt(state, 1).allocated_bytes[kAll].peak);
}

int MemoryReserved(lua_State* state) {
  return PushInteger(state, StatsAt(state, 1).reserved_bytes[kAll].current);
}

int MaxMemoryReserved(lua_State* state) {
  return PushInteger(state, StatsAt(state, 1).reserved_bytes[kAll].peak);
}

// memory_stats(device): allocated, reserved and active bytes, with their peaks; retries and
// out-of-memory errors so far.
int DeviceMemoryStats(lua_State* state) {
  const MemoryStats stats = StatsAt(state, 1);
  lua_newtable(state);
  SetInteger(state, "allocated_bytes", stats.allocated_bytes[kAll].current);
  SetInteger(state, "peak_allocated_bytes", stats.allocated_bytes[kAll].peak);
  SetInteger(state, "reserved_bytes", stats.reserved_bytes[kAll].current);
  SetInteger(state, "peak_reserved_bytes", stats.reserved_bytes[kAll].peak);
  SetInteger(state, "active_bytes", stats.active_bytes[kAll].current);
  SetInteger(state, "peak_active_bytes", stats.active_bytes[kAll].peak);
  SetInteger(state, "alloc_retries", stats.num_alloc_retries);
  SetInteger(state, "ooms", stats.num_ooms);
  return 1;
}

// mem_get_info(device): the bytes that no process holds of the device, and all of them.
int MemGetInfo(lua_State* state) {
  const at::DeviceIndex device = DeviceAt(state, 1);
  const auto [free, total] = at::getDeviceAllocator(at::kCUDA)->getMemoryInfo(device);
  PushInteger(state, static_cast<int64_t>(free));
  PushInteger(state, static_cast<int64_t>(total));
  return 2;
}

int ResetPeakMemoryStats(lua_State* state) {
  const at::DeviceIndex device = DeviceAt(state, 1);
  at::getDeviceAllocator(at::kCUDA)->resetPeakStats(device);
  return 0;
}

int EmptyCache(lua_State* /*state*/) {
  Cuda();
  CheckNotRecording("torch.cuda.empty_cache");
  at::getDeviceAllocator(at::kCUDA)->emptyCache();
  return 0;
}

// --- Streams and events --------------------------------------------------------------------------

// Stream{device =, priority =}: one of the device's pool.
int NewStream(lua_State* state) {
  const VirtualGuardImpl cuda = Cuda();
  const at::DeviceIndex device = DeviceAt(state, 1);
  return PushObject(state, cuda.getStreamFromGlobalPool(at::Device(at::kCUDA, device)));
}

int CurrentStream(lua_State* state) {
  const VirtualGuardImpl cuda = Cuda();
  return PushObject(state, cuda.getStream(at::Device(at::kCUDA, DeviceAt(state, 1))));
}

int DefaultStream(lua_State* state) {
  const VirtualGuardImpl cuda = Cuda();
  return PushObject(state, cuda.getDefaultStream(at::Device(at::kCUDA, DeviceAt(state, 1))));
}

// stream(s, fn, ...) -> fn(...), with s as the current stream.
int WithStream(lua_State* state) {
  Cuda();
  const c10::StreamGuard guard(ReadObject<c10::Stream>(state, 1, "torch.cuda.stream: stream"));
  ReadFunction(state, 2, "torch.cuda.stream: fn");
  Call(state, lua_gettop(state) - 2, LUA_MULTRET);
  return lua_gettop(state) - 1;
}

c10::Stream& StreamAt(lua_State* state, int index, const char* name) {
  return ReadObject<c10::Stream>(state, index, name);
}

int StreamSynchronize(lua_State* state) {
  CheckNotRecording("stream:synchronize");
  StreamAt(state, 1, "synchronize: stream").synchronize();
  return 0;
}

int StreamQuery(lua_State* state) {
  return PushBoolean(state, StreamAt(state, 1, "query: stream").query());
}

int StreamWaitEvent(lua_State* state) {
  const c10::Stream& stream = StreamAt(state, 1, "wait_event: stream");
  ReadObject<c10::Event>(state, 2, "wait_event: event").block(stream);
  return 0;
}

int StreamWaitStream(lua_State* state) {
  const c10::Stream& stream = StreamAt(state, 1, "wait_stream: stream");
  c10::Event event(at::kCUDA);
  event.record(StreamAt(state, 2, "wait_stream: other"));
  event.block(stream);
  return 0;
}

// Event(timing): one that keeps times where `timing` is true.
int NewEvent(lua_State* state) {
  Cuda();
  const bool timing =
      !lua_isnoneornil(state, 1) && ReadBoolean(state, 1, "torch.cuda.Event: enable_timing");
  return PushObject(state, c10::Event(at::kCUDA, timing ? c10::EventFlag::BACKEND_DEFAULT
                                                        : c10::EventFlag::PYTORCH_DEFAULT));
}

c10::Event& EventAt(lua_State* state, int index, const char* name) {
  return ReadObject<c10::Event>(state, index, name);
}

int EventRecord(lua_State* state) {
  c10::Event& event = EventAt(state, 1, "record: event");
  const VirtualGuardImpl cuda = Cuda();
  event.record(lua_isnoneornil(state, 2) ? cuda.getStream(cuda.getDevice())
                                         : StreamAt(state, 2, "record: stream"));
  return 0;
}

int EventSynchronize(lua_State* state) {
  CheckNotRecording("event:synchronize");
  EventAt(state, 1, "synchronize: event").synchronize();
  return 0;
}

int EventQuery(lua_State* state) {
  return PushBoolean(state, EventAt(state, 1, "query: event").query());
}

// elapsed_time(end): milliseconds.
int EventElapsedTime(lua_State* state) {
  const c10::Event& begin = EventAt(state, 1, "elapsed_time: event");
  return PushNumber(state, begin.elapsedTime(EventAt(state, 2, "elapsed_time: end")));
}

int IsCapturing(lua_State* state) { return PushBoolean(state, IsGraphRecording()); }

}  // namespace

void PushCuda(lua_State* state) {
  if (at::hasCUDA()) {
    static_cast<driver::FreeMemoryVariable*>(driver::CudaSymbol(driver::kFreeMemorySymbol))
        ->store(CollectForDevice);
  }
  RegisterObject<c10::Stream>(state, {{"synchronize", StreamSynchronize},
                                      {"query", StreamQuery},
                                      {"wait_event", StreamWaitEvent},
                                      {"wait_stream", StreamWaitStream}});
  RegisterObject<c10::Event>(state, {{"record", EventRecord},
                                     {"synchronize", EventSynchronize},
                                     {"query", EventQuery},
                                     {"elapsed_time", EventElapsedTime}});
  lua_newtable(state);
  SetFunctions(state, {{"is_available", IsAvailable},
                       {"device_count", DeviceCount},
                       {"get_device_capability", GetDeviceCapability},
                       {"synchronize", Synchronize},
                       {"memory_allocated", MemoryAllocated},
                       {"max_memory_allocated", MaxMemoryAllocated},
                       {"memory_reserved", MemoryReserved},
                       {"max_memory_reserved", MaxMemoryReserved},
                       {"memory_stats", DeviceMemoryStats},
                       {"mem_get_info", MemGetInfo},
                       {"reset_peak_memory_stats", ResetPeakMemoryStats},
                       {"empty_cache", EmptyCache},
                       {"Stream", NewStream},
                       {"current_stream", CurrentStream},
                       {"default_stream", DefaultStream},
                       {"stream", WithStream},
                       {"Event", NewEvent},
                       {"is_current_stream_capturing", IsCapturing}});
}

}  // namespace lockstep::lua
