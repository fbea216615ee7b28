// The history of one byte of a GPU's memory: its last store, and the loads since. Finds races by
// the barriers between accesses, whatever order the emulated threads ran in.
//
// An epoch counts the barriers that a block has passed. Each warp counts its own barriers, too. Two
// accesses have an order in three cases: one thread did both; one block did both, in different
// epochs; or one warp did both, in different epochs of the warp.

#ifndef LOCKSTEP_KERNELS_CUDA_TESTING_HISTORY_H_
#define LOCKSTEP_KERNELS_CUDA_TESTING_HISTORY_H_

#include <cstdint>

namespace lockstep::kernels::emulator {

// Each byte of memory has two of these, so they are small.
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
