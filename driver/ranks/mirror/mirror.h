// A world of many ranks in one process, for --dry-run. Every other rank is taken to do the same as
// this rank, with the same values.
//
//    group->setBackend(c10::kCPU, BackendType::GLOO, NewMirrorBackend(/*rank=*/0, /*size=*/8));
//
// So a sum over ranks is `size` times the own value, an all-gather holds `size` copies, and no call
// waits. Shapes, memory and FLOPs of this rank are right; values are not. Receiving a tensor from
// another rank is an error, because its content is unknown.

#ifndef LOCKSTEP_DRIVER_RANKS_MIRROR_MIRROR_H_
#define LOCKSTEP_DRIVER_RANKS_MIRROR_MIRROR_H_

#include <memory>

#include "c10/util/intrusive_ptr.h"
#include "sharding/agreement/collective.h"
#include "torch/csrc/distributed/c10d/Backend.hpp"

namespace lockstep::driver {

// Supports broadcast, all-reduce, all-gather, reduce-scatter, send and barrier; all are done when
// they return. Reduces by sum, mean, minimum and maximum; throws c10::Error for others.
c10::intrusive_ptr<c10d::Backend> NewMirrorBackend(int rank, int size);

std::unique_ptr<sharding::Collective> NewMirrorCollective(int rank, int size);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_RANKS_MIRROR_MIRROR_H_
