// The state that a region's operators read without taking it as an argument, kept in forward and
// put back around the recomputation: random generators, and autocast.
//
//   const RegionState kept = RegionState::Keep(inputs, /*random=*/true);   // in forward
//   ...
//   const Replay replay(kept);   // in backward: as it was, and on leaving, as it is now
//
// Dropout then draws the masks that it drew, and what the surrounding program draws next is what it
// would have drawn without a recomputation. Source: torch/utils/checkpoint.py of PyTorch 2.11.
// Thread: that of the caller; generators are locked while they are read.

#ifndef LOCKSTEP_CHECKPOINT_REGION_REPLAY_H_
#define LOCKSTEP_CHECKPOINT_REGION_REPLAY_H_

#include <array>
#include <utility>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "c10/core/Device.h"
#include "c10/core/ScalarType.h"

namespace lockstep::checkpoint {

// States of default generators: the CPU's, and those of devices that a region may draw on.
using RandomState = std::vector<std::pair<at::Device, at::Tensor>>;

// Of the CPU, of the devices of `inputs`, and of the current accelerator where it is in use.
RandomState KeepRandom(at::TensorList inputs);
// The same devices, as they are now.
RandomState KeepRandom(const RandomState& like);
void PutBack(const RandomState& state);

struct RegionState {
  struct Autocast {
    at::DeviceType device;
    bool enabled;
    at::ScalarType dtype;
  };
  RandomState random;  // empty: not kept
  std::array<Autocast, 2> autocast;
  bool autocast_cache;

  static RegionState Keep(at::TensorList inputs, bool random);
};

// Whether an accelerator has been used in this process: its generators exist from then on.
bool AcceleratorIsInUse();

class Replay {
 public:
  explicit Replay(const RegionState& kept);
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;
  ~Replay();

 private:
  RegionState ambient_;
};

}  // namespace lockstep::checkpoint

#endif  // LOCKSTEP_CHECKPOINT_REGION_REPLAY_H_
