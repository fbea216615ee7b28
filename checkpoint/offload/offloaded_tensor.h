// One tensor of a graph, somewhere between its device and host memory. Private to host_offload.cc.
//
// A tensor is known by its storage, which a weak reference keeps from being another's under the
// same address, and by its version. The host holds the stretch of memory that the tensor spans, as
// one piece, so that a view comes back with its strides and an expanded mask costs what it holds; a
// view that spans much more than it holds is packed instead.
//
// Views of one storage whose stretches overlap come back together, into one storage: q, k and v of
// a fused projection each span nearly all of it.
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
#include "c10/core/Storage.h"
#include "c10/core/StorageImpl.h"
#include "c10/core/Stream.h"
#include "c10/core/TensorImpl.h"
#include "checkpoint/offload/copy_engine.h"
#include "checkpoint/offload/host_pool.h"

namespace lockstep::checkpoint {

class HostOffload;

// Bytes on the host.
int64_t HostBytes(const at::Tensor& tensor);
// Whether a copy can be written back: packed elements that lie upon each other cannot.
bool CanComeBack(const at::Tensor& tensor);

class OffloadedTensor : public std::enable_shared_from_this<OffloadedTensor> {
 public:
  OffloadedTensor(std::shared_ptr<HostOffload> offload, std::shared_ptr<CopyEngine> engine,
                  const at::Tensor& tensor, int64_t region);
  ~OffloadedTensor();
  OffloadedTensor(const OffloadedTensor&) = delete;
  OffloadedTensor& operator=(const OffloadedTensor&) = delete;

  // Returns whether it stands for just this tensor, as it is now.
  bool StandsFor(const at::Tensor& tensor) const;

  void CopyToHost(const at::Tensor& tensor, HostPool::Block block);
  // Returns the tensor on its device, from where it is cheapest, ready for the current stream.
  // Throws c10::Error where it was modified in place since it was saved.
  at::Tensor OnDevice();
  // Starts the copy to the device. Returns false where the device has no memory for it.
  bool Prefetch();
  // Gives up the tensor on the device.
  void LeaveDevice();
  void Share() { is_shared_ = true; }

  std::multimap<int64_t, OffloadedTensor*>::iterator in_regions;  // the end: not there yet

  int64_t region() const { return region_; }
  int64_t bytes() const { return num_elements_ * static_cast<int64_t>(dtype_.itemsize()); }
  const c10::StorageImpl* storage() const { return storage_; }

 private:
  // Tensors that come back together, and the stretch of their storage, in bytes.
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
  void Hold(at::Tensor tensor, c10::Stream owner, EventPointer ready);
  void ReturnBlockWhenUnused();

  const std::shared_ptr<HostOffload> offload_;
  const std::shared_ptr<CopyEngine> engine_;
  const int64_t region_;
  const at::Device device_;
  const caffe2::TypeMeta dtype_;
  const at::DimVector sizes_;
  const at::DimVector strides_;
  const int64_t offset_;
  const int64_t begin_;  // the stretch, in bytes of the original storage
  const int64_t end_;
  const bool is_packed_;        // the host holds the elements in order, not the stretch
  const int64_t num_elements_;  // on the host

  const c10::StorageImpl* const storage_;
  const c10::weak_intrusive_ptr<c10::StorageImpl> original_;
  const c10::VariableVersion counter_;
  const uint32_t version_;

  HostPool::Block block_;
  std::vector<EventPointer> block_uses_;  // copies that may still read or write the block
  c10::Stream forward_;                   // the stream that the tensor was saved on
  EventPointer copied_;

  // The tensor on the device: the original, or a copy that is prefetched or shared by regions.
  at::Tensor on_device_;
  uint32_t on_device_version_ = 0;  // another one means that it was modified
  c10::Stream owner_;               // of its memory
  EventPointer ready_;              // after it the elements are there, and no copy reads them
  bool is_shared_ = false;
};

}  // namespace lockstep::checkpoint

#endif  // LOCKSTEP_CHECKPOINT_OFFLOAD_OFFLOADED_TENSOR_H_
