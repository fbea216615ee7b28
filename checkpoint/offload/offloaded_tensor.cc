#include "checkpoint/offload/offloaded_tensor.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <utility>

#include "ATen/EmptyTensor.h"
#include "ATen/ops/from_blob.h"
#include "c10/core/TensorOptions.h"
#include "c10/util/Exception.h"
#include "checkpoint/offload/host_offload.h"
#include "checkpoint/region/engine.h"

// The order of streams. F is the stream that forward saves on, S a stream for copies, C a stream
// that computes in backward. Each thread has its own S and C.
//
//    store     S waits for F, copies to the host and records `copied`. The tensor is held. When it
//              is given up, F waits for `copied`, because F owns the memory and may write to it at
//              once.
//    restore   C allocates. S waits for C and for `copied`, copies back and records `ready`. A
//              prefetch does this while C works on another region.
//    use       C waits for `ready`. If another stream owns the memory, the allocator learns that C
//              uses it too. The owner may not write to it before C has finished.
//    give up   If a restored tensor was not used, its owner waits for `ready`.
//
// The host waits for no event. The pool asks a block's events before it reuses the block.
// copy_order_test.cc tries all orders in which the streams may run.

namespace lockstep::checkpoint {
namespace {

constexpr int64_t kAlignment = 64;

// Elements from the first that the tensor touches to the last.
int64_t SpanOf(at::IntArrayRef sizes, at::IntArrayRef strides) {
  int64_t span = 1;
  for (size_t i = 0; i < sizes.size(); ++i) span += (sizes[i] - 1) * strides[i];
  return span;
}

bool IsPacked(const at::Tensor& tensor) {
  return SpanOf(tensor.sizes(), tensor.strides()) > tensor.numel();
}

int64_t HostElements(const at::Tensor& tensor) {
  return std::min(SpanOf(tensor.sizes(), tensor.strides()), tensor.numel());
}

// Whether two of its elements may be one in memory.
bool MayOverlap(const at::Tensor& tensor) {
  std::vector<std::pair<int64_t, int64_t>> dims;  // stride, size
  for (int64_t dim = 0; dim < tensor.dim(); ++dim)
    if (tensor.size(dim) > 1) dims.emplace_back(tensor.stride(dim), tensor.size(dim));
  std::sort(dims.begin(), dims.end());
  int64_t span = 1;
  for (const auto& [stride, size] : dims) {
    if (stride < span) return true;
    span += (size - 1) * stride;
  }
  return false;
}

}  // namespace

int64_t HostBytes(const at::Tensor& tensor) {
  return HostElements(tensor) * static_cast<int64_t>(tensor.itemsize());
}

bool CanComeBack(const at::Tensor& tensor) { return !IsPacked(tensor) || !MayOverlap(tensor); }

OffloadedTensor::OffloadedTensor(std::shared_ptr<HostOffload> offload,
                                 std::shared_ptr<base::CopyEngine> engine, const at::Tensor& tensor,
                                 int64_t region)
    : in_regions(offload->by_region_.end()),
      offload_(std::move(offload)),
      engine_(std::move(engine)),
      region_(region),
      device_(tensor.device()),
      dtype_(tensor.dtype()),
      sizes_(tensor.sizes()),
      strides_(tensor.strides()),
      offset_(tensor.storage_offset()),
      begin_(offset_ * static_cast<int64_t>(dtype_.itemsize())),
      end_(begin_ + SpanOf(sizes_, strides_) * static_cast<int64_t>(dtype_.itemsize())),
      is_packed_(IsPacked(tensor)),
      num_elements_(HostElements(tensor)),
      storage_(tensor.storage().unsafeGetStorageImpl()),
      original_(tensor.storage().getWeakStorageImpl()),
      counter_(tensor.unsafeGetTensorImpl()->version_counter()),
      version_(counter_.current_version()),
      forward_(engine_->Current(device_)),
      owner_(forward_) {}

OffloadedTensor::~OffloadedTensor() {
  const std::lock_guard<std::recursive_mutex> lock(offload_->mutex_);
  offload_->Forget(*this);
  // After an error of the device, which every other call reports, no stream can be made to wait.
  try {
    LeaveDevice();
  } catch (const std::exception&) {
    ++offload_->failed_waits_;
  }
}

bool OffloadedTensor::StandsFor(const at::Tensor& tensor) const {
  return tensor.storage().unsafeGetStorageImpl() == storage_ && tensor.dtype() == dtype_ &&
         tensor.sizes() == at::IntArrayRef(sizes_) &&
         tensor.strides() == at::IntArrayRef(strides_) && tensor.storage_offset() == offset_ &&
         !IsModified() && static_cast<uint32_t>(tensor._version()) == version_;
}

// Between the tensor on its device and the host.
void OffloadedTensor::Copy(const at::Tensor& tensor, bool to_host, c10::Stream copies) const {
  const at::TensorOptions options = at::TensorOptions(at::kCPU).dtype(dtype_);
  const at::IntArrayRef sizes = is_packed_ ? at::IntArrayRef(sizes_) : num_elements_;
  const at::Tensor host = at::from_blob(block_.data(), sizes, options);
  const at::Tensor flat =
      is_packed_ ? tensor : tensor.as_strided({num_elements_}, {1}, tensor.storage_offset());
  engine_->Copy(to_host ? host : flat, to_host ? flat : host, copies);
}

void OffloadedTensor::ReturnBlockWhenUnused() {
  std::erase_if(block_uses_,
                [](const base::EventPointer& e) { return e == nullptr || e->IsFinished(); });
  if (block_uses_.empty()) return block_.ReturnWhen(nullptr);
  block_.ReturnWhen([uses = block_uses_] {
    return std::all_of(uses.begin(), uses.end(), [](const auto& e) { return e->IsFinished(); });
  });
}

void OffloadedTensor::CopyToHost(const at::Tensor& tensor, HostMemoryPool::Block block) {
  block_ = std::move(block);
  const c10::Stream copies = engine_->Copies(device_);
  engine_->MakeWait(copies, engine_->Record(forward_));
  Copy(tensor, /*to_host=*/true, copies);
  copied_ = engine_->Record(copies);
  block_uses_ = {copied_};
  ReturnBlockWhenUnused();
  Hold(Alias(tensor), forward_, copied_);
}

void OffloadedTensor::Hold(at::Tensor tensor, c10::Stream owner, base::EventPointer ready) {
  on_device_ = std::move(tensor);
  on_device_version_ = static_cast<uint32_t>(on_device_._version());
  owner_ = owner;
  ready_ = std::move(ready);
}

void OffloadedTensor::LeaveDevice() {
  const at::Tensor tensor = std::exchange(on_device_, at::Tensor());
  if (tensor.defined()) engine_->MakeWait(owner_, ready_);
}

at::Tensor OffloadedTensor::At(c10::Storage storage, int64_t offset) const {
  const c10::DispatchKey key = c10::computeDispatchKey(c10::typeMetaToScalarType(dtype_),
                                                       /*layout=*/std::nullopt, device_);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage),
                                                               c10::DispatchKeySet(key), dtype_);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes_, strides_, offset);
  return tensor;
}

