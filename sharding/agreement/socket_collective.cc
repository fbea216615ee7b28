#include "sharding/agreement/socket_collective.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <random>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/raw_bytes.h"

namespace lockstep::sharding {
namespace {

std::string Reason() { return std::strerror(errno); }

// Blocks until the descriptor is ready. Returns false at the deadline.
bool WaitFor(int fd, short events, const Deadline& deadline) {
  pollfd wanted = {fd, events, 0};
  for (;;) {
    const int ready = poll(&wanted, 1, deadline.MillisecondsLeft());
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
    if (deadline.has_passed()) return false;
  }
}

// Small messages leave at once, and no call on it waits.
void Prepare(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

// An IPv4 or IPv6 address, with a port.
struct Address {
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);

  int family() const { return storage.ss_family; }
  sockaddr* name() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* name() const { return reinterpret_cast<const sockaddr*>(&storage); }
  uint16_t port() const {
    return ntohs(family() == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port
                                      : reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
  }
};

// Reads numbers: "10.0.0.7", "fd00::7".
bool ParseAddress(const std::string& text, uint16_t port, Address& parsed) {
  parsed = {};
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(port);
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(port);
  if (inet_pton(AF_INET, text.c_str(), &v4.sin_addr) == 1) {
    std::memcpy(&parsed.storage, &v4, parsed.size = sizeof(v4));
    return true;
  }
  if (inet_pton(AF_INET6, text.c_str(), &v6.sin6_addr) != 1) return false;
  std::memcpy(&parsed.storage, &v6, parsed.size = sizeof(v6));
  return true;
}

// A rank's endpoint as the others get it: "address port token".
struct Endpoint {
  Address address;
  uint64_t token = 0;  // a connecting rank must send it
};

absl::StatusOr<Endpoint> ParseEndpoint(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ' ');
  Endpoint endpoint;
  int port = 0;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[1], &port) ||
      !ParseAddress(parts[0], static_cast<uint16_t>(port), endpoint.address) ||
      !absl::SimpleAtoi(parts[2], &endpoint.token)) {
    return absl::InternalError(absl::StrCat("\"", text, "\" is no rank's address"));
  }
  return endpoint;
}

constexpr size_t kHelloSize = sizeof(uint64_t) + sizeof(int32_t);  // token, rank

// The positions that a rank is connected to, ascending. Without rounds, all others.
std::vector<int> NeighboursOf(int rank, int size, size_t rounds) {
  std::set<int> neighbours;
  if (rounds == 0) {
    for (int other = 0; other < size; ++other) neighbours.insert(other);
  }
  for (size_t round = 0; round < rounds; ++round) {
    const int step = 1 << round;
    neighbours.insert((rank + step) % size);
    neighbours.insert((rank - step + size) % size);
  }
  neighbours.erase(rank);
  return {neighbours.begin(), neighbours.end()};
}

}  // namespace

// --- Meeting -------------------------------------------------------------------------------------

