// Short messages between the ranks of a bridge: what each rank sends next, or why it failed.
// Private to the bridge's sources.
//
// Rows alone carry no description. If two ranks plan different sizes, Gloo ends the process, and
// NCCL hangs or mixes rows up; neither says why. So ranks compare messages (Message, 1,200 bytes
// each, over the CPU) before they receive rows. A rank that fails tells every rank that it
// exchanges messages with. Each of these fails too and passes the first cause on. So no rank waits
// for rows or for a collective of a failed rank.
//
//    messages.Send(plan, /*to=*/2);
//    const Message theirs = messages.WaitFor(/*from=*/2, Message::kPlan, /*call=*/7);
//
// The messages from one rank to another are one stream in the order of sending, and both sides
// count them. A message that arrives early is kept. Rows of gradients follow the order of their
// messages, on every backend. If one side runs backward in another order, an error names both
// calls.
//
// Thread: the bridge's thread.

#ifndef LOCKSTEP_MIMO_BRIDGE_MESSAGES_H_
#define LOCKSTEP_MIMO_BRIDGE_MESSAGES_H_

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

// A message as plain bytes: all ranks run the same program on similar machines.
struct Message {
  enum Kind : int64_t {
    kPlan,           // the rank's plan for the call; its rows follow
    kRowsReady,      // a lane of `to` has agreed with all peers and will gather rows
    kTaken,          // the rows of the call have arrived
    kSumReady,       // a lane of `to` will compare or sum the gradient of the call
    kGradient,       // the gradient of the call; its rows follow
    kGradientReady,  // a lane of `from` will gather the gradient of the call
    kForgotten,      // the rank lost its graph of the call: no gradient comes; `text` says why
    kFailed,         // the bridge has failed on `origin`; `text` says why
    kLeft,           // the rank has ended its part; `text` says how
  };
  int64_t kind = kPlan;
  int64_t sequence = 0;   // of the messages from this rank to that one
  int64_t num_heard = 0;  // messages of that rank that this one has read
  int64_t call = 0;
  int64_t origin = 0;           // kFailed: the rank that failed first
  uint64_t layout = 0;          // fingerprint of both modules' grids and of dim
  uint64_t fingerprint = 0;     // of the rows of all samples
  int64_t num_rows = 0;         // of all samples
  int64_t num_own_rows = 0;     // that this rank holds
  int64_t gradients_taken = 0;  // by this rank so far, from the receiver of the message
  int64_t num_tensors = 0;      // 0: this rank describes no tensors
  struct {
    int64_t dtype = 0;
    int64_t wants_gradient = 0;
    int64_t num_dims = 0;
    int64_t sizes[kMaxDims] = {};  // 0 on the dim of rows
  } tensors[kMaxTensors] = {};
  char text[448] = {};  // ends with a 0: the error, or a description of the rows

  void set_text(const std::string& text);
};

// The ranks of an edge. Positions in its groups are positions in `ranks`.
struct Link {
  std::string name;  // "vision -> language"
  int64_t rank = 0;  // this rank
  std::vector<int> ranks;
  std::vector<std::string> modules;  // of each of them, for messages
  // Groups of all ranks. Messages have their own group, because NCCL processes the operations of a
  // group in order. Each direction has its own group too: a gradient that waits must not block the
  // next micro-batch.
  c10::intrusive_ptr<c10d::ProcessGroup> messages, forward, backward;
  // Returns why a rank is gone, or "" if unknown. May be empty.
  std::function<std::string(int64_t rank)> why_gone;

  int position(int64_t rank) const;
  std::string Describe(int64_t rank) const;  // "rank 3 (language)"
  // Returns "mimo: bridge vision -> language, call 3: rank 0 (vision) waited for the rows of rank 2
  // (language): ...", ending with `cause`, the backend's message.
  std::string DescribeLoss(int64_t call, const std::string& what, int64_t peer,
                           const std::string& cause) const;
};

class Messages {
 public:
  // `link` must outlive this object.
  explicit Messages(const Link& link) : link_(link) {}

  // Sends a message without blocking. Does nothing after SendFailure or SendLeft.
  void Send(Message message, int32_t to);

  // Returns the message of this kind about `call` from rank `from`, and blocks until it arrives.
  // Throws c10::Error if `from` has failed, has left, is gone or has forgotten the call. It also
  // throws if `from` first sends a message about another call that rows or a collective follow (any
  // kind but kPlan and kTaken).
  Message WaitFor(int32_t from, Message::Kind kind, int64_t call);

  // Tells all ranks of the link that the bridge has failed, with `text` or with the failure that
  // this rank has received. Ends the stream.
  void SendFailure(const std::string& text);

  // Tells all ranks of the link that this rank's part has ended. Ends the stream.
  void SendLeft(const std::string& text);

  // Blocks until all of them have ended their part and have read this rank's stream to its end, or
  // are gone.
  void WaitUntilAllLeft();

  // Returns whether another rank has told of a failure.
  bool has_heard_failure() const { return failure_heard_.has_value(); }

  // Count the gradients that each rank has taken from the other. `taken_by` is as recent as the
  // messages read.
  void AddTaken(int32_t from) { ++peers_[from].taken; }
  int64_t taken_by(int32_t peer) { return peers_[peer].taken_by; }
  // Returns whether `peer` has ended its part, and has neither failed nor gone.
  bool has_left(int32_t peer) {
    const Peer& other = peers_[peer];
    return other.end.has_value() && other.end->kind == Message::kLeft && !other.is_gone;
  }

 private:
  struct Peer {
    at::Tensor buffer;
    c10::intrusive_ptr<c10d::Work> receive;              // of the next message
    std::deque<c10::intrusive_ptr<c10d::Work>> unheard;  // sent, not known to be read
    int64_t num_sent = 0, num_heard = 0;
    std::deque<Message> early;                 // read before WaitFor asked for them
    std::map<int64_t, std::string> forgotten;  // reasons, by call
    std::optional<Message> end;                // kFailed or kLeft
    bool is_gone = false;                      // the connection is lost
    int64_t taken = 0, taken_by = 0;
  };

  Peer& Listen(int32_t from);
  void Read(Peer& peer, int32_t from, int64_t call);
  void SendEnd(const Message& end);

  const Link& link_;
  std::map<int32_t, Peer> peers_;
  std::optional<Message> failure_heard_;
  bool has_ended_ = false;
};

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_BRIDGE_MESSAGES_H_
