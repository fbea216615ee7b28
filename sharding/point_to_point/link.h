// Messages between this rank and one other, whose shapes both know beforehand.
//
// The failure this prevents: two ranks that each send to the other first wait for each other for
// ever where nothing buffers a message, as with NCCL and large tensors. Here the messages that go
// in both directions at one time are started together, as one batch:
//
//    Link link(pair, 1, 7);  // a group of two ranks; the other one is at position 1, rank 7
//    std::unique_ptr<MessageBatch> batch = link.Start({activations}, {gradient});
//    Compute();
//    batch->Wait();
//
// When to use it: for a pipeline, whose plan says on both ranks which tensor comes next. No header
// travels, so a tensor of another size is an error of the backend, or none. For tensors that a
// program sends now and then, use point_to_point.h.
//
// The k-th tensor that one rank sends meets the k-th that the other receives. Where the backend can
// make batches, every batch is one, also of a single message. NCCL then uses the communicator of
// the group alone, so all messages of the pair have one order.
//
// Thread: the thread that runs the group's collectives.

#ifndef LOCKSTEP_SHARDING_POINT_TO_POINT_LINK_H_
#define LOCKSTEP_SHARDING_POINT_TO_POINT_LINK_H_

#include <memory>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "c10/util/intrusive_ptr.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace lockstep::sharding {

// Messages that have been started. It holds their tensors.
class MessageBatch {
 public:
  // Blocks until all tensors are sent and received; on CUDA, until the current stream may use them.
  // A second call returns at once. Throws c10::Error with the other rank if the connection fails,
  // or the other rank does not come within the group's timeout.
  void Wait();

 private:
  friend class Link;
  int rank_ = 0;  // the other one
  std::vector<at::Tensor> tensors_;
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

class Link {
 public:
  // `position`: of the other rank in `group`; `rank`: in the world, as errors name it.
  Link(c10::intrusive_ptr<c10d::ProcessGroup> group, int position, int rank);

  // Starts to send the values of `sends`, of any dtype and strides, and to fill `receives`, which
  // are contiguous. The tensors must stay as they are until Wait.
  std::unique_ptr<MessageBatch> Start(const std::vector<at::Tensor>& sends,
                                      const std::vector<at::Tensor>& receives);

 private:
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  int position_;
  int rank_;
};

}  // namespace lockstep::sharding

#endif  // LOCKSTEP_SHARDING_POINT_TO_POINT_LINK_H_
