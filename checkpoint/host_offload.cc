#include "checkpoint/host_offload.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/DimVector.h"
#include "ATen/EmptyTensor.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty_strided.h"
#include "ATen/ops/from_blob.h"
#include "absl/status/statusor.h"
#include "c10/core/Event.h"
#include "c10/core/InferenceMode.h"
#include "c10/core/StreamGuard.h"
#include "c10/core/TensorOptions.h"
#include "c10/core/impl/VirtualGuardImpl.h"
#include "c10/util/Exception.h"
#include "checkpoint/pinned_memory.h"

// What is copied is the stretch of memory that a tensor spans, as one piece, so that a view comes
// back with its strides and an expanded mask costs what it holds; a view that spans much more than
// it holds is packed instead. A tensor is known by its storage, which a weak reference keeps from
// being another's under the same address, and by its version.
//
// On an accelerator: forward's stream C, and a stream S for copies.
//   store    S waits for C, copies to the host, records `copied`; the tensor is held. When
//            `keep_last` regions have come after, C waits for `copied` and the tensor is dropped:
//            its memory is free for what C does next, and the wait is over long before C is there.
//   restore  C allocates; S waits for C, copies back, records `restored`; C waits for that. Ahead
//            of its use this runs beside the region that C works on.
// No event is waited for by the host; a block of the pool asks its events before it is reused.

