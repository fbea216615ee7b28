// Counts the bytes of tensors that Lua values hold, because Lua's collector cannot see them.
//
// Lua's collector paces itself by the bytes that Lua allocates: a tensor of a gigabyte counts as
// 40. So dead activations would accumulate until the device is full. Here allocation drives the
// collector, in 16 steps for every `budget` bytes pushed on a device. A step traverses about a
// quarter of Lua's heap, so these are about four cycles. The budget is a quarter of the bytes that
// are live on that device, and at least 64 MB. So garbage stays within about that budget;
// memory_test.lua tests it.
//
// Bytes are bytes of storages. Each counts once, however many tensors share it: a view holds all of
// its base, and p.grad pushed in every step is no new memory. Small storages count with each value
// instead, because a look-up would cost more than they weigh.
//
// Thread: each thread has its own counts, for the state that it owns.

#ifndef LOCKSTEP_DRIVER_LUA_TENSOR_PRESSURE_H_
#define LOCKSTEP_DRIVER_LUA_TENSOR_PRESSURE_H_

#include <cstdint>

#include "ATen/core/TensorBody.h"
#include "c10/core/Device.h"
#include "lua.hpp"

namespace lockstep::lua {

// The bytes that were counted for one Lua value. They are stored because the tensor's storage may
// change.
struct HeldBytes {
  const c10::StorageImpl* storage = nullptr;
  int32_t bytes = 0;  // without those of `storage`
  c10::Device device = c10::kCPU;
};

// Counts a value that holds the tensor, until Release.
HeldBytes Hold(const at::Tensor& tensor);
void Release(const HeldBytes& held);

// While one lives, storages that this thread begins to hold are those of a mapped file. They count
// as live, but the collector takes no step for them, because no memory was allocated.
class HoldsMapped {
 public:
  HoldsMapped();
  ~HoldsMapped();
  HoldsMapped(const HoldsMapped&) = delete;
  HoldsMapped& operator=(const HoldsMapped&) = delete;
};

// Lets the collector take a step if enough bytes were counted on the device since the last step.
void StepCollector(lua_State* state, c10::Device device);

// Collects garbage if a CUDA device's allocator is about to request memory and garbage may hold
// much of what it has. Returns whether that freed memory. Does nothing on a thread that runs no
// Lua, inside itself, and while a graph is recorded.
bool CollectForDevice();

// Returns the bytes that this thread's values hold on a device, with garbage.
int64_t LiveTensorBytes(c10::Device device);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_TENSOR_PRESSURE_H_
