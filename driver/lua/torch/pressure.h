// Counts the bytes of tensors that Lua values hold, which Lua's collector cannot see.
//
// Lua's collector paces itself by the bytes that Lua allocates: a tensor of a gigabyte counts 40.
// Left alone it lets dead activations pile up until the device is full. So we keep the bytes that
// Lua's tensors hold on each device, and let allocation drive the collector, in steps: one cycle
// for every `budget` bytes pushed. The budget is a quarter of what is live on that device, and at
// least 64 MB. Garbage thus stays within about that budget; tested by memory_test.lua.
//
// Bytes are those of storages, each counted once however many tensors share it: a view holds all of
// its base, and p.grad pushed in every step is no new memory. Small storages are counted with each
// value instead: looking them up costs more than they weigh.
//
// Thread: each has counts of its own, for the state that it owns.

#ifndef LOCKSTEP_DRIVER_LUA_TORCH_PRESSURE_H_
#define LOCKSTEP_DRIVER_LUA_TORCH_PRESSURE_H_

#include <cstdint>

#include "ATen/core/TensorBody.h"
#include "c10/core/Device.h"
#include "lua.hpp"

namespace lockstep::lua {

// The bytes that one Lua value was counted for. They are not read through the tensor, whose storage
// may change.
struct HeldBytes {
  const c10::StorageImpl* storage = nullptr;
  int64_t bytes = 0;
  c10::Device device = c10::kCPU;
};

// Counts a value that holds the tensor, until Release.
HeldBytes Hold(const at::Tensor& tensor);
void Release(const HeldBytes& held);

// Lets the collector take a step where enough was counted on the device since the last.
void StepCollector(lua_State* state, c10::Device device);

// Collects garbage where a CUDA device's allocator is about to ask for more memory and garbage may
// hold much of what it has. Returns whether that freed any. Does nothing on a thread that runs no
// Lua, within itself, and while a graph is recorded.
bool CollectForDevice();

// The bytes that this thread's values hold on a device, the garbage among them included.
int64_t LiveTensorBytes(c10::Device device);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_TORCH_PRESSURE_H_