namespace lockstep::checkpoint {
namespace {

using EventPointer = std::shared_ptr<c10::Event>;

c10::Stream CurrentStream(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

// Of this thread and device. Copies in both directions take turns on it.
c10::Stream CopyStream(at::Device device) {
  thread_local std::map<at::DeviceIndex, c10::Stream> streams;
  const auto found = streams.find(device.index());
  if (found != streams.end()) return found->second;
  const c10::Stream stream =
      c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  return streams.emplace(device.index(), stream).first->second;
}

EventPointer Record(c10::Stream stream) {
  auto event = std::make_shared<c10::Event>(stream.device_type());
  event->record(stream);
  return event;
}

// On the stream for copies, after what the current stream has been given. Returns the copy's event.
EventPointer CopyAside(const at::Tensor& to, const at::Tensor& from, at::Device device) {
  const c10::Stream copies = CopyStream(device);
  Record(CurrentStream(device))->block(copies);
  const c10::StreamGuard guard(copies);
  to.copy_(from, /*non_blocking=*/true);
  return Record(copies);
}

// Elements from the first that the tensor touches to the last.
int64_t SpanOf(at::IntArrayRef sizes, at::IntArrayRef strides) {
  int64_t span = 1;
  for (size_t i = 0; i < sizes.size(); ++i) span += (sizes[i] - 1) * strides[i];
  return span;
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

bool IsParameter(const at::TensorBase& tensor) {
  return tensor.is_leaf() && tensor.requires_grad();
}

}  // namespace

// One tensor of a graph, somewhere between device and host. All under the mutex of its HostOffload.
class OffloadedTensor : public std::enable_shared_from_this<OffloadedTensor> {
 public:
  OffloadedTensor(std::shared_ptr<HostOffload> offload, const at::Tensor& tensor, int64_t region);
  ~OffloadedTensor();
  OffloadedTensor(const OffloadedTensor&) = delete;
  OffloadedTensor& operator=(const OffloadedTensor&) = delete;

  // Whether it stands for just this tensor, as it is now.
  bool StandsFor(const at::Tensor& tensor) const;

  void CopyToHost(const at::Tensor& tensor, HostPool::Block block);
  // The tensor on its device, from where it is cheapest.
  at::Tensor OnDevice();
  void Prefetch();
  void LeaveDevice();
  void Share() { is_shared_ = true; }

  std::multimap<int64_t, OffloadedTensor*>::iterator in_regions;  // the end: not there yet

  int64_t region() const { return region_; }
  int64_t bytes() const { return num_elements_ * static_cast<int64_t>(dtype_.itemsize()); }
  const c10::StorageImpl* storage() const { return storage_; }

 private:
  EventPointer Copy(const at::Tensor& tensor, bool to_host) const;
  bool OriginalIsThere() const;
  at::Tensor Original() const;
  at::Tensor CopyToDevice();
  void Hold(at::Tensor tensor);
  void WaitForRestored();

  const std::shared_ptr<HostOffload> offload_;
  const int64_t region_;
  const at::Device device_;
  const caffe2::TypeMeta dtype_;
  const at::DimVector sizes_;
  const at::DimVector strides_;
  const int64_t offset_;
  const bool is_packed_;        // the host holds the elements in order, not the span
  const int64_t num_elements_;  // on the host

  const c10::StorageImpl* const storage_;
  const c10::weak_intrusive_ptr<c10::StorageImpl> original_;
  const c10::VariableVersion counter_;
  const uint32_t version_;

  HostPool::Block block_;
  at::Tensor on_device_;               // held after forward, prefetched, or shared by regions
  uint32_t on_device_version_ = 0;     // of on_device_: another one means that it was modified
  std::optional<c10::Stream> stream_;  // that forward ran on
  EventPointer copied_;
  EventPointer restored_;
  bool is_shared_ = false;
  bool is_spoiled_ = false;  // modified while it was copied
};

namespace {

bool IsPacked(const at::Tensor& tensor) {
  return SpanOf(tensor.sizes(), tensor.strides()) > tensor.numel();
}

int64_t HostElements(const at::Tensor& tensor) {
  return std::min(SpanOf(tensor.sizes(), tensor.strides()), tensor.numel());
}

}  // namespace

OffloadedTensor::OffloadedTensor(std::shared_ptr<HostOffload> offload, const at::Tensor& tensor,
                                 int64_t region)
    : in_regions(offload->by_region_.end()),
      offload_(std::move(offload)),
      region_(region),
      device_(tensor.device()),
      dtype_(tensor.dtype()),
      sizes_(tensor.sizes()),
      strides_(tensor.strides()),
      offset_(tensor.storage_offset()),
      is_packed_(IsPacked(tensor)),
      num_elements_(HostElements(tensor)),
      storage_(tensor.storage().unsafeGetStorageImpl()),
      original_(tensor.storage().getWeakStorageImpl()),
      counter_(tensor.unsafeGetTensorImpl()->version_counter()),
      version_(counter_.current_version()) {}

OffloadedTensor::~OffloadedTensor() {
  const std::lock_guard<std::recursive_mutex> lock(offload_->mutex_);
  offload_->Forget(*this);
  WaitForRestored();
  LeaveDevice();
}

bool OffloadedTensor::StandsFor(const at::Tensor& tensor) const {
  return tensor.storage().unsafeGetStorageImpl() == storage_ && tensor.dtype() == dtype_ &&
         tensor.sizes() == at::IntArrayRef(sizes_) &&
         tensor.strides() == at::IntArrayRef(strides_) && tensor.storage_offset() == offset_ &&
         counter_.current_version() == version_ &&
         static_cast<uint32_t>(tensor._version()) == version_;
}

// Between the tensor on its device and the host. Returns the copy's event; nullptr on the CPU,
// where it is done.
EventPointer OffloadedTensor::Copy(const at::Tensor& tensor, bool to_host) const {
  if (device_.is_cpu() && !is_packed_) {
    void* const on_device = tensor.data_ptr();
    std::memcpy(to_host ? block_.data() : on_device, to_host ? on_device : block_.data(), bytes());
    return nullptr;
  }
  const at::TensorOptions options = at::TensorOptions(at::kCPU).dtype(dtype_);
  const at::IntArrayRef sizes = is_packed_ ? at::IntArrayRef(sizes_) : num_elements_;
  const at::Tensor host = at::from_blob(block_.data(), sizes, options);
  const at::Tensor flat =
      is_packed_ ? tensor : tensor.as_strided({num_elements_}, {1}, tensor.storage_offset());
  const at::Tensor& to = to_host ? host : flat;
  const at::Tensor& from = to_host ? flat : host;
  if (!device_.is_cpu()) return CopyAside(to, from, device_);
  to.copy_(from);
  return nullptr;
}

void OffloadedTensor::CopyToHost(const at::Tensor& tensor, HostPool::Block block) {
  block_ = std::move(block);
  Hold(Alias(tensor));
  if (!device_.is_cpu()) stream_ = CurrentStream(device_);
  copied_ = Copy(on_device_, /*to_host=*/true);
  if (copied_ != nullptr) block_.ReturnWhen([event = copied_] { return event->query(); });
}

// Whoever has the memory next runs after the copies that read it, or wrote it.
void OffloadedTensor::LeaveDevice() {
  if (!on_device_.defined()) return;
  if (copied_ != nullptr && stream_.has_value()) {
    copied_->block(*stream_);
    // The copy may have read before the change or after: as autograd does, we refuse.
    is_spoiled_ |= counter_.current_version() != version_;
  }
  on_device_.reset();
}

void OffloadedTensor::WaitForRestored() {
  if (restored_ == nullptr) return;
  restored_->block(CurrentStream(device_));
  restored_.reset();
}

bool OffloadedTensor::OriginalIsThere() const {
  return !original_.expired() && counter_.current_version() == version_;
}

// Where somebody holds it still, as it was.
at::Tensor OffloadedTensor::Original() const {
  c10::intrusive_ptr<c10::StorageImpl> storage = original_.lock();
  if (storage == nullptr || counter_.current_version() != version_) return {};
  const c10::DispatchKey key = c10::computeDispatchKey(c10::typeMetaToScalarType(dtype_),
                                                       /*layout=*/std::nullopt, device_);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)),
                                                               c10::DispatchKeySet(key), dtype_);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes_, strides_, offset_);
  tensor.unsafeGetTensorImpl()->set_version_counter(counter_);
  return tensor;
}

