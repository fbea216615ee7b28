#include "kernels/cuda/testing/history.h"

#include "kernels/cuda/geometry.h"

namespace lockstep::kernels::emulator {
namespace {

bool IsOrdered(const Access& before, const Access& now) {
  if (before.block < 0) return true;
  if (before.block != now.block) return false;
  if (before.thread == now.thread || before.epoch != now.epoch) return true;
  return before.thread / kWarp == now.thread / kWarp && before.warp_epoch != now.warp_epoch;
}

}  // namespace

bool History::Loads::AreOrdered(const Access& now) const {
  if (last.block < 0) return true;
  if (by_blocks || !IsOrdered(last, now)) return false;
  if (last.epoch != now.epoch || last.warp_epoch != now.warp_epoch)
    return last.epoch != now.epoch || !by_warps;
  return !by_warps && !by_threads;
}

void History::Loads::Remember(const Access& now) {
  if (last.block >= 0 && last.block != now.block) {
    by_blocks = true;
  } else if (last.block < 0 || last.epoch != now.epoch) {
    *this = {.last = now, .by_blocks = by_blocks};
  } else if (last.thread / kWarp != now.thread / kWarp) {
    by_warps = true;
  } else if (last.warp_epoch != now.warp_epoch) {
    last = now;
    by_threads = false;
  } else if (last.thread != now.thread) {
    by_threads = true;
  }
}

const char* History::Note(const Access& now, int32_t launch, bool is_store) {
  if (launch_ != launch) {
    launch_ = launch;
    store_ = {};
    loads_ = {};
  }
  const char* fault = nullptr;
  const bool races_with_store = !IsOrdered(store_, now) && !(now.is_atomic && store_.is_atomic);
  if (!is_store || now.is_atomic) {
    if (!is_written) fault = "nobody wrote";
    if (races_with_store) fault = "another thread writes, without a barrier between";
    if (!now.is_atomic) loads_.Remember(now);
  }
  if (is_store) {
    if (races_with_store) fault = "another thread writes too, without a barrier between";
    if (!loads_.AreOrdered(now)) fault = "another thread reads, without a barrier between";
    is_written = true;
    store_ = now;
    if (!now.is_atomic) loads_ = {};
  }
  return fault;
}

}  // namespace lockstep::kernels::emulator
