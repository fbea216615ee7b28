#include "checkpoint/region/replay.h"

#include <algorithm>
#include <mutex>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/Context.h"
#include "ATen/autocast_mode.h"
#include "c10/core/impl/VirtualGuardImpl.h"

namespace lockstep::checkpoint {
namespace {

at::Generator GeneratorOf(at::Device device) {
  return device.is_cpu() ? at::detail::getDefaultCPUGenerator()
                         : at::globalContext().defaultGenerator(device);
}

at::Tensor StateOf(at::Device device) {
  at::Generator generator = GeneratorOf(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

std::array<RegionState::Autocast, 2> AutocastNow() {
  std::array<RegionState::Autocast, 2> autocast;
  const std::array<at::DeviceType, 2> devices = {at::kCPU, at::kCUDA};
  for (size_t i = 0; i < devices.size(); ++i)
    autocast[i] = {devices[i], at::autocast::is_autocast_enabled(devices[i]),
                   at::autocast::get_autocast_dtype(devices[i])};
  return autocast;
}

void SetAutocast(const RegionState& state) {
  for (const RegionState::Autocast& autocast : state.autocast) {
    at::autocast::set_autocast_enabled(autocast.device, autocast.enabled);
    at::autocast::set_autocast_dtype(autocast.device, autocast.dtype);
  }
  at::autocast::set_autocast_cache_enabled(state.autocast_cache);
}

}  // namespace

bool AcceleratorIsInUse() {
  if (!at::hasCUDA()) return false;
  const at::Device current = c10::impl::VirtualGuardImpl(at::kCUDA).getDevice();
  return at::detail::getCUDAHooks().hasPrimaryContext(current.index());
}

RandomState KeepRandom(at::TensorList inputs) {
  std::vector<at::Device> devices = {at::Device(at::kCPU)};
  const auto add = [&](at::Device device) {
    if (std::find(devices.begin(), devices.end(), device) == devices.end())
      devices.push_back(device);
  };
  for (const at::Tensor& input : inputs)
    if (input.defined() && input.is_cuda()) add(input.device());
  // Weights may lie where no input does.
  if (AcceleratorIsInUse()) add(c10::impl::VirtualGuardImpl(at::kCUDA).getDevice());
  RandomState state;
  state.reserve(devices.size());
  for (const at::Device device : devices) state.emplace_back(device, StateOf(device));
  return state;
}

RandomState KeepRandom(const RandomState& like) {
  RandomState state;
  state.reserve(like.size());
  for (const auto& [device, unused] : like) state.emplace_back(device, StateOf(device));
  return state;
}

void PutBack(const RandomState& state) {
  for (const auto& [device, tensor] : state) {
    at::Generator generator = GeneratorOf(device);
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(tensor);
  }
}

RegionState RegionState::Keep(at::TensorList inputs, bool random) {
  return {.random = random ? KeepRandom(inputs) : RandomState(),
          .autocast = AutocastNow(),
          .autocast_cache = at::autocast::is_autocast_cache_enabled()};
}

Replay::Replay(const RegionState& kept)
    : ambient_{.random = KeepRandom(kept.random),
               .autocast = AutocastNow(),
               .autocast_cache = at::autocast::is_autocast_cache_enabled()} {
  PutBack(kept.random);
  SetAutocast(kept);
  at::autocast::increment_nesting();
}

Replay::~Replay() {
  // Leaving the outermost autocast drops the weights that it has cast.
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  SetAutocast(ambient_);
  PutBack(ambient_.random);
}

}  // namespace lockstep::checkpoint
