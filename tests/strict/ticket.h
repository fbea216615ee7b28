// What two ranks tell each other about an operation before they carry it out, and what they
// compare. See strict_backend.h.

#ifndef LOCKSTEP_TESTS_STRICT_TICKET_H_
#define LOCKSTEP_TESTS_STRICT_TICKET_H_

#include <cstdint>
#include <string>

namespace lockstep::tests {

enum class Role : int64_t { kCollective, kSend, kReceive };

// How the backward node that issues an operation stands to the node that issued the one before.
enum class NodeOrder : int64_t { kUnknown, kSame, kOfLaterForward, kOfEarlierForward };

// Plain bytes, from one rank to another.
struct Ticket {
  Role role = Role::kCollective;
  int64_t after = 0;  // collectives of the communicator before it
  int64_t tag = 0;
  int64_t gives = 0;  // elements for the rank that gets the ticket
  int64_t takes = 0;  // elements from it
  NodeOrder order = NodeOrder::kUnknown;
  char dtype[16] = {};
  char what[184] = {};  // the operation in words; those of a collective must be equal

  void set_dtype(const std::string& value);
  void set_what(const std::string& value);
};

// Says why NCCL would not carry out an operation that two ranks describe so; "" where it would.
// The messages of ranks `a` and `b` are the same whoever asks.
std::string FindDisagreement(int rank_a, const Ticket& a, int rank_b, const Ticket& b);

}  // namespace lockstep::tests

#endif  // LOCKSTEP_TESTS_STRICT_TICKET_H_
