// The state that a tile's second run must share with its first: random numbers and autocast.

#ifndef LOCKSTEP_TILED_MLP_REPLAY_H_
#define LOCKSTEP_TILED_MLP_REPLAY_H_

#include <vector>

#include "ATen/core/TensorBody.h"
#include "c10/core/Device.h"

namespace lockstep::tiled_mlp {

// The states of the generators for `device`: the CPU's, and a GPU's if `device` is one.
class RandomState {
 public:
  static RandomState Of(at::Device device);

  void Restore() const;
  bool operator==(const RandomState& other) const;

 private:
  explicit RandomState(at::Device device) : device_(device) {}
  at::Device device_;
  std::vector<at::Tensor> states_;
};

// Restores the generators of `device` in its destructor.
class KeepRandomState {
 public:
  explicit KeepRandomState(at::Device device) : before_(RandomState::Of(device)) {}
  KeepRandomState(const KeepRandomState&) = delete;
  KeepRandomState& operator=(const KeepRandomState&) = delete;
  ~KeepRandomState() { before_.Restore(); }

 private:
  RandomState before_;
};

// This thread's autocast settings without the cache of cast weights. The cache keeps its casts,
// with or without gradients, for the rest of the region, but each tile needs its own.
class Autocast {
 public:
  static Autocast Now(at::Device device);

  bool IsEnabled(at::DeviceType type) const;
  at::ScalarType Dtype(at::DeviceType type) const;

 private:
  friend class AutocastScope;
  struct Setting {
    at::DeviceType type;
    bool enabled;
    at::ScalarType dtype;
  };
  std::vector<Setting> settings_;
};

// Applies the settings, with the cache off, until its destructor.
class AutocastScope {
 public:
  AutocastScope(const Autocast& autocast, at::Device device);
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;
  ~AutocastScope();

 private:
  static void Set(const Autocast& autocast);
  Autocast before_;
  bool cache_before_;
};

}  // namespace lockstep::tiled_mlp

#endif  // LOCKSTEP_TILED_MLP_REPLAY_H_
