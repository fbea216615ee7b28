#include "mimo/bridge/messages.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include "ATen/ops/empty.h"
#include "absl/strings/str_cat.h"
#include "c10/util/Exception.h"

namespace lockstep::mimo {
namespace {

constexpr size_t kMaxForgotten = 10'000;  // calls of a peer; more would be a leak

// Rows or a collective follow in the order of these.
bool IsOrdered(int64_t kind) { return kind != Message::kPlan && kind != Message::kTaken; }

// Describes a rank's action on a call, after "rank 1 (language) ".
std::string InWords(int64_t kind) {
  if (kind == Message::kRowsReady) return "waits for the rows of call ";
  if (kind == Message::kGradient) return "sends the gradient of call ";
  return "goes back through call ";
}

Message MessageFrom(at::Tensor& bytes) {
  Message message;
  std::memcpy(&message, bytes.const_data_ptr(), sizeof(Message));
  return message;
}

}  // namespace

void Message::set_text(const std::string& value) {
  const size_t size = std::min(value.size(), sizeof(text) - 1);
  std::memcpy(text, value.data(), size);
  std::memset(text + size, 0, sizeof(text) - size);
}

int Link::position(int64_t rank) const {
  const auto it = std::find(ranks.begin(), ranks.end(), rank);
  TORCH_INTERNAL_ASSERT(it != ranks.end(), "mimo: rank ", rank, " is not of the bridge ", name);
  return static_cast<int>(it - ranks.begin());
}

std::string Link::Describe(int64_t rank) const {
  return absl::StrCat("rank ", rank, " (", modules[static_cast<size_t>(position(rank))], ")");
}

std::string Link::DescribeLoss(int64_t call, const std::string& what, int64_t peer,
                               const std::string& cause) const {
  const std::string why = why_gone == nullptr ? "" : why_gone(peer);
  return absl::StrCat("mimo: bridge ", name, ", call ", call, ": ", Describe(rank), " waited for ",
                      what, " ", Describe(peer), ": ", why.empty() ? cause : why);
}

// Listens to a rank from the first use on, so that what it says last is heard without waiting.
Messages::Peer& Messages::Listen(int32_t from) {
  Peer& peer = peers_[from];
  if (peer.receive != nullptr || peer.end.has_value()) return peer;
  peer.buffer = at::empty({static_cast<int64_t>(sizeof(Message))}, at::kByte);
  std::vector<at::Tensor> tensors = {peer.buffer};
  peer.receive = link_.messages->recv(tensors, link_.position(from), /*tag=*/0);
  return peer;
}

void Messages::Send(Message message, int32_t to) {
  if (has_ended_) return;
  Peer& peer = Listen(to);
  message.sequence = peer.num_sent++;
  message.num_heard = peer.num_heard;
  message.gradients_taken = peer.taken;
  std::vector<at::Tensor> tensors = {at::empty({static_cast<int64_t>(sizeof(Message))}, at::kByte)};
  std::memcpy(tensors[0].mutable_data_ptr(), &message, sizeof(Message));
  peer.unheard.push_back(link_.messages->send(tensors, link_.position(to), /*tag=*/0));
}

// Takes the next message of the stream, and files it.
void Messages::Read(Peer& peer, int32_t from, int64_t call) {
  Message message;
  try {
    Listen(from).receive->wait();
    message = MessageFrom(peer.buffer);
    peer.receive = nullptr;
  } catch (const std::exception& error) {
    const auto* c10_error = dynamic_cast<const c10::Error*>(&error);
    peer.receive = nullptr;
    peer.end = Message{.kind = Message::kLeft};
    peer.end->set_text("it is gone");
    peer.is_gone = true;
    TORCH_CHECK(false,
                link_.DescribeLoss(
                    call, "the message of", from,
                    c10_error == nullptr ? error.what() : c10_error->what_without_backtrace()));
  }
  TORCH_INTERNAL_ASSERT(message.sequence == peer.num_heard, "mimo: bridge ", link_.name,
                        ": message ", message.sequence, " of ", link_.Describe(from),
                        " came as message ", peer.num_heard);
  ++peer.num_heard;
  peer.taken_by = message.gradients_taken;
  while (peer.num_sent - static_cast<int64_t>(peer.unheard.size()) < message.num_heard) {
    peer.unheard.front()->wait();  // It has arrived: returns at once.
    peer.unheard.pop_front();
  }
  if (message.kind == Message::kForgotten) {
    peer.forgotten[message.call] = message.text;
    if (peer.forgotten.size() > kMaxForgotten) peer.forgotten.erase(peer.forgotten.begin());
  } else if (message.kind == Message::kFailed || message.kind == Message::kLeft) {
    peer.end = message;
    if (message.kind == Message::kFailed && !failure_heard_.has_value()) failure_heard_ = message;
    return;
  } else {
    peer.early.push_back(message);
  }
  Listen(from);
}

Message Messages::WaitFor(int32_t from, Message::Kind kind, int64_t call) {
  Peer& peer = Listen(from);
  for (;;) {
    const auto found =
        std::find_if(peer.early.begin(), peer.early.end(), [&](const Message& message) {
          return message.kind == kind && (IsOrdered(kind) || message.call == call);
        });
    if (found != peer.early.end()) {
      const Message message = *found;
      TORCH_CHECK(message.call == call, "mimo: bridge ", link_.name,
                  ": the ranks take the calls in ",
                  "different orders: ", link_.Describe(link_.rank), " comes to call ", call, ", ",
                  link_.Describe(from), " ", InWords(kind), message.call,
                  " first; wait for calls, and run backward through them, in the same order on "
                  "every rank");
      peer.early.erase(found);
      return message;
    }
    const auto forgotten = peer.forgotten.find(call);
    TORCH_CHECK(forgotten == peer.forgotten.end(), "mimo: bridge ", link_.name, ", call ", call,
                ": ", link_.Describe(from), " failed: ", forgotten->second);
    if (peer.end.has_value()) {
      const Message& end = *peer.end;
      TORCH_CHECK(end.kind != Message::kFailed, "mimo: bridge ", link_.name, ", call ", call, ": ",
                  link_.Describe(end.origin), " failed: ", end.text);
      TORCH_CHECK(false, "mimo: bridge ", link_.name, ", call ", call, ": ",
                  link_.Describe(link_.rank), " waited for ", link_.Describe(from),
                  ", which has left: ", end.text);
    }
    Read(peer, from, call);
  }
}

void Messages::SendFailure(const std::string& text) {
  Message message =
      failure_heard_.value_or(Message{.kind = Message::kFailed, .origin = link_.rank});
  if (!failure_heard_.has_value()) message.set_text(text);
  SendEnd(message);
}

void Messages::SendLeft(const std::string& text) {
  Message message{.kind = Message::kLeft};
  message.set_text(text);
  SendEnd(message);
}

void Messages::SendEnd(const Message& end) {
  for (const int rank : link_.ranks) {
    if (rank == link_.rank) continue;
    try {
      Send(end, rank);
    } catch (const std::exception&) {
      continue;  // It is gone and gets no message.
    }
  }
  has_ended_ = true;
}

void Messages::WaitUntilAllLeft() {
  for (auto& [rank, peer] : peers_) {
    try {
      while (!peer.end.has_value()) Read(peer, rank, /*call=*/0);
    } catch (const std::exception&) {
      continue;  // It is gone.
    }
  }
  // A failed rank ends its part long before it reads this rank's last messages. They are lost if
  // their buffers are freed first. There is no cycle of waiting ranks: each has read all others to
  // their end.
  for (auto& [rank, peer] : peers_) {
    try {
      for (; !peer.is_gone && !peer.unheard.empty(); peer.unheard.pop_front())
        peer.unheard.front()->wait();
    } catch (const std::exception&) {
      continue;  // It is gone.
    }
  }
}

}  // namespace lockstep::mimo
