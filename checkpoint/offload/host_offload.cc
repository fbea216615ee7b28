#include "checkpoint/offload/host_offload.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/grad_mode.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/torch/is_parameter.h"
#include "c10/core/InferenceMode.h"
#include "c10/util/Exception.h"
#include "checkpoint/offload/offloaded_tensor.h"

namespace lockstep::checkpoint {
namespace {}  // namespace

class OffloadHooks : public torch::autograd::SavedVariableHooks {
 public:
  OffloadHooks(std::shared_ptr<HostOffload> offload, int64_t region)
      : offload_(std::move(offload)), region_(region) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    // Tensors made here must work with autograd, in whatever mode the saved tensor is packed.
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
  TORCH_CHECK_VALUE(options.max_host_bytes >= 0,
                    "checkpoint: max_host_bytes must not be below 0, but is ",
                    options.max_host_bytes);
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

void HostOffload::KeepOnDevice(const std::vector<at::Tensor>& tensors) {
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  for (const at::Tensor& tensor : tensors)
    if (tensor.defined() && tensor.has_storage())
      kept_.try_emplace(tensor.storage().unsafeGetStorageImpl(),
                        tensor.storage().getWeakStorageImpl());
}

OffloadStats HostOffload::stats() const {
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  OffloadStats stats{.offloaded_bytes = offloaded_bytes_, .restored_bytes = restored_bytes_};
  stats.refused_bytes = refused_bytes_;
  stats.failed_prefetches = failed_prefetches_;
  stats.failed_waits = failed_waits_;
  for (const CopyPath& path : {cpu_, accelerator_}) {
    if (path.pool == nullptr) continue;
    const HostMemoryPool::Usage usage = path.pool->usage();
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
  if (base::IsOfParameter(tensor)) return false;
  return CanComeBack(tensor) && HostBytes(tensor) >= std::max<int64_t>(options_.min_bytes, 1);
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
  if (kept_.count(tensor.storage().unsafeGetStorageImpl()) > 0) return nullptr;
  if (same.first == same.second && StaysAnyway(tensor)) return nullptr;
  const CopyPath& path = CopyPathOf(tensor.device());
  auto offloaded =
      std::make_shared<OffloadedTensor>(shared_from_this(), path.engine, tensor, region);
  absl::StatusOr<HostMemoryPool::Block> block = path.pool->Take(offloaded->bytes());
  if (absl::IsOutOfRange(block.status())) {
    refused_bytes_ += offloaded->bytes();
    return nullptr;
  }
  TORCH_CHECK(block.ok(), std::string(block.status().message()));
  offloaded->CopyToHost(tensor, *std::move(block));
  offloaded_bytes_ += offloaded->bytes();
  offloaded->in_regions = by_region_.emplace_hint(by_region_.end(), region, offloaded.get());
  by_storage_.emplace(offloaded->storage(), offloaded.get());
  // The tensors of the newest keep_last regions stay.
  on_device_.push_back(offloaded);
  while (!on_device_.empty()) {
    const std::shared_ptr<OffloadedTensor> oldest = on_device_.front().lock();
    if (oldest != nullptr && oldest->region() > region - options_.keep_last) break;
    if (oldest != nullptr) oldest->LeaveDevice();
    on_device_.pop_front();
  }
  return offloaded;
}

// Returns whether the tensor was offloaded before and is still alive on its device, unchanged. A
// second copy would not free memory. Activations are new in each forward pass.
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
    if (region != offloaded.region() && !next->second->Prefetch()) ++failed_prefetches_;
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

const HostOffload::CopyPath& HostOffload::CopyPathOf(at::Device device) {
  CopyPath& path = device.is_cpu() ? cpu_ : accelerator_;
  if (path.pool == nullptr) {
    path.engine = options_.engine != nullptr ? options_.engine
                  : device.is_cpu()          ? base::PlainCopies()
                                             : base::AcceleratorCopies();
    path.pool =
        std::make_shared<HostMemoryPool>(path.engine->host_memory(), options_.max_host_bytes);
  }
  return path;
}

void SaveOnHost(HostOffload& offload, const std::function<void()>& function) {
  const ScopedHooks hooks(offload.HooksOfEach());
  function();
}

}  // namespace lockstep::checkpoint
