// Copies of a segment whose masters are in host memory: weights to the device, gradients back.
// Private to flat_unit.
//
//    HostCopies copies(engine, device);
//    at::Tensor weights = copies.StartUpload(master, at::kBFloat16);   // beside the computation
//    copies.MakeCurrentWait();                                        // before a kernel reads them
//    copies.StartDownload(gradient);
//    at::Tensor on_host = copies.FinishDownload();                    // at the end of backward
//
// Masters are cast to the dtype of the weights on the host, once for all uploads of a pass. So half
// the bytes go over the bus, and an optimizer on the CPU may change the masters while the cast
// values are still being copied. Without a cast the copy reads the masters themselves: call
// LeaveMasters before they change.
//
// Host memory is page-locked and exact to a page. It is allocated at the first step and used again.
//
// Thread: used by one thread.

#ifndef LOCKSTEP_SHARDING_FULLY_SHARD_HOST_COPIES_H_
#define LOCKSTEP_SHARDING_FULLY_SHARD_HOST_COPIES_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "base/torch/copies/copy_engine.h"
#include "c10/core/Device.h"
#include "c10/core/Storage.h"
#include "c10/core/Stream.h"

namespace lockstep::sharding {

class HostCopies {
 public:
  HostCopies(std::shared_ptr<base::CopyEngine> engine, c10::Device device);
  ~HostCopies();  // Waits for the copies that are under way.
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  // Returns a 1-D host tensor of zeros, in page-locked memory. Throws c10::Error if the machine has
  // too little of it.
  at::Tensor Allocate(int64_t elements, at::ScalarType dtype);

  // The stream of the copies. Work that is queued on it after StartUpload can read the weights.
  c10::Stream stream() { return engine_->Copies(device_); }

  // Starts to copy the masters to the device. The result belongs to the current stream.
  at::Tensor StartUpload(const at::Tensor& master, at::ScalarType dtype);
  // Makes the current stream wait for the upload: before it reads the weights or frees them.
  void MakeCurrentWait();
  // Call it when the masters may have changed: the next upload casts them again.
  void ForgetCast() { has_cast_ = false; }
  // Returns once no copy reads the masters.
  void LeaveMasters();

  // Starts to copy a 1-D gradient, which the current stream computes, to host memory.
  void StartDownload(const at::Tensor& gradient);
  // Waits for the download and returns the gradient, or an undefined tensor if no download was
  // started. Once no tensor uses its storage, a later download takes the same memory.
  at::Tensor FinishDownload();

 private:
  std::shared_ptr<base::CopyEngine> engine_;
  c10::Device device_;
  at::Tensor cast_;  // of the masters
  bool has_cast_ = false;
  base::EventPointer uploaded_, downloaded_;
  bool reads_masters_ = false;           // the newest upload does
  std::vector<c10::Storage> gradients_;  // host memory of earlier downloads
  at::Tensor arriving_;
};

}  // namespace lockstep::sharding

#endif  // LOCKSTEP_SHARDING_FULLY_SHARD_HOST_COPIES_H_
