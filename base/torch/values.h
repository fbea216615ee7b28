// Decides whether code may read a tensor's values in order to branch on them.

#ifndef LOCKSTEP_BASE_TORCH_VALUES_H_
#define LOCKSTEP_BASE_TORCH_VALUES_H_

#include "ATen/core/TensorBody.h"
#include "c10/core/DispatchKey.h"
#include "c10/core/impl/LocalDispatchKeySet.h"

namespace lockstep::base {

// The dispatch key of the recorder that stores this thread's operators and replays them with other
// values (lockstep.graph on a CPU). No tensor has this key.
inline constexpr c10::DispatchKey kRecordingKey = c10::DispatchKey::Fake;

// Returns whether the values of `tensor` may be read. They may not on a GPU, where a read waits for
// the device. They may not during a recording, because a replay has other values and would still
// take the branch that was recorded.
inline bool MayReadValues(const at::TensorBase& tensor) {
  return tensor.is_cpu() && !c10::impl::tls_is_dispatch_key_included(kRecordingKey);
}

}  // namespace lockstep::base

#endif  // LOCKSTEP_BASE_TORCH_VALUES_H_
