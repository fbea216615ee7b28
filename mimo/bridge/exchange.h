// The rows of one call in one direction, between the ranks of an edge. Private to the bridge's
// sources.
//
// A rank receives rows only after it has compared messages (messages.h) with the sender. NCCL pairs
// the operations of two ranks in order of issue, whatever their sizes, and would mix up the rows of
// different plans. After a disagreement, rows that were sent are never received. They block only
// this edge's group, which is not used again.
//
// Not collective: a rank communicates with its peers only. Thread: the bridge's thread.

#ifndef LOCKSTEP_MIMO_BRIDGE_EXCHANGE_H_
#define LOCKSTEP_MIMO_BRIDGE_EXCHANGE_H_

#include <cstdint>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "c10/util/intrusive_ptr.h"
#include "mimo/bridge/messages.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace lockstep::mimo {

enum class Direction { kForward, kBackward };

class Exchange {
 public:
  Exchange(const Link& link, Direction direction, int64_t call);

  struct Piece {
    at::Tensor rows;  // contiguous
    int64_t peer = 0;
    int tensor = 0;       // index among the call's tensors
    int64_t version = 0;  // of rows to send: see VersionOf
  };
  static int64_t VersionOf(const at::Tensor& rows) {
    return rows.is_inference() ? 0 : rows._version();
  }

  // Starts all sends and receives. If the backend can, they are one batch, in which no rank's send
  // waits for its own receive.
  void StartRows(std::vector<Piece> sends, std::vector<Piece> receives);

  // Block until the rows are received, or sent; on CUDA, until the current stream may use them.
  // Throw c10::Error if a peer is gone, or does not come within the group's timeout.
  void WaitForReceives();
  void WaitForSends();

 private:
  struct Started {
    Piece piece;
    c10::intrusive_ptr<c10d::Work> work;  // not to be waited for in a batch
  };

  c10d::ProcessGroup& Group() const;
  void WaitFor(const char* what, int64_t peer, const c10::intrusive_ptr<c10d::Work>& work) const;

  const Link& link_;
  Direction direction_;
  int64_t call_;
  std::vector<Started> sends_, receives_;
  std::vector<c10::intrusive_ptr<c10d::Work>> batches_;
};

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_BRIDGE_EXCHANGE_H_
