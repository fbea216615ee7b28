#include "driver/lua/tensor/pressure.h"

#include <algorithm>
#include <array>
#include <unordered_map>

#include "c10/core/CachingDeviceAllocator.h"
#include "c10/util/Exception.h"
#include "driver/lua/tensor/graph.h"
#include "driver/lua/tensor/tensor.h"
#include "driver/lua/vm/running.h"

namespace lockstep::lua {
namespace {

struct HeldStorage {
  int64_t num_values;
  int64_t bytes;
  c10::weak_intrusive_ptr<c10::StorageImpl> keeps_address;  // no other storage takes it meanwhile
};

struct DevicePressure {
  int64_t live = 0;         // bytes of tensors in userdata, reachable or not
  int64_t fresh = 0;        // bytes pushed since the last step
  int64_t uncollected = 0;  // bytes pushed since CollectForDevice collected
};

// The CPU, and every other device without an index of its own, then CUDA's devices.
constexpr size_t kNumDevices = 1 + 128;

// Initialised by the loader, so that a push looks at no guard.
constinit thread_local std::array<DevicePressure, kNumDevices> devices{};
thread_local std::unordered_map<const c10::StorageImpl*, HeldStorage> storages;
thread_local bool is_collecting = false;
thread_local bool holds_mapped = false;

constexpr int64_t kMinBudget = int64_t{64} << 20;
constexpr int64_t kStepsPerBudget = 16;
// The bytes of a tensor without elements outside Lua: TensorImpl, StorageImpl, autograd metadata.
constexpr int32_t kOverheadBytes = 512;

constexpr int64_t kSmallBytes = 16 << 10;

DevicePressure& On(c10::Device device) {
  const int index = device.is_cuda() ? 1 + std::max<int>(device.index(), 0) : 0;
  return devices[index];
}

void Count(c10::Device device, int64_t bytes) {
  DevicePressure& on = On(device);
  on.live += bytes;
  on.fresh += bytes;
  on.uncollected += bytes;
}

int64_t Budget(const DevicePressure& on) { return std::max(kMinBudget, on.live / 4); }

// Returns whether less than an eighth of any CUDA device that holds tensors is free.
bool IsNearlyFull() {
  for (size_t i = 1; i < kNumDevices; ++i) {
    if (devices[i].live == 0) continue;
    try {
      const auto [free, total] =
          at::getDeviceAllocator(at::kCUDA)->getMemoryInfo(static_cast<c10::DeviceIndex>(i - 1));
      if (free < total / 8) return true;
    } catch (const c10::Error&) {  // the allocation that follows says what is wrong
      return false;
    }
  }
  return false;
}

// Returns whether enough was pushed since the last collection for another to be worth its time: as
// much as drives a whole cycle, or anything where a device is nearly full.
bool IsWorthCollecting() {
  int64_t most = 0;
  for (size_t i = 1; i < kNumDevices; ++i) {
    const DevicePressure& on = devices[i];
    if (on.uncollected >= Budget(on)) return true;
    most = std::max(most, on.uncollected);
  }
  return most > 0 && IsNearlyFull();
}

int64_t LiveOnCuda() {
  int64_t live = 0;
  for (size_t i = 1; i < kNumDevices; ++i) live += devices[i].live;
  return live;
}

}  // namespace

HeldBytes Hold(const at::Tensor& tensor) {
  HeldBytes held{nullptr, kOverheadBytes, tensor.device()};
  if (tensor.has_storage() && !tensor.is_meta()) {
    c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
    const auto bytes = static_cast<int64_t>(storage->nbytes());
    if (bytes <= kSmallBytes) {
      held.bytes += static_cast<int32_t>(bytes);
    } else {
      held.storage = storage;
      const auto known = storages.find(storage);
      if (known != storages.end()) {
        ++known->second.num_values;
      } else {
        storages.emplace(storage, HeldStorage{1, bytes, tensor.storage().getWeakStorageImpl()});
        if (holds_mapped) {
          On(held.device).live += bytes;
        } else {
          Count(held.device, bytes);
        }
      }
    }
  }
  Count(held.device, held.bytes);
  return held;
}

void Release(const HeldBytes& held) {
  DevicePressure& on = On(held.device);
  on.live -= held.bytes;
  if (held.storage == nullptr) return;
  const auto known = storages.find(held.storage);
  if (--known->second.num_values > 0) return;
  on.live -= known->second.bytes;
  storages.erase(known);
}

HoldsMapped::HoldsMapped() { holds_mapped = true; }

HoldsMapped::~HoldsMapped() { holds_mapped = false; }

void StepCollector(lua_State* state, c10::Device device) {
  DevicePressure& on = On(device);
  if (on.fresh < Budget(on) / kStepsPerBudget) return;
  on.fresh = 0;
  // Measured: a step of an eighth of the heap traverses a quarter of it, so four are a cycle.
  const int heap_kb = lua_gc(state, LUA_GCCOUNT, 0);
  lua_gc(state, LUA_GCSTEP, heap_kb / static_cast<int>(kStepsPerBudget / 2) + 16);
}

bool CollectForDevice() {
  lua_State* state = RunningState();
  if (state == nullptr || is_collecting || IsGraphRecording() || !IsWorthCollecting()) {
    return false;
  }
  const int64_t before = LiveOnCuda();
  is_collecting = true;
  lua_gc(state, LUA_GCCOLLECT, 0);
  is_collecting = false;
  for (DevicePressure& on : devices) on.uncollected = 0;
  return LiveOnCuda() < before;
}

int64_t LiveTensorBytes(c10::Device device) { return On(device).live; }

int64_t LiveTensorBytes() {
  int64_t live = 0;
  for (const DevicePressure& on : devices) live += on.live;
  return live;
}

}  // namespace lockstep::lua
