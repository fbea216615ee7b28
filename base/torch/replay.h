// The state that operators read without taking it as an argument: random generators, and autocast.
//
// A function that runs a second time, in backward, computes something else unless both are as they
// were: dropout draws other masks, and products round to another dtype. So the first run saves
// them, and the second runs inside the two scopes:
//
//    const RandomState random = RandomState::Of(inputs);   // in forward
//    const Autocast autocast = Autocast::Now();
//    ...
//    const RandomScope random_scope(random);               // in backward: restored,
//    const AutocastScope autocast_scope(autocast);         // until the scopes end
//
// The second run does not change which random numbers the surrounding program draws next.
//
// Source: torch/utils/checkpoint.py of PyTorch 2.11. Thread: each call acts on the calling thread.
// Generators are locked while they are read and written.

#ifndef LOCKSTEP_BASE_TORCH_REPLAY_H_
#define LOCKSTEP_BASE_TORCH_REPLAY_H_

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "c10/core/Device.h"
#include "c10/core/ScalarType.h"

namespace lockstep::base {

// Returns whether an accelerator has been used in this process. Its generators exist from then on.
bool AcceleratorIsInUse();

// A random generator that libtorch does not know, such as a scripting language's. While this object
// lives, RandomState includes the generator on the thread that made the object, and on no other.
class OtherGenerator {
 public:
  using Get = std::function<std::string()>;
  using Set = std::function<void(const std::string& state)>;
  OtherGenerator(Get get, Set set);
  OtherGenerator(const OtherGenerator&) = delete;
  OtherGenerator& operator=(const OtherGenerator&) = delete;
  ~OtherGenerator();

 private:
  friend class RandomState;
  const int64_t number_;  // never used twice
  const Get get_;
  const Set set_;
};

// States of default random generators. An empty state restores nothing.
class RandomState {
 public:
  // Returns the states of the generators of the CPU, of the tensors' devices, and of the current
  // accelerator if it is in use. Weights may lie on a device that no input is on. Includes this
  // thread's other generators.
  static RandomState Of(at::TensorList tensors);

  // Returns the current state of the same generators.
  RandomState Now() const;
  void Restore() const;
  bool operator==(const RandomState& other) const;

 private:
  std::vector<std::pair<at::Device, at::Tensor>> states_;
  std::vector<std::pair<int64_t, std::string>> others_;  // by number
};

// Restores `kept`. Its destructor restores the state from before.
class RandomScope {
 public:
  explicit RandomScope(const RandomState& kept) : before_(kept.Now()) { kept.Restore(); }
  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;
  ~RandomScope() { before_.Restore(); }

 private:
  RandomState before_;
};

// The calling thread's autocast settings for the CPU and for CUDA.
class Autocast {
 public:
  static Autocast Now();

  // Returns the same settings with the cache off. The cache keeps casts of weights until the
  // outermost autocast ends. Use this if each run needs its own casts.
  Autocast WithoutCache() const;

  // The same settings, but these of one device: the CPU or CUDA.
  Autocast With(at::DeviceType device, bool enabled, at::ScalarType dtype) const;

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

// Applies `kept`. Its destructor applies the settings from before.
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
