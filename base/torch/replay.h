// The state that operators read without taking it as an argument: random generators, and autocast.
//
// A function that runs a second time, in backward, computes something else unless both are as they
// were: dropout draws other masks, and products round to another dtype. So the first run keeps
// them, and the second runs inside the two scopes:
//
//   const RandomState random = RandomState::Of(inputs);   // in forward
//   const Autocast autocast = Autocast::Now();
//   ...
//   const RandomScope random_scope(random);               // in backward: as it was,
//   const AutocastScope autocast_scope(autocast);         // and on leaving, as it is now
//
// What the surrounding program draws next is what it would have drawn without the second run.
// Source: torch/utils/checkpoint.py of PyTorch 2.11. Thread: that of the caller; generators are
// locked while they are read and written.

#ifndef LOCKSTEP_BASE_TORCH_REPLAY_H_
#define LOCKSTEP_BASE_TORCH_REPLAY_H_

#include <array>
#include <utility>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "c10/core/Device.h"
#include "c10/core/ScalarType.h"

namespace lockstep::base {

// Whether an accelerator has been used in this process: its generators exist from then on.
bool AcceleratorIsInUse();

// States of default generators. The empty one, of no generator, restores nothing.
class RandomState {
 public:
  // The CPU's, those of the devices of `tensors`, and that of the current accelerator where it is
  // in use: weights may lie where no input does.
  static RandomState Of(at::TensorList tensors);

  // The same generators, as they are now.
  RandomState Now() const;
  void Restore() const;
  bool operator==(const RandomState& other) const;

 private:
  std::vector<std::pair<at::Device, at::Tensor>> states_;
};

// Restores `kept`; its destructor restores what was there before.
class RandomScope {
 public:
  explicit RandomScope(const RandomState& kept) : before_(kept.Now()) { kept.Restore(); }
  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;
  ~RandomScope() { before_.Restore(); }

 private:
  RandomState before_;
};

// This thread's autocast settings, of the CPU and of CUDA.
class Autocast {
 public:
  static Autocast Now();

  // The cache keeps the casts of weights until the outermost autocast ends. Off where each run
  // needs casts of its own.
  Autocast WithoutCache() const;

 private:
  friend class AutocastScope;
  struct Setting {
    at::DeviceType device;
    bool enabled;
    at::ScalarType dtype;
  };
  void Set() const;
  std::array<Setting, 2> settings_;
  bool cache_;
};

// Applies `kept`; its destructor applies what was there before.
class AutocastScope {
 public:
  explicit AutocastScope(const Autocast& kept);
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;
  ~AutocastScope();

 private:
  Autocast before_;
};

}  // namespace lockstep::base

#endif  // LOCKSTEP_BASE_TORCH_REPLAY_H_
