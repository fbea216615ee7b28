// What a tile's second run must find as its first did: random numbers and autocast.

#ifndef LOCKSTEP_TILED_MLP_REPLAY_H_
#define LOCKSTEP_TILED_MLP_REPLAY_H_

#include <vector>

#include "ATen/core/TensorBody.h"
#include "c10/core/Device.h"

namespace lockstep::tiled_mlp {

// The states of the generators that work on `device` draws from: the CPU's, and the GPU's where it
// is one.
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

// Puts the generators of `device` back, at its end, to where they stood.
class KeepRandomState {
 public:
  explicit KeepRandomState(at::Device device) : before_(RandomState::Of(device)) {}
  KeepRandomState(const KeepRandomState&) = delete;
  KeepRandomState& operator=(const KeepRandomState&) = delete;
  ~KeepRandomState() { before_.Restore(); }

 private:
  RandomState before_;
};

// This thread's autocast settings, less the cache of cast weights: that holds what it once cast,
// with a gradient or without, for the rest of the region, and a tile must get its own.
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

// Sets them, with the cache off, until its end.
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
