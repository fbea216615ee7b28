// Saved tensors that wait for backward in host memory, copied while the device computes.
//
//   auto offload = HostOffload::New({.keep_last = 1, .prefetch = 1});
//   Checkpoint checkpoint({.offload = offload});          // the inputs of its regions
//   SaveOnHost(*offload, [&] { loss = model(batch); });   // or every tensor saved in a function
//
// A copy runs on a stream of its own, after what computes the tensor and beside what follows. The
// newest `keep_last` regions keep theirs on the device: backward begins with them. Restoring the
// tensors of one region starts the copies of the `prefetch` regions before it. No call waits for
// the device: streams wait for events, and host memory returns to its pool when its copies are
// through.
//
// Not copied are tensors below min_bytes, parameters (leaves that require a gradient) and their
// views. A tensor without history that comes again after it was released, unchanged, is not
// copied again: somebody keeps it on the device, as frozen weights, buffers and tables are kept.
// Tensors that KeepOnDevice names are never copied: it saves that first copy. A
// tensor that several regions share, a mask for instance, is copied once; and whoever still holds
// the original on the device keeps it from being copied back. Views keep their strides, and those
// that overlapped come back into one storage. A tensor that is modified in place after it was saved
// is an error when backward needs it, as it is to autograd.
//
// A prefetch for which the device has no memory is counted, and the tensor comes when it is needed.
//
// On the CPU all of this is done with plain copies. Thread-safe.

#ifndef LOCKSTEP_CHECKPOINT_OFFLOAD_HOST_OFFLOAD_H_
#define LOCKSTEP_CHECKPOINT_OFFLOAD_HOST_OFFLOAD_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "checkpoint/offload/copy_engine.h"
#include "checkpoint/offload/host_pool.h"
#include "checkpoint/region/engine.h"

namespace lockstep::checkpoint {

struct OffloadOptions {
  int64_t keep_last = 1;     // regions
  int64_t prefetch = 1;      // regions
  int64_t min_bytes = 1024;  // of a tensor
  // The limit on host memory, for tensors of the CPU and for those of accelerators. A tensor beyond
  // it stays on its device and is counted.
  int64_t max_host_bytes = INT64_MAX;
  // Does the copies. Null: the engine of the tensor's device.
  std::shared_ptr<CopyEngine> engine = nullptr;
};

struct OffloadStats {
  int64_t offloaded_bytes = 0;   // copied to the host
  int64_t restored_bytes = 0;    // copied back
  int64_t host_bytes = 0;        // of host memory held now
  int64_t peak_host_bytes = 0;   // the most so far
  int64_t pool_allocations = 0;  // of host memory; stands still once warm
  int64_t refused_bytes = 0;     // stayed on their device, since max_host_bytes was reached
  // Prefetches for which the device had no memory: their tensors came when they were needed.
  int64_t failed_prefetches = 0;
  // Tensors that were dropped when the device had failed, so that no stream could be made to wait.
  int64_t failed_waits = 0;
};

class OffloadedTensor;

class HostOffload : public std::enable_shared_from_this<HostOffload> {
 public:
  // Throws c10::ValueError where an option is below 0.
  static std::shared_ptr<HostOffload> New(const OffloadOptions& options);

  // Hooks that offload what is saved, as the tensors of one region.
  MakeHooks HooksOfRegion();
  // The same, each tensor being a region by itself.
  MakeHooks HooksOfEach();

  // Never copies the tensors, and what shares their memory: they stay on their device for other
  // reasons, as frozen weights do.
  void KeepOnDevice(const std::vector<at::Tensor>& tensors);

  OffloadStats stats() const;

 private:
  friend class OffloadedTensor;
  friend class OffloadHooks;
  explicit HostOffload(const OffloadOptions& options) : options_(options) {}

  bool Takes(const at::Tensor& tensor) const;
  bool StaysAnyway(const at::Tensor& tensor);
  // Null: it stays on the device.
  std::shared_ptr<OffloadedTensor> Store(const at::Tensor& tensor, int64_t region);
  at::Tensor Restore(OffloadedTensor& offloaded);
  void PrefetchBefore(const OffloadedTensor& offloaded);
  void Forget(const OffloadedTensor& offloaded);
  // Where tensors of a device go. The pool is made for the first.
  struct Place {
    std::shared_ptr<CopyEngine> engine;
    std::shared_ptr<HostPool> pool;
  };
  const Place& PlaceOf(at::Device device);
  int64_t NextRegion();

  const OffloadOptions options_;
  // Recursive: a pack or unpack may drop tensors, and with them graphs that hold others of these.
  mutable std::recursive_mutex mutex_;  // guards all below, and every OffloadedTensor
  int64_t next_region_ = 0;
  Place cpu_;
  Place accelerator_;
  std::multimap<int64_t, OffloadedTensor*> by_region_;
  std::unordered_multimap<const c10::StorageImpl*, OffloadedTensor*> by_storage_;
  // Memory of tensors without history that was copied once, and its version then.
  struct Seen {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    uint32_t version;
  };
  std::unordered_map<const c10::StorageImpl*, Seen> seen_;
  size_t sweep_seen_at_ = 64;
  // Memory of the tensors that KeepOnDevice names. A weak reference keeps the address from being
  // another's.
  std::unordered_map<const c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>> kept_;
  std::deque<std::weak_ptr<OffloadedTensor>> on_device_;  // newest last
  int64_t offloaded_bytes_ = 0;
  int64_t restored_bytes_ = 0;
  int64_t refused_bytes_ = 0;
  int64_t failed_prefetches_ = 0;
  int64_t failed_waits_ = 0;
};

// Runs `function`; every tensor that it saves for backward on this thread waits in host memory. For
// models without regions. Slower than offloading the inputs of regions, which are far fewer.
void SaveOnHost(HostOffload& offload, const std::function<void()>& function);

}  // namespace lockstep::checkpoint

#endif  // LOCKSTEP_CHECKPOINT_OFFLOAD_HOST_OFFLOAD_H_
