#include "driver/lua/tensor/pressure.h"

#include <algorithm>
#include <string>
#include <utility>

#include "ATen/core/TensorBody.h"
#include "c10/core/Storage.h"
#include "driver/lua/tensor/tensor.h"
#include "driver/lua/vm/vm.h"
#include "gtest/gtest.h"

namespace lockstep::lua {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
const c10::Device kGpu(c10::kCUDA, 0);

// A tensor that says it has `bytes` bytes on the device, and has no memory at all.
at::Tensor Fake(int64_t bytes, c10::Device device) {
  const auto keys =
      c10::DispatchKeySet(device.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU);
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, c10::DataPtr(nullptr, device),
                       /*allocator=*/nullptr, /*resizable=*/false);
  return at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys,
                                                  c10::scalarTypeToTypeMeta(at::kByte));
}

int64_t most_garbage = 0;
bool collected = false;

// make(mib, is_gpu): a fake tensor.
int Make(lua_State* state) {
  const auto mib = static_cast<int64_t>(lua_tonumber(state, 1));
  PushTensor(state, Fake(mib * kMiB, lua_toboolean(state, 2) != 0 ? kGpu : c10::kCPU));
  most_garbage = std::max(most_garbage, LiveTensorBytes(kGpu));
  return 1;
}

// make_mapped(mib): the same on the CPU, as of a mapped file.
int MakeMapped(lua_State* state) {
  const HoldsMapped mapped;
  PushTensor(state, Fake(static_cast<int64_t>(lua_tonumber(state, 1)) * kMiB, c10::kCPU));
  return 1;
}

// collect(): what CUDA's allocator calls.
int Collect(lua_State* state) {
  collected = CollectForDevice();
  lua_pushboolean(state, static_cast<int>(collected));
  return 1;
}

class Pressure : public testing::Test {
 protected:
  Pressure() : vm_({.library_root = "", .script_folder = ""}) {
    RegisterTensor(vm_.state());
    lua_register(vm_.state(), "make", Make);
    lua_register(vm_.state(), "make_mapped", MakeMapped);
    lua_register(vm_.state(), "collect", Collect);
    most_garbage = 0;
    collected = false;
  }

  void Run(const std::string& code) {
    const auto error = vm_.RunString(code, "=test");
    ASSERT_FALSE(error.has_value()) << error->message;
  }

  LuaVm vm_;
};

TEST_F(Pressure, TensorsOnTheHostDoNotLetGarbagePileUpOnADevice) {
  Run("kept = make(64 * 1024, false); for i = 1, 1000 do make(16, true) end");

  // The budget is 64 MiB; one cycle may begin and one may end before a dead tensor is freed.
  EXPECT_LE(most_garbage, 3 * 64 * kMiB);
}

TEST_F(Pressure, EachDeviceIsCountedByItself) {
  const int64_t before = LiveTensorBytes(c10::kCPU);
  Run("kept = {make(5, false), make(3, true)}");

  EXPECT_GE(LiveTensorBytes(c10::kCPU) - before, 5 * kMiB);
  EXPECT_LT(LiveTensorBytes(c10::kCPU) - before, 6 * kMiB);
  EXPECT_GE(LiveTensorBytes(kGpu), 3 * kMiB);
  EXPECT_LT(LiveTensorBytes(kGpu), 4 * kMiB);
  EXPECT_EQ(LiveTensorBytes(), LiveTensorBytes(c10::kCPU) + LiveTensorBytes(kGpu));
}

// A model of a gigabyte would be loaded within dozens of cycles of the collector.
TEST_F(Pressure, TensorsOfMappedFilesDriveNoCollection) {
  const std::string dead =
      "local is_dead = false; local p = newproxy(true); "
      "getmetatable(p).__gc = function() is_dead = true end; p = nil; ";
  const int64_t before = LiveTensorBytes(c10::kCPU);

  Run(dead + "kept = {}; for i = 1, 50 do kept[i] = make_mapped(1024) end; assert(not is_dead)");
  EXPECT_GE(LiveTensorBytes(c10::kCPU) - before, 50 * 1024 * kMiB);

  Run("kept = nil; collectgarbage() collectgarbage()");
  EXPECT_LT(LiveTensorBytes(c10::kCPU) - before, kMiB);
  Run(dead + "for i = 1, 50 do make(1024, false) end; assert(is_dead)");
}

TEST_F(Pressure, GarbageIsCollectedForTheAllocator) {
  Run("collectgarbage('stop'); for i = 1, 10 do make(16, true) end; assert(collect())");

  EXPECT_LT(LiveTensorBytes(kGpu), 16 * kMiB);
}

TEST_F(Pressure, WithoutNewTensorsTheAllocatorIsNotKeptWaiting) {
  Run("kept = {}; for i = 1, 10 do kept[i] = make(16, true) end; assert(not collect())");
  Run("kept = nil; assert(not collect())");
}

TEST_F(Pressure, OutsideOfLuaNothingIsCollected) { EXPECT_FALSE(CollectForDevice()); }

}  // namespace
}  // namespace lockstep::lua
