// The rows of one call in one direction, between the ranks of an edge.
//
// A rank receives rows only after it has compared words (words.h) with the rank that sends them:
// NCCL takes up operations of two ranks in the order of issue, whatever their sizes, and rows of
// plans that differ would be mixed up. What is sent and never received, since the ranks disagree,
// holds up nothing but this edge's group, of which nothing more is asked.
//
// Not collective: a rank talks to its peers alone. Thread: that of the bridge.

#ifndef LOCKSTEP_MIMO_BRIDGE_EXCHANGE_H_
#define LOCKSTEP_MIMO_BRIDGE_EXCHANGE_H_

#include <cstdint>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "c10/util/intrusive_ptr.h"
#include "mimo/bridge/words.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace lockstep::mimo {

enum class Direction { kForward, kBackward };

class Exchange {
 public:
  Exchange(const Link& link, Direction direction, int64_t call);

  struct Piece {
    at::Tensor rows;  // contiguous
    int64_t peer = 0;
    int tensor = 0;       // which of the call
    int64_t version = 0;  // of rows that are sent: see VersionOf
  };
  static int64_t VersionOf(const at::Tensor& rows) {
    return rows.is_inference() ? 0 : rows._version();
  }

  // Starts all of them; where the backend can, as one batch, in which no rank's send waits for its
  // own receive.
  void StartRows(std::vector<Piece> sends, std::vector<Piece> receives);

  // Blocks until what was sent or received is there; on CUDA, until it is for the current stream.
  // Throws c10::Error where a peer is gone, or does not come within the group's timeout.
  void WaitForReceives();
  void WaitForSends();

 private:
  struct Started {
    Piece piece;
    c10::intrusive_ptr<c10d::Work> work;  // in a batch not to be waited for
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
