// Lists every send, receive and collective of all ranks for one step, and proves that they match
// and that the step ends.
//
// The failure this prevents: rank 3 sends while rank 5 reduces, and thirty minutes later an error
// names neither. A schedule is plain data, a list of operations for each rank. Simulate runs all
// lists against each other without sending a message. If they do not end, it names the ranks that
// wait for each other and their operations.
//
//    absl::StatusOr<Schedule> schedule = MakeSchedule(*topology, {.num_micro_batches = 4,
//                                                                 .micro_batch_size = 6});
//    absl::StatusOr<Simulation> simulation = Simulate(*schedule);
//
// The model. A rank runs its operations in order. The operations of one batch start together, and
// the rank continues when all of them have completed. A send completes when its receive has
// started, and a receive when its send has started: nothing is buffered. A collective completes
// when all members have started it. A rank does not wait for a detached operation before the kWait
// that names it. The k-th send from a to b meets the k-th receive at b from a, and the k-th
// collectives of a group meet. Each operation's partner is fixed. So a schedule that ends under
// these rules also ends on a backend that starts earlier, buffers, or waits later, if each pair and
// each group keeps its order.
//
// The orders. All of them end in the same way. After the last micro-batch the world counts its
// tokens. Then each module reduces its gradients over dp-cp, and over the two stages that may share
// weights. The global norm comes last.
//
// kSequential runs one micro-batch after the other. Forward goes through the modules in
// topology.forward_order(). A module first takes its incoming edges in the order of edges(): ONE
// batch of all sends and receives of the route, then the all-gather of the lanes. Its pipeline
// follows: receive from the stage before, compute, send to the next. Backward does the same in
// reverse: modules from last to first, pipeline first, then the incoming edges from last to first.
// An edge in backward is a reduction over cp on the receiving side, ONE batch of the transposed
// route, and the all-gather of the lanes.
//
// kAllForwardsFirst is the order of scripts/mimo_digits.lua: forward for all micro-batches, then
// backward for all, in the order of micro-batches. Bridges behave as in bridge.h. The sends of
// `from` are detached; the rank waits for them before its second call after them, or in their own
// backward. The rank waits for the gradients that `to` sends at the end. Pairs of ranks without
// rows for each other in a micro-batch are left out, and so are the messages of messages.h.
//
// k1F1B alternates one forward and one backward. A rank first runs as many forwards as there are
// stages after it on the longest path. Bridges behave as in kAllForwardsFirst. A stage sends in one
// batch with the receive of the opposite direction, from the same neighbour. Each rank must have
// one module.
//
// Every topology that was tried ends in each order (mimo_property_test.cc). If bridges did not send
// ahead, k1F1B would hang where a source feeds a sink both directly and through two more stages.
// The source runs three forwards before its first backward, and the sink none.

#ifndef LOCKSTEP_MIMO_SCHEDULE_SCHEDULE_H_
#define LOCKSTEP_MIMO_SCHEDULE_SCHEDULE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "mimo/bridge/routes.h"
#include "mimo/topology/groups.h"
#include "mimo/topology/topology.h"

namespace lockstep::mimo {

enum class OpKind : uint8_t { kSend, kReceive, kCollective, kWait };

// The payload of an operation; both ends must agree on it.
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
  kReduceShared,     // over the first and the last stage
  kCountTokens,      // over the world
  kGlobalNorm,       // over the world
};

// One operation of a rank. kWait waits for this rank's earlier detached operations of the same
// payload, subject and micro-batch.
struct Op {
  OpKind kind = OpKind::kSend;
  Payload payload = Payload::kBridge;
  bool with_previous = false;  // starts together with the operation before it: one batch
  bool detached = false;       // a send or receive: the rank does not wait for it here
  int32_t partner = 0;         // a rank; for kCollective a group of the schedule; for kWait 0
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

// The maximum number of calls of a bridge that a rank may send before peers have taken the first.
constexpr int32_t kCallsAhead = 2;

enum class Order { kSequential, kAllForwardsFirst, k1F1B };

struct StepOptions {
  int64_t num_micro_batches = 1;
  // A route for each edge, for all micro-batches; or the routes of micro-batch m at [m * edges, (m
  // + 1) * edges). Empty: planned for micro_batch_size samples of one row each, which may divide
  // unevenly.
  absl::Span<const Route> routes = {};
  int64_t micro_batch_size = 0;
  Order order = Order::kSequential;
};

// Returns the schedule, not simulated yet. Returns InvalidArgument if a size is not positive, if
// there is a wrong number of routes or a route of another edge, or if with k1F1B a rank has several
// modules.
absl::StatusOr<Schedule> MakeSchedule(const Topology& topology, const StepOptions& options);

struct Simulation {
  int64_t ops = 0;
  int64_t transfers = 0;    // number of pairs of send and receive
  int64_t collectives = 0;  // each counts once
};

// Runs all lists against each other and counts operations. Returns FailedPrecondition with at most
// 8 operations that cannot match: without a partner, different from their partner, or of a group
// without the rank. If all match but the step does not end, it names the cycle of ranks that wait
// for each other, with their operations. Returns InvalidArgument if the data is not a schedule (a
// partner out of range, a group with a rank twice).
//
// Cost: O(operations + members of collectives).
absl::StatusOr<Simulation> Simulate(const Schedule& schedule);

// Returns "rank 3: receive of activations vision>language, micro-batch 2, 4 rows, from rank 0".
std::string Describe(const Schedule& schedule, int64_t rank, const Op& op);

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_SCHEDULE_SCHEDULE_H_
