// One exchange of tensors between the ranks of an edge, each with a word about what it carries.
//
// Rows alone travel fast and say nothing: where two ranks plan different sizes, Gloo ends the
// process, NCCL hangs, and neither says why. So each rank also sends every peer a Word, 1,200 bytes
// over the CPU: which call this is, a fingerprint of the rows of all samples, dtypes and shapes, or
// the error that keeps it from taking part. Rows of ranks that do not agree carry different tags
// and never meet; the words do, and both sides raise an error that names the other and what it
// said. No device is waited for.
//
// Not collective: a rank talks to its peers alone. Thread: that of the bridge.

#ifndef LOCKSTEP_MIMO_EXCHANGE_H_
#define LOCKSTEP_MIMO_EXCHANGE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "c10/util/intrusive_ptr.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace lockstep::mimo {

constexpr int kMaxTensors = 8;  // of one call
constexpr int kMaxDims = 8;     // of a tensor

// What a rank says of a call. Plain bytes: all ranks run the same program on like machines.
struct Word {
  int64_t call = 0;
  int64_t is_error = 0;         // `text` says which; the call has no rows of this rank
  uint64_t layout = 0;          // fingerprint of both modules' grids and of dim
  uint64_t fingerprint = 0;     // of the rows of all samples
  int64_t num_rows = 0;         // of all samples
  int64_t gradients_taken = 0;  // by this rank, from the one that the word goes to, so far
  int64_t num_tensors = 0;      // 0: this rank has none of its own to describe
  struct {
    int64_t dtype = 0;
    int64_t wants_gradient = 0;
    int64_t num_dims = 0;
    int64_t sizes[kMaxDims] = {};  // that of the dim of rows is 0
  } tensors[kMaxTensors];
  char text[448] = {};  // ends with a 0: the error, or the rows in words for messages

  void set_text(const std::string& text);
};

// What carries an edge's messages. Positions in the groups are those of `ranks`.
struct Link {
  std::string name;  // "vision -> language"
  int64_t rank = 0;  // this rank
  std::vector<int> ranks;
  std::vector<std::string> modules;  // of each of them, for messages
  // A group for each direction: NCCL takes up the calls of a group in order, and a gradient that
  // waits must not hold up the next micro-batch.
  c10::intrusive_ptr<c10d::ProcessGroup> forward, backward;

  int position(int64_t rank) const;
  std::string Describe(int64_t rank) const;  // "rank 3 (language)"
};

enum class Direction { kForward, kBackward };

class Exchange {
 public:
  Exchange(const Link& link, Direction direction, int64_t call);

  // Starts to receive the words of these peers, or to send one: each once.
  void ReceiveWords(const std::vector<int32_t>& from);
  void SendWord(const Word& word, int32_t to);
  bool has_sent_word() const { return !to_.empty(); }

  // Blocks until the words have come: word i is that of peers()[i]. Throws c10::Error where a peer
  // is gone, or says that it failed.
  const std::vector<Word>& WaitForWords();
  const std::vector<int32_t>& peers() const { return from_; }

  struct Piece {
    at::Tensor rows;  // contiguous
    int64_t peer = 0;
    int tensor = 0;  // which of the call
  };
  // Starts all of them; on CUDA as one batch, in which no rank's send waits for its own receive.
  // Peers that plan the same rows give the same fingerprint.
  void StartRows(std::vector<Piece> sends, std::vector<Piece> receives, uint64_t fingerprint);

  // Blocks until what was sent or received is there; on CUDA, until it is for the current stream.
  // Throws c10::Error where a peer is gone, or does not come within the group's timeout.
  void WaitForReceives();
  void WaitForSends();

 private:
  struct Started {
    Piece piece;
    c10::intrusive_ptr<c10d::Work> work;  // within a batch of CUDA's not to be waited for
    int64_t version = 0;                  // of the rows, when they were given to be sent
  };

  c10d::ProcessGroup& Group() const;
  void WaitFor(const char* what, int64_t peer, const c10::intrusive_ptr<c10d::Work>& work) const;

  const Link& link_;
  Direction direction_;
  int64_t call_;
  std::vector<int32_t> to_, from_;
  std::vector<at::Tensor> word_tensors_;  // received; sent ones are kept by what sends them
  std::vector<c10::intrusive_ptr<c10d::Work>> word_sends_, word_receives_;
  std::vector<Word> words_;
  std::vector<Started> sends_, receives_;
  std::vector<c10::intrusive_ptr<c10d::Work>> batches_;  // on CUDA, instead
};

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_EXCHANGE_H_
