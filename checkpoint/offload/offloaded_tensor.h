// One tensor of a graph, on its device or in host memory. Private to host_offload.cc.
//
// A tensor is identified by its storage and its version. A weak reference to the storage keeps its
// address from being reused. The host holds the range of memory that the tensor spans, as one
// piece. So a view keeps its strides, and an expanded mask costs only the bytes that it holds. A
// view that spans much more than it holds is packed instead.
//
// Views of one storage with overlapping ranges are restored together, into one storage: q, k and v
// of a fused projection each span nearly all of it.
//
// Thread: all calls hold the mutex of the HostOffload.

#ifndef LOCKSTEP_CHECKPOINT_OFFLOAD_OFFLOADED_TENSOR_H_
#define LOCKSTEP_CHECKPOINT_OFFLOAD_OFFLOADED_TENSOR_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "ATen/DimVector.h"
#include "ATen/core/TensorBody.h"
#include "base/torch/copies/copy_engine.h"
#include "c10/core/Storage.h"
#include "c10/core/StorageImpl.h"
#include "c10/core/Stream.h"
#include "c10/core/TensorImpl.h"
#include "checkpoint/offload/host_memory_pool.h"

namespace lockstep::checkpoint {

class HostOffload;

// Returns the tensor's bytes on the host.
int64_t HostBytes(const at::Tensor& tensor);
// Returns whether a copy can be written back. Packed elements that overlap cannot.
bool CanComeBack(const at::Tensor& tensor);

class OffloadedTensor : public std::enable_shared_from_this<OffloadedTensor> {
 public:
  OffloadedTensor(std::shared_ptr<HostOffload> offload, std::shared_ptr<base::CopyEngine> engine,
                  const at::Tensor& tensor, int64_t region);
  ~OffloadedTensor();
  OffloadedTensor(const OffloadedTensor&) = delete;
  OffloadedTensor& operator=(const OffloadedTensor&) = delete;

  // Returns whether this object holds exactly this tensor in its present version.
  bool StandsFor(const at::Tensor& tensor) const;

  void CopyToHost(const at::Tensor& tensor, HostMemoryPool::Block block);
  // Returns the tensor on its device, by the cheapest way, ready for the current stream. Throws
  // c10::Error if it was modified in place since it was saved.
  at::Tensor OnDevice();
  // Starts the copy to the device. Returns false if the device has no memory for it.
  bool Prefetch();
  // Releases the tensor on the device.
  void LeaveDevice();
  void Share() { is_shared_ = true; }

  std::multimap<int64_t, OffloadedTensor*>::iterator in_regions;  // the end: not there yet

  int64_t region() const { return region_; }
  int64_t bytes() const { return num_elements_ * static_cast<int64_t>(dtype_.itemsize()); }
  const c10::StorageImpl* storage() const { return storage_; }

 private:
  // Tensors that are restored together, and the range of their storage in bytes.
  struct Group {
    std::vector<OffloadedTensor*> members;
    int64_t begin;
    int64_t end;
  };

  void Copy(const at::Tensor& tensor, bool to_host, c10::Stream copies) const;
  bool IsModified() const { return counter_.current_version() != version_; }
  at::Tensor At(c10::Storage storage, int64_t offset) const;
  at::Tensor Original() const;
  Group WithOverlapping();
  void CopyToDevice(const Group& group, const c10::Storage& storage);
  void Hold(at::Tensor tensor, c10::Stream owner, base::EventPointer ready);
  void ReturnBlockWhenUnused();

  const std::shared_ptr<HostOffload> offload_;
  const std::shared_ptr<base::CopyEngine> engine_;
  const int64_t region_;
  const at::Device device_;
  const caffe2::TypeMeta dtype_;
  const at::DimVector sizes_;
  const at::DimVector strides_;
  const int64_t offset_;
  const int64_t begin_;  // the range, in bytes of the original storage
  const int64_t end_;
  const bool is_packed_;        // the host holds the elements in order, not the range
  const int64_t num_elements_;  // on the host

  const c10::StorageImpl* const storage_;
  const c10::weak_intrusive_ptr<c10::StorageImpl> original_;
  const c10::VariableVersion counter_;
  const uint32_t version_;

  HostMemoryPool::Block block_;
  std::vector<base::EventPointer> block_uses_;  // copies that may still read or write the block
  c10::Stream forward_;                         // the stream that the tensor was saved on
  base::EventPointer copied_;

  // The tensor on the device: the original, or a copy that is prefetched or shared by regions.
  at::Tensor on_device_;
  uint32_t on_device_version_ = 0;  // if it differs, the tensor was modified
  c10::Stream owner_;               // of its memory
  base::EventPointer ready_;        // afterwards the elements are there, and no copy reads them
  bool is_shared_ = false;
};

}  // namespace lockstep::checkpoint

#endif  // LOCKSTEP_CHECKPOINT_OFFLOAD_OFFLOADED_TENSOR_H_
