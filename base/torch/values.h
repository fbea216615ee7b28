// Tells when code may look at a tensor's values to choose its way.

#ifndef LOCKSTEP_BASE_TORCH_VALUES_H_
#define LOCKSTEP_BASE_TORCH_VALUES_H_

#include "ATen/core/TensorBody.h"
#include "c10/core/DispatchKey.h"
#include "c10/core/impl/LocalDispatchKeySet.h"

namespace lockstep::base {

// Leads to whoever notes the operators of this thread, to run them again with other values
// (lockstep.graph on a CPU). Tensors never have this key.
inline constexpr c10::DispatchKey kRecordingKey = c10::DispatchKey::Fake;

// Returns whether values of `tensor` may be read: at no cost, because it is on a CPU, and no
// recording would repeat what follows from them. On a GPU a read would wait for the device.
inline bool MayReadValues(const at::TensorBase& tensor) {
  return tensor.is_cpu() && !c10::impl::tls_is_dispatch_key_included(kRecordingKey);
}

}  // namespace lockstep::base

#endif  // LOCKSTEP_BASE_TORCH_VALUES_H_
