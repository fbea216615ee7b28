// A Collective over sockets of its own: for what ranks say to each other at every step.
//
//   auto collective = SocketCollective::Connect(rank, size, "10.0.0.7", exchange,
//   absl::Seconds(60)); auto pending = (*collective)->StartAllGather(bytes);   // a send to each
//   rank, no thread
//   ... the step ...
//   auto all = pending->Wait();                            // by then it is here: a read from each
//
// Gloo hands each collective to a worker thread and that to a transport thread: four switches of
// threads in every step. Here the caller's thread sends and reads; the kernel
// does the rest while the step runs. Every rank sends to every other: meant for up to 64 ranks.
//
// A rank that is gone is named, since each has a connection of its own.

#ifndef LOCKSTEP_SHARDING_AGREEMENT_SOCKET_COLLECTIVE_H_
#define LOCKSTEP_SHARDING_AGREEMENT_SOCKET_COLLECTIVE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "sharding/agreement/collective.h"

namespace lockstep::sharding {

class SocketCollective : public Collective {
 public:
  // Gives every rank the text of every rank, in the order of ranks: how they find each other.
  using Exchange = std::function<absl::StatusOr<std::vector<std::string>>(const std::string& own)>;

  // Listens on a port of `address` (this machine's, IPv4 or IPv6, as numbers) that the kernel
  // chooses, and connects to all ranks. Collective. `timeout` bounds the meeting and every later
  // Wait. Errors: Unavailable, naming the rank that cannot be reached or did not come. `ranks` are
  // the group's ranks as messages name them; empty: 0 to size - 1.
  static absl::StatusOr<std::unique_ptr<SocketCollective>> Connect(int rank, int size,
                                                                   const std::string& address,
                                                                   const Exchange& exchange,
                                                                   absl::Duration timeout,
                                                                   std::vector<int> ranks = {});

  int rank() const override { return state_->rank; }
  int size() const override { return static_cast<int>(state_->peers.size()); }
  int WorldRank(int position) const override {
    return state_->NameOf(static_cast<size_t>(position));
  }

  // Wait's errors: Unavailable where a rank has closed its connection, DeadlineExceeded where ranks
  // have not come within the timeout, FailedPrecondition where a rank sent another amount of bytes.
  // Each names the ranks.
  std::unique_ptr<Pending> StartAllGather(const std::string& bytes) override;

 private:
  // Closes the descriptor that it holds.
  class Socket {
   public:
    explicit Socket(int fd = -1) : fd_(fd) {}
    Socket(Socket&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
    Socket& operator=(Socket&& other) noexcept;
    ~Socket();
    int fd() const { return fd_; }

   private:
    int fd_;
  };

  // The connection to another rank. Messages are four bytes of length, then the bytes.
  struct Peer {
    Socket socket;
    std::string outgoing;  // what the kernel would not take yet
    std::string incoming;  // the beginning of a message
    int64_t received = 0;
    std::map<int64_t, std::string> messages;  // by their count, what Wait has not taken
    bool closed = false;
  };

  struct State {
    int rank = 0;
    std::vector<int> names;  // of the ranks, in messages
    absl::Duration timeout;
    std::vector<Peer> peers;  // by rank; this rank's own stays unused
    int64_t started = 0;

    int NameOf(size_t other) const { return names[other]; }
    int OwnName() const { return names[static_cast<size_t>(rank)]; }
    void Send(Peer& peer);
    void Receive(Peer& peer);
    // Sends and receives until every rank's message `number` is here.
    absl::Status AwaitMessages(int64_t number);
  };

  class Gathering;

  static absl::StatusOr<Socket> Listen(const std::string& address, std::string& endpoint);
  static absl::StatusOr<Socket> Dial(const std::string& endpoint, absl::Time deadline);
  absl::Status Meet(const Socket& listener, const std::vector<std::string>& endpoints,
                    absl::Time deadline);

  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace lockstep::sharding

#endif  // LOCKSTEP_SHARDING_AGREEMENT_SOCKET_COLLECTIVE_H_
