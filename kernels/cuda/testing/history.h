// What happened to one byte of a GPU's memory, as far as the next access needs it: its last store,
// and the loads since. Finds races by barriers passed, not by the order in which threads ran.
//
// An epoch counts the barriers that a block has passed, and one of its own those of each warp. Two
// accesses have an order if one thread did both, or if both are of one block and of different
// epochs, or of one warp and of different epochs of the warp.

#ifndef LOCKSTEP_KERNELS_CUDA_TESTING_HISTORY_H_
#define LOCKSTEP_KERNELS_CUDA_TESTING_HISTORY_H_

#include <cstdint>

namespace lockstep::kernels::emulator {

// Small: each byte has two.
struct Access {
  int32_t block = -1;  // -1: none
  int32_t epoch = 0, warp_epoch = 0;
  int16_t thread = 0;
  bool is_atomic = false;
};

struct History {
  // Notes an access of a launch. Returns what is wrong with it, or nullptr.
  const char* Note(const Access& now, int32_t launch, bool is_store);

  bool is_written = false, is_forbidden = false;

 private:
  // The loads since the last store, of the last epoch.
  struct Loads {
    Access last;
    bool by_threads = false;  // of one warp
    bool by_warps = false;    // of one block
    bool by_blocks = false;

    void Remember(const Access& now);
    // Returns whether a store has an order with all of them.
    bool AreOrdered(const Access& now) const;
  };

  int32_t launch_ = -1;  // of store_ and loads_
  Access store_;
  Loads loads_;
};

}  // namespace lockstep::kernels::emulator

#endif  // LOCKSTEP_KERNELS_CUDA_TESTING_HISTORY_H_
