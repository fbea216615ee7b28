// Short messages between the ranks of a bridge, which say what travels, or why nothing will.
//
// Rows alone travel fast and say nothing: where two ranks plan different sizes, Gloo ends the
// process, NCCL hangs or mixes rows up, and neither says why. So before rows are received, ranks
// compare Words, 1,200 bytes each over the CPU. A rank that fails tells every rank that it has
// words for; each of these fails too, and passes the first cause on. So no rank waits for rows or
// for a collective of a rank that has failed.
//
//   words.Send(plan, /*to=*/2);
//   const Word theirs = words.WaitFor(/*from=*/2, Word::kPlan, /*call=*/7);
//
// The words from one rank to another are one stream, in the order in which they are sent; both
// sides count them. A word that comes before it is asked for is kept. Rows of gradients follow the
// order of their words, on every backend: backward in another order than the other side's is an
// error that names both calls.
//
// Thread: that of the bridge.

#ifndef LOCKSTEP_MIMO_BRIDGE_WORDS_H_
#define LOCKSTEP_MIMO_BRIDGE_WORDS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "c10/util/intrusive_ptr.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace lockstep::mimo {

constexpr int kMaxTensors = 8;  // of one call
constexpr int kMaxDims = 8;     // of a tensor

// Plain bytes: all ranks run the same program on like machines.
struct Word {
  enum Kind : int64_t {
    kPlan,           // what the rank has planned for the call; its rows follow
    kRowsReady,      // all that a lane of `to` waits for has been agreed: it comes to gather rows
    kTaken,          // the rows of the call have arrived
    kSumReady,       // a lane of `to` comes to compare or to sum the gradient of the call
    kGradient,       // the gradient of the call; its rows follow
    kGradientReady,  // a lane of `from` comes to gather the gradient of the call
    kForgotten,      // the rank's graph of the call is gone: no gradient comes, `text` says why
    kFailed,         // the bridge is of no more use on `origin`: `text` says why
    kLeft,           // the rank has ended its part; `text` says how
  };
  int64_t kind = kPlan;
  int64_t sequence = 0;   // of the words from this rank to that one
  int64_t num_heard = 0;  // words of that rank that this one has read
  int64_t call = 0;
  int64_t origin = 0;           // kFailed: the rank that failed first
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
  } tensors[kMaxTensors] = {};
  char text[448] = {};  // ends with a 0: the error, or the rows in words for messages

  void set_text(const std::string& text);
};

// The ranks of an edge. Positions in its groups are those of `ranks`.
struct Link {
  std::string name;  // "vision -> language"
  int64_t rank = 0;  // this rank
  std::vector<int> ranks;
  std::vector<std::string> modules;  // of each of them, for messages
  // Groups of all ranks. Words have one of their own: NCCL takes up the operations of a group in
  // order. So do the rows of each direction: a gradient that waits must not hold up the next
  // micro-batch.
  c10::intrusive_ptr<c10d::ProcessGroup> words, forward, backward;
  // Says why a rank is gone; "" where it is not known. May be empty.
  std::function<std::string(int64_t rank)> why_gone;

  int position(int64_t rank) const;
  std::string Describe(int64_t rank) const;  // "rank 3 (language)"
  // "mimo: bridge vision -> language, call 3: rank 0 (vision) waited for the rows of rank 2
  // (language): ...", where `cause` is what the backend has to say.
  std::string DescribeLoss(int64_t call, const std::string& what, int64_t peer,
                           const std::string& cause) const;
};

class Words {
 public:
  // `link` outlives this.
  explicit Words(const Link& link) : link_(link) {}

  // Never blocks. Does nothing after SendFailure or SendLeft.
  void Send(Word word, int32_t to);

  // Blocks until `from` has said this of `call`. Throws c10::Error where `from` has failed, has
  // left or is gone; where it has forgotten the call; and where it comes to another call first with
  // a kind of word that rows or a collective follow (all but kPlan and kTaken).
  Word WaitFor(int32_t from, Word::Kind kind, int64_t call);

  // Tells all ranks of the link that the bridge has failed: with `text`, or with the failure that
  // this rank has heard of. Ends the stream.
  void SendFailure(const std::string& text);

  // Tells all ranks of the link that this rank's part has ended. Ends the stream.
  void SendLeft(const std::string& text);

  // Blocks until all of them have ended theirs and have read this one to its end, or are gone.
  void WaitUntilAllLeft();

  // Gradients that each rank has taken from the other; `taken_by` as far as words have been read.
  void AddTaken(int32_t from) { ++peers_[from].taken; }
  int64_t taken_by(int32_t peer) { return peers_[peer].taken_by; }
  // Whether `peer` has ended its part, and neither failed nor is gone.
  bool has_left(int32_t peer) {
    const Peer& other = peers_[peer];
    return other.end.has_value() && other.end->kind == Word::kLeft && !other.is_gone;
  }

 private:
  struct Peer {
    at::Tensor buffer;
    c10::intrusive_ptr<c10d::Work> receive;              // of the next word
    std::deque<c10::intrusive_ptr<c10d::Work>> unheard;  // sent, and not known to be read
    int64_t num_sent = 0, num_heard = 0;
    std::deque<Word> early;                    // read, and not asked for yet
    std::map<int64_t, std::string> forgotten;  // by call: why
    std::optional<Word> end;                   // kFailed or kLeft
    bool is_gone = false;                      // its connection
    int64_t taken = 0, taken_by = 0;
  };

  Peer& Listen(int32_t from);
  void Read(Peer& peer, int32_t from, int64_t call);
  void SendEnd(const Word& end);

  const Link& link_;
  std::map<int32_t, Peer> peers_;
  std::optional<Word> failure_heard_;
  bool has_ended_ = false;
};

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_BRIDGE_WORDS_H_
