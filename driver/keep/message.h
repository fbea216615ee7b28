// The messages between a rank and a keeper: packets of one size over a unix socket, one answer to
// each request. The descriptor of the memory travels with kPut and with the answer to kGet.

#ifndef LOCKSTEP_DRIVER_KEEP_MESSAGE_H_
#define LOCKSTEP_DRIVER_KEEP_MESSAGE_H_

#include <sys/socket.h>
#include <sys/un.h>

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep::driver {

// One rank's share of a state, after `step` steps.
struct Snapshot {
  int64_t step = 0;
  int32_t owner = 0;  // the rank
  int32_t world = 0;  // the number of ranks of the run
  uint64_t bytes = 0;
  uint32_t crc32 = 0;
  int64_t start = 0;  // of the run, which took it: shares of two starts are not one state
};

// Grows with each change of the messages. It is part of a keeper's name, so that a program does not
// meet a keeper of another version of it, which lives on for a while.
inline constexpr int kProtocol = 2;

enum class Request : uint32_t {
  kHello,  // answer: `bytes` is the keeper's own number, `start` the newest one that it knows
  kBegin,  // from now on, puts and drops of earlier starts than `start` are refused
  kPut,    // answer: none. Replaces what the owner has of this step and of later ones
  kDrop,   // the snapshot of this owner and step
  kCount,  // answer: `bytes` is the number of snapshots
  kAt,     // answer: the snapshot number `bytes`, from 0
  kGet,    // answer: the snapshot of this owner and step, with its memory
};

struct Packet {
  Request request = Request::kHello;
  uint32_t is_found = 0;    // of an answer
  uint32_t is_refused = 0;  // of an answer: a newer start of the run uses the keeper
  int64_t start = 0;        // of the run, to which the asking rank belongs
  Snapshot snapshot;
};

// Sends a packet, with a copy of `fd` unless it is -1. Returns false if the other side is gone.
bool Send(int socket, const Packet& packet, int fd);

// A packet, and the descriptor that came with it, or -1. The caller owns the descriptor.
struct Received {
  Packet packet;
  int fd = -1;
};

// Waits for a packet. Returns nullopt if the other side is gone, or sent something else.
std::optional<Received> Receive(int socket);

// Returns the address of the keeper `name` in the abstract namespace, and its length. No file
// stands for it, so that nothing is left behind. A name has at most 100 bytes.
socklen_t AddressOf(const std::string& name, sockaddr_un& address);

// Returns whether the process on the other side is of the same user.
bool IsOwnUser(int socket);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_KEEP_MESSAGE_H_
