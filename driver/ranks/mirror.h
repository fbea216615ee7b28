// A world of many ranks in one process, for --dry-run: this rank is there, and every other is taken
// to be its mirror image, which does the same with the same values.
//
//   group->setBackend(c10::kCPU, BackendType::GLOO, NewMirrorBackend(/*rank=*/0, /*size=*/8));
//
// So a sum over ranks is `size` times the own value, a gathering holds `size` copies, and nobody
// waits. Shapes, memory and FLOPs of this rank come out as they would; values do not. What cannot
// be known without the other rank is an error: a tensor received from it.

#ifndef LOCKSTEP_DRIVER_RANKS_MIRROR_H_
#define LOCKSTEP_DRIVER_RANKS_MIRROR_H_

#include <memory>

#include "c10/util/intrusive_ptr.h"
#include "sharding/agreement/collective.h"
#include "torch/csrc/distributed/c10d/Backend.hpp"

namespace lockstep::driver {

// Broadcast, all-reduce, all-gather, reduce-scatter, send and barrier, all done when they return.
// Reduces by sum, mean, minimum and maximum; others throw c10::Error.
c10::intrusive_ptr<c10d::Backend> NewMirrorBackend(int rank, int size);

std::unique_ptr<sharding::Collective> NewMirrorCollective(int rank, int size);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_RANKS_MIRROR_H_
