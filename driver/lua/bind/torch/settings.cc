#include "driver/lua/bind/torch/settings.h"

#include <string>

#include "ATen/Context.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "c10/core/CachingDeviceAllocator.h"
#include "c10/core/impl/VirtualGuardImpl.h"
#include "c10/util/env.h"
#include "driver/cuda/cublas_workspace.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/vm.h"

namespace lockstep::lua {
namespace {

struct NamedPrecision {
  const char* name;
  at::Float32MatmulPrecision precision;
};
constexpr NamedPrecision kPrecisions[] = {
    {"highest", at::Float32MatmulPrecision::HIGHEST},
    {"high", at::Float32MatmulPrecision::HIGH},
    {"medium", at::Float32MatmulPrecision::MEDIUM},
};

// Returns whether this process has had a tensor on a GPU. Without one it has called no cuBLAS.
bool GpuWasUsed() {
  c10::DeviceAllocator* const allocator = at::getDeviceAllocator(at::kCUDA);
  if (!allocator->initialized()) return false;
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const int devices = c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount();
  for (int i = 0; i < devices; ++i) {
    const auto stats = allocator->getDeviceStats(static_cast<c10::DeviceIndex>(i));
    if (stats.allocated_bytes[kAll].allocated > 0) return true;
  }
  return false;
}

// Gives cuBLAS its workspace. Throws if that is too late.
void SetCublasWorkspace() {
  const absl::StatusOr<std::string> size =
      driver::DeterministicWorkspace(c10::utils::get_env(driver::kCublasWorkspace), GpuWasUsed());
  if (!size.ok()) {
    throw Error(absl::StrCat("torch.use_deterministic_algorithms: ", size.status().message()));
  }
  c10::utils::set_env(driver::kCublasWorkspace, size->c_str());
}

}  // namespace

int SetFloat32MatmulPrecision(lua_State* state) {
  const std::string name = ReadString(state, 1, "torch.set_float32_matmul_precision: precision");
  for (const NamedPrecision& known : kPrecisions) {
    if (name != known.name) continue;
    at::globalContext().setFloat32MatmulPrecision(name);
    return 0;
  }
  throw Error(absl::StrCat("torch.set_float32_matmul_precision: precision must be \"highest\", ",
                           "\"high\" or \"medium\", not \"", name, "\""));
}

int GetFloat32MatmulPrecision(lua_State* state) {
  const at::Float32MatmulPrecision precision = at::globalContext().float32MatmulPrecision();
  for (const NamedPrecision& known : kPrecisions) {
    if (precision == known.precision) PushString(state, known.name);
  }
  return 1;
}

int UseDeterministicAlgorithms(lua_State* state) {
  const bool mode = ReadBoolean(state, 1, "torch.use_deterministic_algorithms: mode");
  const OptionTable options(state, 2, "torch.use_deterministic_algorithms", {"warn_only"});
  const bool warn_only = options.Boolean("warn_only", false);
  if (mode && !warn_only && at::hasCUDA()) SetCublasWorkspace();
  at::globalContext().setDeterministicAlgorithms(mode, warn_only);
  return 0;
}

int AreDeterministicAlgorithmsEnabled(lua_State* state) {
  return PushBoolean(state, at::globalContext().deterministicAlgorithms());
}

}  // namespace lockstep::lua
