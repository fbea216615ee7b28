// Every send, receive and collective of all ranks for one step, proven to match and end on paper.
//
// The failure this prevents: rank 3 sends while rank 5 reduces, and thirty minutes later an error
// names neither. A schedule is plain data, a list of operations for each rank; Simulate runs all
// lists against each other without a single message and says which ranks wait for which, and for
// what.
//
//   absl::StatusOr<Schedule> schedule = MakeSchedule(*topology, {.num_micro_batches = 4,
//                                                                .micro_batch_size = 6});
//   absl::StatusOr<Simulation> simulation = Simulate(*schedule);  // or who waits for whom
//
// The model. A rank runs its operations in order. Those of one batch start together and the rank
// goes on when all have completed; a send completes when its receive has started, and the other way
// round (nothing is buffered); a collective when all members have started it. The k-th send from a
// to b meets the k-th receive at b from a; so do the k-th collectives of a group. What ends under
// these rules ends under any backend that starts earlier, buffers, or waits later, as long as each
// pair and each group keeps its order: each operation's partner is fixed, so no choice can go
// wrong. Asynchronous bridges, which start the receive of micro-batch i + 1 during i, are covered.
//
// The order, which the bridge follows. kSequential: for each micro-batch, for each module in
// topology.forward_order(): its incoming edges in the order of edges() (on ranks of either end: ONE
// batch of all sends and receives of the route, then the all-gather of the lanes), then its
// pipeline (receive from the stage before, compute, send to the next). Then backward, all in
// reverse: modules from last to first: pipeline, then incoming edges from last to first (reduction
// over cp on the receiving side, ONE batch of the transposed route, all-gather of the lanes). After
// the last micro-batch, for each module: gradients over dp-cp; then over the world: the count of
// tokens and the global norm. k1F1B: each rank runs one forward and one backward in turn, after as
// many forwards as there are stages below it on the longest path; its edges of one direction go in
// one batch with the opposite direction of the neighbouring micro-batch. It wants ranks of one
// module each.

#ifndef LOCKSTEP_MIMO_SCHEDULE_H_
#define LOCKSTEP_MIMO_SCHEDULE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "mimo/groups.h"
#include "mimo/routes.h"
#include "mimo/topology.h"

namespace lockstep::mimo {

enum class OpKind : uint8_t { kSend, kReceive, kCollective };

// What an operation carries; both ends must agree on it.
enum class Payload : uint8_t {
  kBridge,           // activations over an edge
  kBridgeGradient,   // their gradients
  kBridgeGather,     // all-gather of the lanes after kBridge
  kGradientGather,   // and after kBridgeGradient
  kContextSum,       // sum over cp before kBridgeGradient
  kStage,            // activations to the next stage of a module
  kStageGradient,    // their gradients
  kTensorForward,    // a module's own collectives over tp-cp, one for all
  kTensorBackward,   // the same in backward
  kReduceGradients,  // over dp-cp
  kCountTokens,      // over the world
  kGlobalNorm,       // over the world
};

struct Op {
  OpKind kind = OpKind::kSend;
  Payload payload = Payload::kBridge;
  bool with_previous = false;  // starts together with the operation before it: one batch
  int32_t partner = 0;         // a rank; for kCollective a group of the schedule
  int32_t subject = 0;         // index of the edge or of the module; 0 for the world
  int32_t micro_batch = 0;
  int64_t rows = 0;  // both ends must agree; 0 where unknown
};

struct Schedule {
  int64_t world_size = 0;
  std::vector<int64_t> op_offsets = {0};  // world_size + 1: rank r has ops [op_offsets[r] ...
  std::vector<Op> ops;                    // ... op_offsets[r + 1])
  std::vector<GroupSet> group_sets;       // group g: the g-th of all their groups
  std::vector<std::string> modules;       // names, for messages
  std::vector<std::string> edges;         // "vision>language"

  absl::Span<const Op> ops_of(int64_t rank) const {
    const size_t begin = static_cast<size_t>(op_offsets[static_cast<size_t>(rank)]);
    const size_t end = static_cast<size_t>(op_offsets[static_cast<size_t>(rank) + 1]);
    return absl::MakeConstSpan(ops).subspan(begin, end - begin);
  }
};

enum class Order { kSequential, k1F1B };

struct StepOptions {
  int64_t num_micro_batches = 1;
  // A route for each edge, the same in every micro-batch; or those of micro-batch m at [m * edges,
  // (m + 1) * edges). Empty: planned for micro_batch_size samples of one row each, as uneven as
  // they come.
  absl::Span<const Route> routes = {};
  int64_t micro_batch_size = 0;
  Order order = Order::kSequential;
};

// InvalidArgument if a size is not positive, routes are not as many as they should be or not of
// their edge, or k1F1B meets a rank of several modules. The schedule is not simulated yet.
absl::StatusOr<Schedule> MakeSchedule(const Topology& topology, const StepOptions& options);

struct Simulation {
  int64_t ops = 0;
  int64_t transfers = 0;    // pairs of send and receive
  int64_t collectives = 0;  // each once, however many ranks
};

// FailedPrecondition says what is wrong, of all ranks: first what cannot match (an operation
// without a partner, partners that differ in what they carry, a collective of a group that the rank
// is not in), at most 8 of them; then, if all match, the cycle of ranks that wait for each other,
// each with its operation. InvalidArgument if the data is not a schedule (a partner out of range, a
// group twice the same rank).
//
// Cost: O(operations + members of collectives).
absl::StatusOr<Simulation> Simulate(const Schedule& schedule);

// "rank 3: receive of activations vision>language, micro-batch 2, 4 rows, from rank 0".
std::string Describe(const Schedule& schedule, int64_t rank, const Op& op);

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_SCHEDULE_H_