SocketCollective::Socket& SocketCollective::Socket::operator=(Socket&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

SocketCollective::Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<std::unique_ptr<SocketCollective>> SocketCollective::Connect(
    int rank, int size, const std::string& address, const Exchange& exchange,
    absl::Duration timeout, std::vector<int> ranks, int most_at_once) {
  const Deadline deadline(timeout);
  auto collective = std::make_unique<SocketCollective>();
  collective->state_->rank = rank;
  collective->state_->timeout = timeout;
  if (ranks.empty()) {
    ranks.resize(static_cast<size_t>(size));
    std::iota(ranks.begin(), ranks.end(), 0);
  }
  collective->state_->names = std::move(ranks);
  collective->state_->peers.resize(static_cast<size_t>(size));
  if (size > most_at_once)
    collective->state_->rounds = std::bit_width(static_cast<size_t>(size) - 1);
  collective->state_->neighbours = NeighboursOf(rank, size, collective->state_->rounds);
  const std::vector<int>& neighbours = collective->state_->neighbours;
  std::string endpoint;
  absl::StatusOr<Socket> listener = Listen(address, endpoint);
  if (!listener.ok()) return listener.status();
  absl::StatusOr<std::vector<std::string>> endpoints = std::vector<std::string>();
  if (size > 1) endpoints = exchange(endpoint, neighbours);
  if (!endpoints.ok()) return endpoints.status();
  if (endpoints->size() != neighbours.size()) {
    return absl::InternalError(absl::StrCat("sharding: the exchange returned ", endpoints->size(),
                                            " addresses in place of ", neighbours.size()));
  }
  const absl::Status met = collective->Meet(*listener, endpoint, *endpoints, deadline);
  if (!met.ok()) return met;
  return collective;
}

absl::StatusOr<SocketCollective::Socket> SocketCollective::Listen(const std::string& address,
                                                                  std::string& endpoint) {
  Address own;
  if (!ParseAddress(address, 0, own)) {
    return absl::InvalidArgumentError(
        absl::StrCat("sharding: \"", address, "\" is no IPv4 or IPv6 address in numbers"));
  }
  Socket listener(socket(own.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (listener.fd() < 0 || bind(listener.fd(), own.name(), own.size) != 0 ||
      listen(listener.fd(), SOMAXCONN) != 0 ||
      getsockname(listener.fd(), own.name(), &own.size) != 0) {
    return absl::UnavailableError(
        absl::StrCat("sharding: cannot listen on ", address, ": ", Reason()));
  }
  std::random_device random;
  const uint64_t token = (uint64_t{random()} << 32) | random();
  endpoint = absl::StrCat(address, " ", own.port(), " ", token);
  return listener;
}

absl::StatusOr<SocketCollective::Socket> SocketCollective::Dial(const std::string& endpoint,
                                                                const Deadline& deadline) {
  const absl::StatusOr<Endpoint> parsed = ParseEndpoint(endpoint);
  if (!parsed.ok()) return parsed.status();
  const Address& address = parsed->address;
  Socket socket(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (socket.fd() < 0) return absl::UnavailableError(Reason());
  Prepare(socket.fd());
  if (connect(socket.fd(), address.name(), address.size) != 0 && errno != EINPROGRESS)
    return absl::UnavailableError(Reason());
  int error = 0;
  socklen_t length = sizeof(error);
  if (!WaitFor(socket.fd(), POLLOUT, deadline)) return absl::UnavailableError("no answer");
  getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) return absl::UnavailableError(std::strerror(error));
  return socket;
}

// Each rank calls those before it and answers those after it.
absl::Status SocketCollective::Meet(const Socket& listener, const std::string& own,
                                    const std::vector<std::string>& endpoints,
                                    const Deadline& deadline) {
  const std::vector<int>& neighbours = state_->neighbours;
  std::vector<Peer>& peers = state_->peers;
  std::set<size_t> missing;
  for (size_t i = 0; i < neighbours.size(); ++i) {
    const auto other = static_cast<size_t>(neighbours[i]);
    if (neighbours[i] > state_->rank) {
      missing.insert(other);
      continue;
    }
    const std::string& endpoint = endpoints[i];
    absl::StatusOr<Socket> socket = Dial(endpoint, deadline);
    const absl::StatusOr<Endpoint> parsed = ParseEndpoint(endpoint);
    std::string hello;
    if (parsed.ok())
      hello = base::BytesOf(parsed->token) + base::BytesOf(static_cast<int32_t>(state_->rank));
    if (!socket.ok() || send(socket->fd(), hello.data(), hello.size(), MSG_NOSIGNAL) !=
                            static_cast<ssize_t>(hello.size())) {
      return absl::UnavailableError(
          absl::StrCat("sharding: cannot reach rank ", state_->NameOf(other), " at ",
                       endpoint.substr(0, endpoint.rfind(' ')), ": ",
                       socket.ok() ? Reason() : std::string(socket.status().message())));
    }
    peers[other].socket = *std::move(socket);
  }
  const auto parsed = ParseEndpoint(own);
  if (!parsed.ok()) return parsed.status();
  while (!missing.empty()) {
    Socket socket(WaitFor(listener.fd(), POLLIN, deadline)
                      ? accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC)
                      : -1);
    if (socket.fd() < 0) {
      std::vector<int> absent;
      for (const size_t other : missing) absent.push_back(state_->NameOf(other));
      return absl::UnavailableError(
          absl::StrCat("sharding: these ranks have not come: ", absl::StrJoin(absent, ", ")));
    }
    Prepare(socket.fd());
    // A peer without the token is not a rank: a port scan, for example. Do not wait long for a
    // silent peer while ranks queue behind it.
    const Deadline patience = std::min(deadline, Deadline(absl::Seconds(5)));
    std::string hello(kHelloSize, '\0');
    size_t size = 0;
    while (size < kHelloSize && WaitFor(socket.fd(), POLLIN, patience)) {
      const ssize_t count = recv(socket.fd(), hello.data() + size, kHelloSize - size, 0);
      if (count <= 0) break;
      size += static_cast<size_t>(count);
    }
    const auto other =
        static_cast<size_t>(base::FromBytes<int32_t>(hello.data() + sizeof(uint64_t)));
    if (size != kHelloSize || base::FromBytes<uint64_t>(hello.data()) != parsed->token ||
        !missing.contains(other))
      continue;
    peers[other].socket = std::move(socket);
    missing.erase(other);
  }
  return absl::OkStatus();
}

// --- Gathering -----------------------------------------------------------------------------------

class SocketCollective::Gathering : public Collective::Pending {
 public:
  Gathering(std::shared_ptr<State> state, int64_t number, std::string own)
      : state_(std::move(state)), number_(number), own_(std::move(own)) {}

  absl::StatusOr<std::vector<std::string>> Wait() override {
    const bool in_rounds = state_->rounds > 0;
    const absl::Status status =
        in_rounds ? state_->AwaitRounds(number_) : state_->AwaitMessages(number_);
    if (!status.ok()) return status;
    if (in_rounds) return state_->TakeBlocks(number_, own_.size());
    std::vector<std::string> all;
    for (size_t rank = 0; rank < state_->peers.size(); ++rank) {
      if (static_cast<int>(rank) == state_->rank) {
        all.push_back(own_);
        continue;
      }
      all.push_back(std::move(state_->peers[rank].messages.extract(number_).mapped()));
      if (all.back().size() == own_.size()) continue;
      return state_->WrongSize(rank, all.back().size(), own_.size());
    }
    return all;
  }

 private:
  std::shared_ptr<State> state_;
  int64_t number_;
  std::string own_;
};

std::unique_ptr<Collective::Pending> SocketCollective::StartAllGather(const std::string& bytes) {
  const int64_t number = state_->started++;
  if (state_->rounds > 0) {
    state_->StartRounds(number, bytes);
    return std::make_unique<Gathering>(state_, number, bytes);
  }
  const std::string message = base::BytesOf(static_cast<uint32_t>(bytes.size())) + bytes;
  for (Peer& peer : state_->peers) {
    if (peer.socket.fd() < 0) continue;
    peer.outgoing += message;
    state_->Send(peer);
  }
  return std::make_unique<Gathering>(state_, number, bytes);
}

// Sends as much as the kernel takes now. A lost peer is detected when its answer does not arrive.
void SocketCollective::State::Send(Peer& peer) {
  size_t sent = 0;
  while (sent < peer.outgoing.size()) {
    const ssize_t count = send(peer.socket.fd(), peer.outgoing.data() + sent,
                               peer.outgoing.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (count < 0) sent = peer.outgoing.size();  // no rank will read it
    if (count > 0) sent += static_cast<size_t>(count);
  }
  peer.outgoing.erase(0, sent);
}

// As much as has come.
void SocketCollective::State::Receive(Peer& peer) {
  char buffer[1 << 16];
  for (;;) {
    const ssize_t count = recv(peer.socket.fd(), buffer, sizeof(buffer), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (count <= 0) {
      peer.closed = true;
      break;
    }
    peer.incoming.append(buffer, static_cast<size_t>(count));
    if (static_cast<size_t>(count) < sizeof(buffer)) break;
  }
  Parse(peer);
}

void SocketCollective::State::Parse(Peer& peer) {
  size_t begin = 0;
  while (peer.incoming.size() - begin >= sizeof(uint32_t)) {
    const auto header = base::FromBytes<uint32_t>(peer.incoming.data() + begin);
    const bool is_failure = rounds > 0 && (header & kFailure) != 0;
    const size_t length = is_failure ? header - kFailure : header;
    if (peer.incoming.size() - begin - sizeof(uint32_t) < length) break;
    std::string message = peer.incoming.substr(begin + sizeof(uint32_t), length);
    if (is_failure) {
      ReadFailure(message);
    } else {
      peer.messages[peer.received++] = std::move(message);
    }
    begin += sizeof(uint32_t) + length;
  }
  peer.incoming.erase(0, begin);
}

// Until this rank's own bytes have left, too: it may end next, and its socket with it.
absl::Status SocketCollective::State::AwaitMessages(int64_t number) {
  const Deadline deadline(timeout);
  for (;;) {
    std::vector<pollfd> wanted;
    std::vector<int> awaited;
    for (size_t other = 0; other < peers.size(); ++other) {
      Peer& peer = peers[other];
      if (peer.socket.fd() < 0) continue;
      Send(peer);
      if (peer.received <= number && !peer.closed) Receive(peer);
      const bool missing = peer.received <= number;
      if (missing && peer.closed) return Lost(other);
      const int events = (missing ? POLLIN : 0) | (peer.outgoing.empty() ? 0 : POLLOUT);
      if (events == 0) continue;
      wanted.push_back({peer.socket.fd(), static_cast<short>(events), 0});
      awaited.push_back(NameOf(other));
    }
    if (awaited.empty()) return absl::OkStatus();
    const absl::Status polled = Poll(wanted, awaited, deadline);
    if (!polled.ok()) return polled;
  }
}

absl::Status SocketCollective::State::Poll(std::vector<pollfd>& wanted,
                                           const std::vector<int>& awaited,
                                           const Deadline& deadline) const {
  constexpr int kAskEveryMs = 200;
  const int left = deadline.MillisecondsLeft();
  const int patience = interrupted == nullptr ? left : std::min(left, kAskEveryMs);
  const int ready = poll(wanted.data(), wanted.size(), patience);
  if (ready < 0 && errno != EINTR) return absl::InternalError(absl::StrCat("poll: ", Reason()));
  if (ready <= 0 && interrupted != nullptr && interrupted()) {
    return absl::CancelledError(absl::StrCat("sharding: interrupted while waiting for ranks ",
                                             absl::StrJoin(awaited, ", ")));
  }
  if (ready != 0 || !deadline.has_passed()) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("sharding: rank ", OwnName(), " has waited ", absl::FormatDuration(timeout),
                   " for ranks that have not come: ", absl::StrJoin(awaited, ", ")));
}

absl::Status SocketCollective::State::Lost(size_t other) const {
  return absl::UnavailableError(absl::StrCat(
      "sharding: rank ", NameOf(other), " was lost: it closed its connection to rank ", OwnName()));
}

absl::Status SocketCollective::State::WrongSize(size_t other, size_t sent, size_t expected) const {
  return absl::FailedPreconditionError(absl::StrCat(
      "sharding: rank ", NameOf(other), " sent ", sent, " bytes where rank ", OwnName(), " sent ",
      expected, "; the ranks are at different points of the program"));
}

}  // namespace lockstep::sharding
