#include "base/torch/replay.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/Context.h"
#include "ATen/autocast_mode.h"
#include "c10/core/impl/VirtualGuardImpl.h"

namespace lockstep::base {
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

int64_t NextNumber() {
  static std::atomic<int64_t> last{0};
  return ++last;
}

std::vector<OtherGenerator*>& OtherGenerators() {
  thread_local std::vector<OtherGenerator*> generators;
  return generators;
}

// States are bytes on the CPU. at::equal would be an operator, which a recording must not see.
bool IsSameState(const at::Tensor& a, const at::Tensor& b) {
  return a.nbytes() == b.nbytes() &&
         memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

}  // namespace

bool AcceleratorIsInUse() {
  if (!at::hasCUDA()) return false;
  const at::Device current = c10::impl::VirtualGuardImpl(at::kCUDA).getDevice();
  return at::detail::getCUDAHooks().hasPrimaryContext(current.index());
}

OtherGenerator::OtherGenerator(Get get, Set set)
    : number_(NextNumber()), get_(std::move(get)), set_(std::move(set)) {
  OtherGenerators().push_back(this);
}

OtherGenerator::~OtherGenerator() { std::erase(OtherGenerators(), this); }

RandomState RandomState::Of(at::TensorList tensors) {
  RandomState state;
  const auto add = [&](at::Device device) {
    const auto is_device = [&](const auto& entry) { return entry.first == device; };
    if (std::none_of(state.states_.begin(), state.states_.end(), is_device))
      state.states_.emplace_back(device, StateOf(device));
  };
  add(at::Device(at::kCPU));
  for (const at::Tensor& tensor : tensors)
    if (tensor.defined() && tensor.is_cuda()) add(tensor.device());
  if (AcceleratorIsInUse()) add(c10::impl::VirtualGuardImpl(at::kCUDA).getDevice());
  for (const OtherGenerator* generator : OtherGenerators())
    state.others_.emplace_back(generator->number_, generator->get_());
  return state;
}

RandomState RandomState::Now() const {
  RandomState state;
  for (const auto& [device, unused] : states_) state.states_.emplace_back(device, StateOf(device));
  for (const auto& [number, unused] : others_) {
    for (const OtherGenerator* generator : OtherGenerators())
      if (generator->number_ == number) state.others_.emplace_back(number, generator->get_());
  }
  return state;
}

void RandomState::Restore() const {
  for (const auto& [device, tensor] : states_) {
    at::Generator generator = GeneratorOf(device);
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(tensor);
  }
  for (const auto& [number, kept] : others_) {
    for (const OtherGenerator* generator : OtherGenerators())
      if (generator->number_ == number) generator->set_(kept);
  }
}

bool RandomState::operator==(const RandomState& other) const {
  return others_ == other.others_ &&
         std::equal(states_.begin(), states_.end(), other.states_.begin(), other.states_.end(),
                    [](const auto& a, const auto& b) {
                      return a.first == b.first && IsSameState(a.second, b.second);
                    });
}

Autocast Autocast::Now() {
  Autocast autocast;
  const std::array<at::DeviceType, 2> devices = {at::kCPU, at::kCUDA};
  for (size_t i = 0; i < devices.size(); ++i)
    autocast.settings_[i] = {devices[i], at::autocast::is_autocast_enabled(devices[i]),
                             at::autocast::get_autocast_dtype(devices[i])};
  autocast.cache_ = at::autocast::is_autocast_cache_enabled();
  return autocast;
}

Autocast Autocast::WithoutCache() const {
  Autocast autocast = *this;
  autocast.cache_ = false;
  return autocast;
}

Autocast Autocast::With(at::DeviceType device, bool enabled, at::ScalarType dtype) const {
  Autocast autocast = *this;
  for (Setting& setting : autocast.settings_) {
    if (setting.device == device) setting = {device, enabled, dtype};
  }
  return autocast;
}

void Autocast::Set() const {
  for (const Setting& setting : settings_) {
    at::autocast::set_autocast_enabled(setting.device, setting.enabled);
    at::autocast::set_autocast_dtype(setting.device, setting.dtype);
  }
  at::autocast::set_autocast_cache_enabled(cache_);
}

AutocastScope::AutocastScope(const Autocast& kept) : before_(Autocast::Now()) {
  kept.Set();
  at::autocast::increment_nesting();
}

AutocastScope::~AutocastScope() {
  // Leaving the outermost autocast drops the weights that it has cast.
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  before_.Set();
}

}  // namespace lockstep::base
