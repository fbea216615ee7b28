// A Collective over its own TCP sockets, for messages that ranks exchange at every step.
//
//    // exchange: gives every rank the address of every rank, for example through a key-value store
//    auto collective =
//        SocketCollective::Connect(rank, size, "10.0.0.7", exchange, absl::Seconds(60));
//    auto pending = (*collective)->StartAllGather(bytes);  // sends
//    Train();
//    auto all = pending->Wait();                         // reads
//
// Why not Gloo: it passes each collective to a worker thread, which passes it to a transport
// thread. These are four thread switches in every step. Here the calling thread sends and reads,
// and the kernel does the rest while the step runs.
//
// GatherWithParts moves memory behind a message: between two ranks of one machine 16 kB cost a
// tenth of Gloo's CPU time.
//
// Up to 64 ranks, every rank sends to every other rank. Larger groups gather in rounds: in round k
// a rank sends what it has to the rank 2^k places ahead. So each rank has 2 log2(size) connections
// at most, and sends log2(size) messages (Bruck et al., "Efficient algorithms for all-to-all
// communications in multiport message-passing systems", 1997). A rank passes others' bytes on while
// it waits itself.
//
// An error names the rank that is gone or has not come. In rounds, the rank that notices it tells
// its neighbours, and they tell theirs, so that every rank returns the same error.
//
// Thread: used by one thread.

#ifndef LOCKSTEP_SHARDING_AGREEMENT_SOCKET_COLLECTIVE_H_
#define LOCKSTEP_SHARDING_AGREEMENT_SOCKET_COLLECTIVE_H_

#include <poll.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "sharding/agreement/collective.h"

namespace lockstep::sharding {

class SocketCollective : public Collective {
 public:
  // Publishes this rank's text, and returns those of the positions that this rank needs, in their
  // order. Ranks find each other's ports by it.
  using Exchange = std::function<absl::StatusOr<std::vector<std::string>>(
      const std::string& own, const std::vector<int>& positions)>;

  // Larger groups gather in rounds.
  static constexpr int kMostAtOnce = 64;

  // Listens on a port that the kernel chooses and connects to all ranks. `address` is an address of
  // this machine, a numeric IPv4 or IPv6 address. `timeout` limits the connecting and every later
  // Wait. `ranks` are the world ranks of the group's members, as messages name them. Empty: 0 to
  // size - 1. `most_at_once` is for tests.
  //
  // Collective: every rank of the group calls this; blocks until its neighbours have. Returns
  // Unavailable, with the rank that cannot be reached or did not come.
  static absl::StatusOr<std::unique_ptr<SocketCollective>> Connect(
      int rank, int size, const std::string& address, const Exchange& exchange,
      absl::Duration timeout, std::vector<int> ranks = {}, int most_at_once = kMostAtOnce);

  int rank() const override { return state_->rank; }
  int size() const override { return static_cast<int>(state_->peers.size()); }
  int WorldRank(int position) const override {
    return state_->NameOf(static_cast<size_t>(position));
  }

  // Makes waits return Cancelled once `interrupted` returns true. A wait asks it every 200 ms and
  // after each signal, on the thread that waits. For programs that must react to Ctrl-C. After
  // such an error use this object no more.
  void InterruptWhen(std::function<bool()> interrupted) {
    state_->interrupted = std::move(interrupted);
  }

  // Sends this rank's bytes. Wait returns Unavailable if a rank has closed its connection,
  // DeadlineExceeded if ranks have not come within the timeout, and FailedPrecondition if a rank
  // sent another number of bytes. Each error names the ranks. In rounds, a gathering ends on other
  // ranks only once this rank waits for it or for a later one.
  std::unique_ptr<Pending> StartAllGather(const std::string& bytes) override;

  // The kernel reads and writes the parts where they are. Each rank sends and receives at the same
  // time, so parts may be larger than the kernel's buffers. Returns the same errors as Wait. Not in
  // rounds.
  bool CanMoveParts() const override { return state_->rounds == 0; }
  absl::StatusOr<std::vector<std::string>> GatherWithParts(const std::string& message,
                                                           const Parts& parts) override;

 private:
  // Owns a file descriptor and closes it.
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

  // The connection to another rank. A message is four bytes of length, then the bytes. In rounds
  // the bytes are blocks of four bytes of length and a rank's bytes: the sender's own, then those
  // of the ranks before it. A length with the bit kFailure announces an error: the number of the
  // gathering, then the code and the text of the status.
  struct Peer {
    Socket socket;
    std::string outgoing;  // bytes that the kernel has not accepted yet
    std::string incoming;  // the beginning of a message
    int64_t received = 0;
    std::map<int64_t, std::string> messages;  // by number: messages that Wait has not returned
    bool closed = false;
  };

  static constexpr uint32_t kFailure = uint32_t{1} << 31;

  // A gathering in rounds.
  struct Spread {
    size_t round = 0;    // that is under way
    std::string blocks;  // of this rank, and of those before it
  };

  struct State {
    int rank = 0;
    size_t rounds = 0;                  // 0: every rank sends to every other rank
    std::map<int64_t, Spread> spreads;  // by number: those that Wait has not returned
    absl::Status failure;               // what ended the group, in rounds,
    int64_t failed = 0;                 // and the first gathering that it ended
    std::vector<int> names;             // of the ranks, in messages
    absl::Duration timeout;
    std::vector<Peer> peers;      // by rank; those that this one is not connected to are unused
    std::vector<int> neighbours;  // the positions of those that it is connected to, ascending
    int64_t started = 0;
    std::function<bool()> interrupted;  // null: nothing interrupts a wait

    int NameOf(size_t other) const { return names[other]; }
    int OwnName() const { return names[static_cast<size_t>(rank)]; }
    void Send(Peer& peer);
    void Receive(Peer& peer);
    void Parse(Peer& peer);  // moves complete messages from `incoming` to `messages`
    // Sends and receives until message `number` of every rank has arrived.
    absl::Status AwaitMessages(int64_t number);
    // The same in rounds: see socket_rounds.cc.
    void StartRounds(int64_t number, const std::string& bytes);
    absl::Status AwaitRounds(int64_t number);
    void SendBlocks(size_t round, std::string_view blocks);
    void Advance(int64_t number, Spread& spread);
    size_t Behind(size_t round) const;  // the position that this one receives from
    // Returns the bytes of all ranks, or the error of one that sent not as many as `expected`.
    absl::StatusOr<std::vector<std::string>> TakeBlocks(int64_t number, size_t expected);
    // Ends gathering `number` and all later ones with an error that every rank gets.
    absl::Status Fail(int64_t number, absl::Status status);
    absl::Status Tell(int64_t number, absl::Status status);
    void ReadFailure(const std::string& message);
    // Waits for one of the descriptors, or returns the error of ranks that have not come.
    absl::Status Poll(std::vector<pollfd>& wanted, const std::vector<int>& awaited,
                      const Deadline& deadline) const;
    absl::Status Lost(size_t other) const;
    absl::Status WrongSize(size_t other, size_t sent, size_t expected) const;
  };

  class Gathering;
  class Crossing;

  static absl::StatusOr<Socket> Listen(const std::string& address, std::string& endpoint);
  static absl::StatusOr<Socket> Dial(const std::string& endpoint, const Deadline& deadline);
  absl::Status Meet(const Socket& listener, const std::string& own,
                    const std::vector<std::string>& endpoints, const Deadline& deadline);

  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace lockstep::sharding

#endif  // LOCKSTEP_SHARDING_AGREEMENT_SOCKET_COLLECTIVE_H_