// For a tensor that is still alive.
at::Tensor OffloadedTensor::Original() const {
  c10::intrusive_ptr<c10::StorageImpl> storage = original_.lock();
  if (storage == nullptr) return {};
  at::Tensor tensor = At(c10::Storage(std::move(storage)), offset_);
  tensor.unsafeGetTensorImpl()->set_version_counter(counter_);
  return tensor;
}

// All that overlap with this tensor, or with one that does, and so on: their common memory is never
// more than they would take one by one. They are copied one after the other, since two streams that
// write to the same elements would have no order. It begins where the elements keep the alignment
// that they had.
OffloadedTensor::Group OffloadedTensor::WithOverlapping() {
  Group group{{this}, begin_, end_};
  const auto of_storage = offload_->by_storage_.equal_range(storage_);
  for (bool has_grown = true; has_grown;) {
    has_grown = false;
    for (auto entry = of_storage.first; entry != of_storage.second; ++entry) {
      OffloadedTensor* const other = entry->second;
      if (other->on_device_.defined() || other->IsModified() || other->begin_ >= group.end ||
          other->end_ <= group.begin ||
          std::find(group.members.begin(), group.members.end(), other) != group.members.end())
        continue;
      group.members.push_back(other);
      group.begin = std::min(group.begin, other->begin_);
      group.end = std::max(group.end, other->end_);
      has_grown = true;
    }
  }
  group.begin = group.begin / kAlignment * kAlignment;
  return group;
}

// The members hold their tensors until each is asked for.
void OffloadedTensor::CopyToDevice(const Group& group, const c10::Storage& storage) {
  const c10::Stream owner = engine_->Current(device_);
  const c10::Stream copies = engine_->Copies(device_);
  engine_->MakeWait(copies, engine_->Record(owner));
  std::vector<at::Tensor> tensors;
  for (const OffloadedTensor* member : group.members) {
    const auto itemsize = static_cast<int64_t>(member->dtype_.itemsize());
    tensors.push_back(member->At(storage, member->offset_ - group.begin / itemsize));
    engine_->MakeWait(copies, member->copied_);
    member->Copy(tensors.back(), /*to_host=*/false, copies);
  }
  const base::EventPointer restored = engine_->Record(copies);
  for (size_t i = 0; i < tensors.size(); ++i) {
    OffloadedTensor& member = *group.members[i];
    member.block_uses_.push_back(restored);
    member.ReturnBlockWhenUnused();
    member.Hold(tensors[i], owner, restored);
    offload_->restored_bytes_ += member.bytes();
  }
}

bool OffloadedTensor::Prefetch() {
  if (on_device_.defined() || !original_.expired() || IsModified()) return true;
  const Group group = WithOverlapping();
  c10::Storage storage;
  try {
    storage = engine_->Allocate(device_, group.end - group.begin);
  } catch (const c10::Error&) {
    return false;  // the tensor's own turn comes, when other memory may have been freed
  }
  CopyToDevice(group, storage);
  return true;
}

at::Tensor OffloadedTensor::OnDevice() {
  TORCH_CHECK(!IsModified(),
              "checkpoint: a tensor that is offloaded was modified in place after it was saved for "
              "backward (it is at version ",
              counter_.current_version(), ", expected ", version_,
              "); use an operator that is not in place");
  if (on_device_.defined() && static_cast<uint32_t>(on_device_._version()) != on_device_version_)
    LeaveDevice();
  if (!on_device_.defined()) {
    if (at::Tensor original = Original(); original.defined()) {
      Hold(std::move(original), forward_, copied_);
    } else {
      const Group group = WithOverlapping();
      CopyToDevice(group, engine_->Allocate(device_, group.end - group.begin));
    }
  }
  const c10::Stream stream = engine_->Current(device_);
  engine_->MakeWait(stream, ready_);
  if (stream != owner_) engine_->AlsoUsedBy(on_device_.storage(), stream);
  // A tensor that several regions share stays for the next one. The original stays for another
  // backward call.
  if (is_shared_ || on_device_.storage().unsafeGetStorageImpl() == storage_)
    return Alias(on_device_);
  return std::exchange(on_device_, at::Tensor());
}

}  // namespace lockstep::checkpoint