void OffloadedTensor::Hold(at::Tensor tensor) {
  on_device_ = std::move(tensor);
  on_device_version_ = static_cast<uint32_t>(on_device_._version());
}

at::Tensor OffloadedTensor::CopyToDevice() {
  // Backward may run on another stream than forward did.
  if (copied_ != nullptr) copied_->block(CurrentStream(device_));
  const at::ScalarType dtype = c10::typeMetaToScalarType(dtype_);
  at::Tensor tensor = device_.is_cpu()
                          ? at::Tensor(at::detail::empty_strided_cpu(sizes_, strides_, dtype))
                          : at::empty_strided(sizes_, strides_, at::device(device_).dtype(dtype));
  restored_ = Copy(tensor, /*to_host=*/false);
  if (restored_ != nullptr)
    block_.ReturnWhen([first = copied_, last = restored_] {
      return (first == nullptr || first->query()) && last->query();
    });
  offload_->restored_bytes_ += bytes();
  return tensor;
}

void OffloadedTensor::Prefetch() {
  if (!on_device_.defined() && !OriginalIsThere()) Hold(CopyToDevice());
}

at::Tensor OffloadedTensor::OnDevice() {
  if (on_device_.defined() && static_cast<uint32_t>(on_device_._version()) != on_device_version_)
    LeaveDevice();
  TORCH_CHECK(!is_spoiled_,
              "checkpoint: a tensor that is offloaded was modified in place after it was saved "
              "for backward; use an operator that is not in place");
  at::Tensor tensor = std::move(on_device_);
  if (!tensor.defined()) tensor = Original();
  if (!tensor.defined()) tensor = CopyToDevice();
  WaitForRestored();
  // What several regions share stays for the next. The original stays for another backward call.
  if (!is_shared_ && tensor.storage().unsafeGetStorageImpl() != storage_) return tensor;
  Hold(tensor);
  return Alias(tensor);
}

