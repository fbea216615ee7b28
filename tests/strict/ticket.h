// The tickets by which two ranks describe an operation to each other and compare it before they run
// it. See strict_backend.h.

#ifndef LOCKSTEP_TESTS_STRICT_TICKET_H_
#define LOCKSTEP_TESTS_STRICT_TICKET_H_

#include <cstdint>
#include <string>

namespace lockstep::tests {

enum class Role : int64_t { kCollective, kSend, kReceive };

// The order of two backward nodes: the one that issues an operation, and the one that issued the
// operation before.
enum class NodeOrder : int64_t { kUnknown, kSame, kOfLaterForward, kOfEarlierForward };

// A description of an operation as plain bytes, sent from one rank to another.
struct Ticket {
  Role role = Role::kCollective;
  int64_t after = 0;  // number of earlier collectives of the communicator
  int64_t tag = 0;
  int64_t gives = 0;  // elements for the receiver of the ticket
  int64_t takes = 0;  // elements from the receiver
  NodeOrder order = NodeOrder::kUnknown;
  char dtype[16] = {};
  char what[184] = {};  // the operation as text; must be equal for a collective

  void set_dtype(const std::string& value);
  void set_what(const std::string& value);
};

// Returns why NCCL could not run an operation that two ranks describe in this way, or "". The
// message is the same on both ranks.
std::string FindDisagreement(int rank_a, const Ticket& a, int rank_b, const Ticket& b);

}  // namespace lockstep::tests

#endif  // LOCKSTEP_TESTS_STRICT_TICKET_H_
