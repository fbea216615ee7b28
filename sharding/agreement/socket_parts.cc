#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "base/raw_bytes.h"
#include "sharding/agreement/socket_collective.h"

// GatherWithParts: a message to every rank, and memory behind it. On the wire it is one message of
// StartAllGather: four bytes of length, the text, the part.
//
// A rank expects that the others send the text that it sends itself. So it lets the kernel write
// their parts to where they belong. If another text or length comes, the bytes that were read move
// to the buffer of unexpected messages, and the usual way goes on from there. Those may include the
// beginning of the rank's next message. socket_parts_test.cc mixes both ways.

namespace lockstep::sharding {
namespace {

// Memory in pieces that system calls send or fill, as much at a time as the kernel takes.
class Pieces {
 public:
  void Add(const void* data, size_t size) {
    if (size == 0) return;
    all_.push_back({const_cast<void*>(data), size});
    left_ += size;
    total_ += size;
  }
  size_t left() const { return left_; }
  size_t done() const { return total_ - left_; }

  // Calls `call`, sendmsg or recvmsg, until nothing is left or the kernel would wait. Returns false
  // if the connection is closed.
  template <typename Call>
  bool Move(Call&& call) {
    while (left_ > 0) {
      constexpr size_t kMost = 64;
      msghdr message{};
      std::vector<iovec> rest(
          all_.begin() + static_cast<std::ptrdiff_t>(first_),
          all_.begin() + static_cast<std::ptrdiff_t>(std::min(all_.size(), first_ + kMost)));
      rest[0] = {static_cast<char*>(rest[0].iov_base) + offset_, rest[0].iov_len - offset_};
      message.msg_iov = rest.data();
      message.msg_iovlen = rest.size();
      const ssize_t count = call(&message);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
      if (count <= 0) return false;
      Advance(static_cast<size_t>(count));
    }
    return true;
  }

  // Returns the bytes that have been moved, and those that have not.
  std::string Done() const { return All().substr(0, done()); }
  std::string Rest() const { return All().substr(done()); }

 private:
  std::string All() const {
    std::string bytes;
    for (const iovec& piece : all_)
      bytes.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
    return bytes;
  }

  void Advance(size_t count) {
    left_ -= count;
    for (offset_ += count; first_ < all_.size() && offset_ >= all_[first_].iov_len; ++first_)
      offset_ -= all_[first_].iov_len;
  }

  std::vector<iovec> all_;
  size_t first_ = 0, offset_ = 0;  // of the next byte
  size_t left_ = 0, total_ = 0;
};

template <typename Span>
size_t BytesOf(const std::vector<Span>& pieces) {
  size_t bytes = 0;
  for (const Span& piece : pieces) bytes += piece.size();
  return bytes;
}

std::string Header(const std::string& message, size_t part) {
  const auto length = static_cast<uint32_t>(message.size() + part);
  return base::BytesOf(length) + message;
}

}  // namespace

// The bytes that cross between this rank and another one in one GatherWithParts.
class SocketCollective::Crossing {
 public:
  Crossing(State& state, size_t other, int64_t number, const std::string& message,
           absl::Span<const absl::Span<const char>> to, absl::Span<const absl::Span<char>> from)
      : state_(state),
        peer_(state.peers[other]),
        other_(other),
        number_(number),
        message_(message),
        from_(from.begin(), from.end()),
        sent_header_(
            Header(message, BytesOf(std::vector<absl::Span<const char>>(to.begin(), to.end())))),
        expected_header_(Header(message, BytesOf(from_))),
        header_(expected_header_.size(), '\0') {
    outgoing_.Add(sent_header_.data(), sent_header_.size());
    for (const auto& piece : to) outgoing_.Add(piece.data(), piece.size());
    incoming_.Add(header_.data(), header_.size());
    for (const auto& piece : from_) incoming_.Add(piece.data(), piece.size());
  }
  // After an error the connection may be in the middle of a message. Leaves it as other calls
  // expect it.
  ~Crossing() {
    if (outgoing_.left() > 0 && !refuses_) peer_.outgoing += outgoing_.Rest();
    if (is_expected_ && !has_come_) LeaveToOthers();
  }
  Crossing(const Crossing&) = delete;
  Crossing& operator=(const Crossing&) = delete;

  // Sends and receives what the kernel takes and has. Returns the events to wait for, 0 at the end.
  short Step() {
    state_.Send(peer_);  // of earlier messages
    const int fd = peer_.socket.fd();
    // A closed connection refuses bytes that nobody will read. Its end is noticed below.
    if (peer_.outgoing.empty() && !refuses_)
      refuses_ = !outgoing_.Move([fd](msghdr* m) { return sendmsg(fd, m, MSG_NOSIGNAL); });
    if (!has_come_) Receive();
    const bool sends = !peer_.outgoing.empty() || (outgoing_.left() > 0 && !refuses_);
    return static_cast<short>((has_come_ ? 0 : POLLIN) | (sends ? POLLOUT : 0));
  }