// --- HostOffload
// ------------------------------------------------------------------------------------

class OffloadHooks : public torch::autograd::SavedVariableHooks {
 public:
  OffloadHooks(std::shared_ptr<HostOffload> offload, int64_t region)
      : offload_(std::move(offload)), region_(region) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    // What is made here must serve autograd, wherever the saved tensor is packed.
    const c10::InferenceMode no_inference(false);
    const at::NoGradGuard no_grad;
    if (offload_->Takes(tensor)) offloaded_ = offload_->Store(tensor, region_);
    if (offloaded_ != nullptr) return;
    kept_ = Alias(tensor);
    version_ = static_cast<uint32_t>(tensor._version());
  }

  at::Tensor call_unpack_hook() override {
    if (offloaded_ != nullptr) {
      const c10::InferenceMode no_inference(false);
      const at::NoGradGuard no_grad;
      return offload_->Restore(*offloaded_);
    }
    TORCH_CHECK(static_cast<uint32_t>(kept_._version()) == version_,
                "checkpoint: a tensor that backward needs was modified in place after it was saved "
                "(it is at version ",
                kept_._version(), ", expected ", version_, ")");
    return kept_;
  }

 private:
  const std::shared_ptr<HostOffload> offload_;
  const int64_t region_;
  std::shared_ptr<OffloadedTensor> offloaded_;
  at::Tensor kept_;
  uint32_t version_ = 0;
};

std::shared_ptr<HostOffload> HostOffload::New(const OffloadOptions& options) {
  TORCH_CHECK_VALUE(options.keep_last >= 0 && options.prefetch >= 0 && options.min_bytes >= 0,
                    "checkpoint: keep_last, prefetch and min_bytes must not be below 0, but are ",
                    options.keep_last, ", ", options.prefetch, " and ", options.min_bytes);
  return std::shared_ptr<HostOffload>(new HostOffload(options));
}

int64_t HostOffload::NextRegion() {
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  return next_region_++;
}

MakeHooks HostOffload::HooksOfRegion() {
  return [self = shared_from_this(), region = NextRegion()] {
    return std::make_unique<OffloadHooks>(self, region);
  };
}

MakeHooks HostOffload::HooksOfEach() {
  return [self = shared_from_this()] {
    return std::make_unique<OffloadHooks>(self, self->NextRegion());
  };
}

OffloadStats HostOffload::stats() const {
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  OffloadStats stats{.offloaded_bytes = offloaded_bytes_, .restored_bytes = restored_bytes_};
  for (const auto& pool : {pageable_, pinned_}) {
    if (pool == nullptr) continue;
    const HostPool::Usage usage = pool->usage();
    stats.host_bytes += usage.bytes;
    stats.peak_host_bytes += usage.peak_bytes;
    stats.pool_allocations += usage.allocations;
  }
  return stats;
}

bool HostOffload::Takes(const at::Tensor& tensor) const {
  if (tensor.layout() != at::kStrided || !tensor.has_storage() || tensor.is_meta() ||
      tensor.is_quantized() || tensor.is_conj() || tensor.is_neg() || tensor.is_inference() ||
      tensor.numel() == 0)
    return false;
  if (IsParameter(tensor) || (tensor.is_view() && IsParameter(tensor._base()))) return false;
  // Packed elements that lie upon each other could not be written back.
  if (IsPacked(tensor) && MayOverlap(tensor)) return false;
  return HostElements(tensor) * static_cast<int64_t>(tensor.itemsize()) >=
         std::max<int64_t>(options_.min_bytes, 1);
}

