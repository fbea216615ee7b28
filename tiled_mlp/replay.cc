#include "tiled_mlp/replay.h"

#include <mutex>

#include "ATen/Context.h"
#include "ATen/autocast_mode.h"
#include "ATen/core/Generator.h"
#include "ATen/ops/equal.h"

namespace lockstep::tiled_mlp {
namespace {

std::vector<at::Generator> GeneratorsOf(at::Device device) {
  std::vector<at::Generator> generators = {at::globalContext().defaultGenerator(at::kCPU)};
  if (device.is_cuda()) generators.push_back(at::globalContext().defaultGenerator(device));
  return generators;
}

// A library must not switch off the autocast of a device that it was not asked about.
std::vector<at::DeviceType> AutocastTypes(at::Device device) {
  std::vector<at::DeviceType> types = {at::kCPU};
  if (device.is_cuda()) types.push_back(at::kCUDA);
  return types;
}

}  // namespace

RandomState RandomState::Of(at::Device device) {
  RandomState state(device);
  for (at::Generator& generator : GeneratorsOf(device)) {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    state.states_.push_back(generator.get_state());
  }
  return state;
}

void RandomState::Restore() const {
  std::vector<at::Generator> generators = GeneratorsOf(device_);
  for (size_t i = 0; i < generators.size(); ++i) {
    const std::lock_guard<std::mutex> lock(generators[i].mutex());
    generators[i].set_state(states_[i]);
  }
}

bool RandomState::operator==(const RandomState& other) const {
  for (size_t i = 0; i < states_.size(); ++i) {
    if (!at::equal(states_[i], other.states_[i])) return false;
  }
  return device_ == other.device_;
}

Autocast Autocast::Now(at::Device device) {
  Autocast autocast;
  for (const at::DeviceType type : AutocastTypes(device))
    autocast.settings_.push_back(
        {type, at::autocast::is_autocast_enabled(type), at::autocast::get_autocast_dtype(type)});
  return autocast;
}

bool Autocast::IsEnabled(at::DeviceType type) const {
  for (const Setting& setting : settings_) {
    if (setting.type == type) return setting.enabled;
  }
  return false;
}

at::ScalarType Autocast::Dtype(at::DeviceType type) const {
  for (const Setting& setting : settings_) {
    if (setting.type == type) return setting.dtype;
  }
  return at::kFloat;
}

AutocastScope::AutocastScope(const Autocast& autocast, at::Device device)
    : before_(Autocast::Now(device)), cache_before_(at::autocast::is_autocast_cache_enabled()) {
  Set(autocast);
  at::autocast::set_autocast_cache_enabled(false);
}

AutocastScope::~AutocastScope() {
  Set(before_);
  at::autocast::set_autocast_cache_enabled(cache_before_);
}

void AutocastScope::Set(const Autocast& autocast) {
  for (const Autocast::Setting& setting : autocast.settings_) {
    at::autocast::set_autocast_enabled(setting.type, setting.enabled);
    at::autocast::set_autocast_dtype(setting.type, setting.dtype);
  }
}

}  // namespace lockstep::tiled_mlp
