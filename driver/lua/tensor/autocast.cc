#include "driver/lua/tensor/autocast.h"

#include "ATen/Context.h"
#include "ATen/autocast_mode.h"
#include "absl/strings/str_cat.h"
#include "base/torch/replay.h"
#include "driver/lua/tensor/tensor.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/vm.h"

namespace lockstep::lua {
namespace {

at::DeviceType ReadDeviceType(const OptionTable& options) {
  const std::string name = options.String("device", at::hasCUDA() ? "cuda" : "cpu");
  const at::DeviceType device = ParseDevice(name, "torch.autocast: device").type();
  if (device != at::kCPU && device != at::kCUDA)
    throw Error(
        absl::StrCat("torch.autocast: device must be \"cpu\" or \"cuda\", not \"", name, "\""));
  return device;
}

at::ScalarType ReadDtype(lua_State* state, const OptionTable& options, at::DeviceType device) {
  if (!options.Push("dtype")) return at::autocast::get_autocast_dtype(device);
  at::ScalarType dtype = at::kFloat;
  const bool is_dtype = DtypeAt(state, -1, &dtype);
  if (!is_dtype || (dtype != at::kBFloat16 && dtype != at::kHalf)) {
    throw Error(
        absl::StrCat("torch.autocast: dtype must be torch.bfloat16 or torch.float16, not ",
                     is_dtype ? absl::StrCat("torch.", DtypeName(dtype)) : TypeName(state, -1)));
  }
  lua_pop(state, 1);
  return dtype;
}

}  // namespace

int Autocast(lua_State* state) {
  const OptionTable options(state, 1, "torch.autocast",
                            {"dtype", "device", "enabled", "cache_enabled"});
  ReadFunction(state, 2, "torch.autocast: the function");
  const at::DeviceType device = ReadDeviceType(options);
  const at::ScalarType dtype = ReadDtype(state, options, device);
  base::Autocast settings =
      base::Autocast::Now().With(device, options.Boolean("enabled", true), dtype);
  if (!options.Boolean("cache_enabled", true)) settings = settings.WithoutCache();
  lua_remove(state, 1);
  const base::AutocastScope scope(settings);
  Call(state, lua_gettop(state) - 1, LUA_MULTRET);
  return lua_gettop(state);
}

}  // namespace lockstep::lua