std::shared_ptr<OffloadedTensor> HostOffload::Store(const at::Tensor& tensor, int64_t region) {
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  const auto same = by_storage_.equal_range(tensor.storage().unsafeGetStorageImpl());
  for (auto entry = same.first; entry != same.second; ++entry) {
    if (!entry->second->StandsFor(tensor)) continue;
    // None: on another thread it is about to end.
    std::shared_ptr<OffloadedTensor> offloaded = entry->second->weak_from_this().lock();
    if (offloaded == nullptr) continue;
    offloaded->Share();
    return offloaded;
  }
  if (same.first == same.second && StaysAnyway(tensor)) return nullptr;
  auto offloaded = std::make_shared<OffloadedTensor>(shared_from_this(), tensor, region);
  absl::StatusOr<HostPool::Block> block = PoolFor(tensor.device())->Take(offloaded->bytes());
  TORCH_CHECK(block.ok(), std::string(block.status().message()));
  offloaded->CopyToHost(tensor, *std::move(block));
  offloaded_bytes_ += offloaded->bytes();
  offloaded->in_regions = by_region_.emplace_hint(by_region_.end(), region, offloaded.get());
  by_storage_.emplace(offloaded->storage(), offloaded.get());
  // Of the newest keep_last regions the tensors stay.
  on_device_.push_back(offloaded);
  while (!on_device_.empty()) {
    const std::shared_ptr<OffloadedTensor> oldest = on_device_.front().lock();
    if (oldest != nullptr && oldest->region() > region - options_.keep_last) break;
    if (oldest != nullptr) oldest->LeaveDevice();
    on_device_.pop_front();
  }
  return offloaded;
}

// Of a tensor whose copies are all gone: whether there was one, and somebody has kept the tensor on
// its device since, so that another gains no memory. Activations are new in each forward pass.
bool HostOffload::StaysAnyway(const at::Tensor& tensor) {
  if (tensor.requires_grad()) return false;
  const auto version = static_cast<uint32_t>(tensor._version());
  const c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  // A weak reference keeps the address from being another's.
  const auto [entry, is_new] =
      seen_.try_emplace(storage, Seen{tensor.storage().getWeakStorageImpl(), version});
  if (!is_new) return std::exchange(entry->second.version, version) == version;
  if (seen_.size() > sweep_seen_at_) {
    for (auto it = seen_.begin(); it != seen_.end();)
      it = it->second.storage.expired() ? seen_.erase(it) : std::next(it);
    sweep_seen_at_ = 64 + 2 * seen_.size();
  }
  return false;
}

at::Tensor HostOffload::Restore(OffloadedTensor& offloaded) {
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  at::Tensor tensor = offloaded.OnDevice();
  PrefetchBefore(offloaded);
  return tensor;
}

void HostOffload::PrefetchBefore(const OffloadedTensor& offloaded) {
  int64_t regions = 0;
  int64_t region = offloaded.region();
  for (auto next = offloaded.in_regions; next != by_region_.begin();) {
    --next;
    if (next->first != region && ++regions > options_.prefetch) return;
    region = next->first;
    if (region != offloaded.region()) next->second->Prefetch();
  }
}

void HostOffload::Forget(const OffloadedTensor& offloaded) {
  if (offloaded.in_regions != by_region_.end()) by_region_.erase(offloaded.in_regions);
  const auto of_storage = by_storage_.equal_range(offloaded.storage());
  for (auto entry = of_storage.first; entry != of_storage.second; ++entry) {
    if (entry->second != &offloaded) continue;
    by_storage_.erase(entry);
    break;
  }
}

std::shared_ptr<HostPool> HostOffload::PoolFor(at::Device device) {
  std::shared_ptr<HostPool>& pool = device.is_cpu() ? pageable_ : pinned_;
  if (pool == nullptr)
    pool = std::make_shared<HostPool>(device.is_cpu() ? PageableMemory() : PinnedMemory());
  return pool;
}

void SaveOnHost(HostOffload& offload, const std::function<void()>& function) {
  const ScopedHooks hooks(offload.HooksOfEach());
  function();
}

}  // namespace lockstep::checkpoint
