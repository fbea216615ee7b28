// Tensors over memory that is shared and cut up by hand. Private to flat_unit.

#ifndef LOCKSTEP_SHARDING_FULLY_SHARD_FLAT_MEMORY_H_
#define LOCKSTEP_SHARDING_FULLY_SHARD_FLAT_MEMORY_H_

#include <cstdint>

#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/core/TensorBody.h"
#include "c10/core/Storage.h"
#include "c10/util/intrusive_ptr.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace lockstep::sharding {

// While it lives, autograd sees nothing and no version counter moves.
using NoAutogradGuard = at::AutoDispatchBelowADInplaceOrView;

inline int64_t BytesOf(int64_t elements, at::ScalarType dtype) {
  return elements * static_cast<int64_t>(c10::elementSize(dtype));
}

// Returns the first `elements` of a buffer, as a dtype.
at::Tensor ViewOf(const at::Tensor& slot, int64_t elements, at::ScalarType dtype);

int64_t VersionOf(const at::Tensor& tensor);
void SetVersion(const at::Tensor& tensor, int64_t version);

// Returns a storage of that size without memory.
c10::Storage EmptyStorage(int64_t bytes, c10::Device device);

// Returns a contiguous tensor over `storage` that is a view of nothing.
at::Tensor LeafOver(const c10::Storage& storage, at::ScalarType dtype, c10::Device device,
                    int64_t offset, at::IntArrayRef sizes);

// Waits for the work, if there is one, and forgets it.
void WaitFor(c10::intrusive_ptr<c10d::Work>& work);

}  // namespace lockstep::sharding

#endif  // LOCKSTEP_SHARDING_FULLY_SHARD_FLAT_MEMORY_H_
