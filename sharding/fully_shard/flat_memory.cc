#include "sharding/fully_shard/flat_memory.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "ATen/ops/empty.h"
#include "c10/core/StorageImpl.h"

namespace lockstep::sharding {

at::Tensor ViewOf(const at::Tensor& slot, int64_t elements, at::ScalarType dtype) {
  return slot.narrow(0, 0, BytesOf(elements, dtype)).view(dtype);
}

int64_t VersionOf(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

void SetVersion(const at::Tensor& tensor, int64_t version) {
  c10::VariableVersion counter = tensor.unsafeGetTensorImpl()->version_counter();
  counter.set_version(version);
}

c10::Storage EmptyStorage(int64_t bytes, c10::Device device) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, c10::DataPtr(nullptr, device),
      /*allocator=*/nullptr, /*resizable=*/false));
}

at::Tensor LeafOver(const c10::Storage& storage, at::ScalarType dtype, c10::Device device,
                    int64_t offset, at::IntArrayRef sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= std::max<int64_t>(sizes[d], 1);
  }
  return at::empty({0}, at::TensorOptions().dtype(dtype).device(device))
      .set_(storage, offset, sizes, strides);
}

void WaitFor(c10::intrusive_ptr<c10d::Work>& work) {
  if (work == nullptr) return;
  const c10::intrusive_ptr<c10d::Work> waiting = std::exchange(work, nullptr);
  waiting->wait();
}

}  // namespace lockstep::sharding
