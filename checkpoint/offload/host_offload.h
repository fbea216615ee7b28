// Moves saved tensors to host memory until backward needs them. Copies run while the device
// computes.
//
//    auto offload = HostOffload::New({.keep_last = 1, .prefetch = 1});
//    Checkpoint checkpoint({.offload = offload});          // the inputs of its regions
//    SaveOnHost(*offload, [&] { loss = model(batch); });   // or every tensor saved in a function
//
// The failure this prevents: even with checkpointing, the inputs of all regions stay on the device
// until backward, and a long sequence runs out of memory. Use it when these inputs do not fit. Each
// offloaded byte crosses the bus twice.
//
// A copy runs on its own stream, after the kernel that writes the tensor and in parallel to later
// kernels. The newest `keep_last` regions keep their tensors on the device, because backward starts
// with them. Restoring the tensors of one region starts the copies of the `prefetch` regions before
// it. No call waits for the device: streams wait for events. Host memory returns to its pool when
// its copies are done. If the device has no memory for a prefetch, the failure is counted and the
// tensor is copied when backward needs it.
//
// These tensors are not copied:
//
//    - Tensors below min_bytes, parameters (leaves that require a gradient), and views of
//      parameters.
//    - A tensor without history that was offloaded before, that is still alive and that has not
//      changed: frozen weights, buffers and tables. A second copy would not free memory.
//    - Tensors that KeepOnDevice names. This saves the first copy too.
//
// A tensor that several regions share, such as a mask, is copied once. If the original is still
// alive on the device, it is used again and nothing is copied back. Views keep their strides, and
// views that overlapped share one storage again. A tensor that was modified in place after it was
// saved is an error when backward needs it, as in autograd.
//
// On the CPU all copies are plain copies. Thread-safe.

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
#include "base/torch/copies/copy_engine.h"
#include "checkpoint/offload/host_memory_pool.h"
#include "checkpoint/region/engine.h"

namespace lockstep::checkpoint {

struct OffloadOptions {
  int64_t keep_last = 1;     // regions
  int64_t prefetch = 1;      // regions
  int64_t min_bytes = 1024;  // of a tensor
  // The limit on host memory, separately for tensors of the CPU and of accelerators. A tensor that
  // would exceed it stays on its device and is counted.
  int64_t max_host_bytes = INT64_MAX;
  // Does the copies. Null selects the engine of the tensor's device.
  std::shared_ptr<base::CopyEngine> engine = nullptr;
};

struct OffloadStats {
  int64_t offloaded_bytes = 0;   // copied to the host
  int64_t restored_bytes = 0;    // copied back
  int64_t host_bytes = 0;        // of host memory that is held now
  int64_t peak_host_bytes = 0;   // the most so far
  int64_t pool_allocations = 0;  // of host memory; stops growing after the first steps
  int64_t refused_bytes = 0;     // stayed on their device because of max_host_bytes
  // Prefetches for which the device had no memory. Their tensors were copied when backward needed
  // them.
  int64_t failed_prefetches = 0;
  // Tensors that were released after the device had failed, so that no stream waited for them.
  int64_t failed_waits = 0;
};

class OffloadedTensor;

class HostOffload : public std::enable_shared_from_this<HostOffload> {
 public:
  // Throws c10::ValueError if an option is below 0.
  static std::shared_ptr<HostOffload> New(const OffloadOptions& options);

  // Return what makes hooks that offload each saved tensor; pass it to ScopedHooks of
  // region/engine.h. HooksOfRegion makes one region of all tensors that its hooks save. HooksOfEach
  // makes a region of each tensor.
  MakeHooks HooksOfRegion();
  MakeHooks HooksOfEach();

  // Never copies these tensors, or tensors that share their memory. Use it for tensors that stay on
  // their device anyway, such as frozen weights.
  void KeepOnDevice(const std::vector<at::Tensor>& tensors);

  OffloadStats stats() const;

 private:
  friend class OffloadedTensor;
  friend class OffloadHooks;
  explicit HostOffload(const OffloadOptions& options) : options_(options) {}

  bool Takes(const at::Tensor& tensor) const;
  bool StaysAnyway(const at::Tensor& tensor);
  // Returns null if the tensor stays on the device.
  std::shared_ptr<OffloadedTensor> Store(const at::Tensor& tensor, int64_t region);
  at::Tensor Restore(OffloadedTensor& offloaded);
  void PrefetchBefore(const OffloadedTensor& offloaded);
  void Forget(const OffloadedTensor& offloaded);
  // The engine and the pool for the tensors of a device. The pool is made for the first tensor.
  struct CopyPath {
    std::shared_ptr<base::CopyEngine> engine;
    std::shared_ptr<HostMemoryPool> pool;
  };
  const CopyPath& CopyPathOf(at::Device device);
  int64_t NextRegion();

  const OffloadOptions options_;
  // Guards all members below, and every OffloadedTensor. Recursive: a pack or unpack may release
  // tensors, and with them graphs that hold other offloaded tensors.
  mutable std::recursive_mutex mutex_;
  int64_t next_region_ = 0;
  CopyPath cpu_;
  CopyPath accelerator_;
  std::multimap<int64_t, OffloadedTensor*> by_region_;
  std::unordered_multimap<const c10::StorageImpl*, OffloadedTensor*> by_storage_;
  // The storage of tensors without history that were copied once, and their version then.
  struct Seen {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    uint32_t version;
  };
  std::unordered_map<const c10::StorageImpl*, Seen> seen_;
  size_t sweep_seen_at_ = 64;
  // The storages of the tensors that KeepOnDevice names. A weak reference keeps an address from
  // being reused.
  std::unordered_map<const c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>> kept_;
  std::deque<std::weak_ptr<OffloadedTensor>> on_device_;  // newest last
  int64_t offloaded_bytes_ = 0;
  int64_t restored_bytes_ = 0;
  int64_t refused_bytes_ = 0;
  int64_t failed_prefetches_ = 0;
  int64_t failed_waits_ = 0;
};

// Runs `function` and offloads every tensor that it saves for backward on this thread. For models
// without regions. It copies far more than offloading the inputs of regions, so it is slower.
void SaveOnHost(HostOffload& offload, const std::function<void()>& function);

}  // namespace lockstep::checkpoint

#endif  // LOCKSTEP_CHECKPOINT_OFFLOAD_HOST_OFFLOAD_H_