  bool IsLost() const { return !has_come_ && peer_.closed; }

  // Once the rank's message has come: returns it, and sees to its part.
  absl::StatusOr<std::string> Take() {
    if (is_expected_) return message_;
    std::string came = std::move(peer_.messages.extract(number_).mapped());
    const size_t expected = message_.size() + BytesOf(from_);
    if (came.size() < message_.size()) return state_.WrongSize(other_, came.size(), expected);
    std::string text = came.substr(0, message_.size());
    if (text != message_) return text;
    if (came.size() != expected) return state_.WrongSize(other_, came.size(), expected);
    const char* next = came.data() + text.size();
    for (const auto& piece : from_) {
      std::memcpy(piece.data(), next, piece.size());
      next += piece.size();
    }
    return text;
  }

 private:
  void Receive() {
    // Earlier messages come first, and this one may have been read along with them.
    if (peer_.received != number_ || !peer_.incoming.empty()) is_expected_ = false;
    if (is_expected_ && !peer_.closed) ReceiveInPlace();
    if (!is_expected_) {
      if (peer_.received <= number_ && !peer_.closed) state_.Receive(peer_);
      has_come_ = peer_.received > number_;
    }
  }

  void ReceiveInPlace() {
    const int fd = peer_.socket.fd();
    if (!incoming_.Move([fd](msghdr* m) { return recvmsg(fd, m, 0); })) peer_.closed = true;
    const size_t size = std::min(incoming_.done(), header_.size());
    if (header_.compare(0, size, expected_header_, 0, size) != 0) {
      LeaveToOthers();
    } else if (incoming_.left() == 0) {
      ++peer_.received;
      has_come_ = true;
    }
  }

  void LeaveToOthers() {
    is_expected_ = false;
    peer_.incoming += incoming_.Done();
    state_.Parse(peer_);
  }

  State& state_;
  Peer& peer_;
  const size_t other_;
  const int64_t number_;
  const std::string& message_;
  const std::vector<absl::Span<char>> from_;
  const std::string sent_header_, expected_header_;
  std::string header_;  // that came
  Pieces outgoing_, incoming_;
  bool is_expected_ = true;  // what has come is what this rank expects, and lies where it belongs
  bool has_come_ = false;
  bool refuses_ = false;
};

absl::StatusOr<std::vector<std::string>> SocketCollective::GatherWithParts(
    const std::string& message, const Parts& parts) {
  if (!CanMoveParts()) return Collective::GatherWithParts(message, parts);
  for (const auto& pieces : parts.to) {
    if (message.size() + BytesOf(pieces) > std::numeric_limits<uint32_t>::max())
      return absl::InvalidArgumentError("sharding: a part has 4 GiB or more");
  }
  State& state = *state_;
  const int64_t number = state.started++;
  const Deadline deadline(state.timeout);
  std::vector<std::unique_ptr<Crossing>> crossings(state.peers.size());
  for (size_t other = 0; other < state.peers.size(); ++other) {
    if (state.peers[other].socket.fd() < 0) continue;
    const auto to = other < parts.to.size() ? absl::MakeConstSpan(parts.to[other])
                                            : absl::Span<const absl::Span<const char>>();
    const auto from = other < parts.from.size() ? absl::MakeConstSpan(parts.from[other])
                                                : absl::Span<const absl::Span<char>>();
    crossings[other] = std::make_unique<Crossing>(state, other, number, message, to, from);
  }
  std::vector<pollfd> wanted;
  std::vector<int> awaited;
  for (;;) {
    wanted.clear();
    awaited.clear();
    for (size_t other = 0; other < crossings.size(); ++other) {
      if (crossings[other] == nullptr) continue;
      const short events = crossings[other]->Step();
      if (crossings[other]->IsLost()) return state.Lost(other);
      if (events == 0) continue;
      wanted.push_back({state.peers[other].socket.fd(), events, 0});
      awaited.push_back(state.NameOf(other));
    }
    if (wanted.empty()) break;
    const absl::Status polled = state.Poll(wanted, awaited, deadline);
    if (!polled.ok()) return polled;
  }
  std::vector<std::string> all;
  absl::Status wrong;
  for (const auto& crossing : crossings) {
    absl::StatusOr<std::string> text(message);
    if (crossing != nullptr) text = crossing->Take();
    if (!text.ok()) wrong.Update(text.status());
    all.push_back(text.ok() ? *std::move(text) : std::string());
  }
  if (!wrong.ok()) return wrong;
  return all;
}

}  // namespace lockstep::sharding
