// Plans the rows that each rank of one module sends to each rank of the next module, and back.
//
// Why not gather on one leader: it is slow. Why not split tensors in equal parts: samples differ in
// tokens, so forward works but gradients come back cut at the wrong rows. This plan divides the
// rows of a micro-batch twice, by its ownership table: over the ranks that send and over the ranks
// that receive. The rows that two ranks have in common are the rows that one sends to the other. It
// covers any pair of data-parallel sizes and any number of tokens for a sample, and every rank
// carries its share.
//
//    // vision dp 2 on ranks 0 and 1, language dp 3 on ranks 2 to 4; 6 samples of one row
//    Route route = *PlanRoute(*topology, /*edge=*/0, UniformOwnership(6), RowsOf::kTokens);
//    // 0 -> 2 rows [0, 2)   0 -> 3 rows [2, 3)   1 -> 3 rows [3, 4)   1 -> 4 rows [4, 6)
//
// Forward. The lanes of a replica are its tp * cp ranks (tp varies fastest) at the stage that
// bridges: the last stage of `from`, the first stage of `to`. Every lane of a replica of `from`
// holds all rows of the replica's shard; lane l sends part l of them. Each lane of `to` receives
// its part of its shard. Then the lanes of the replica all-gather the parts, which differ by at
// most one row (Side::bounds has the sizes).
//
// Backward is the transpose. Each lane of `to` holds the gradient of its shard. The gradient is
// equal over tp; over cp it is a partial sum and is reduced over the cp group first. The lane sends
// back the rows that it had received, and the lanes of `from` all-gather. With cp, each lane of
// `from` keeps the rows that it had sent. A rank on both sides (colocated modules) copies its own
// rows: a transfer to itself.
//
// A module that cuts its sequences drops rows that other lanes keep. Then the receiving lanes state
// the rows that they need, and RoutesOfNeeds plans to send these alone.
//
// Every rank plans the same route, so no sizes are exchanged. Thread-safe: plain data.

#ifndef LOCKSTEP_MIMO_BRIDGE_ROUTES_H_
#define LOCKSTEP_MIMO_BRIDGE_ROUTES_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "mimo/batch/ownership.h"
#include "mimo/topology/topology.h"

namespace lockstep::mimo {

// One end of an edge. A rank's place is dp_rank * lanes + lane.
struct Side {
  int64_t dp_size = 1;
  int64_t lanes = 1;            // tp * cp; lane = cp * (size of tp) + tp
  std::vector<int32_t> ranks;   // the rank at each place
  std::vector<int64_t> bounds;  // places + 1: place p carries rows [bounds[p], bounds[p + 1])

  int64_t num_places() const { return dp_size * lanes; }
  Range share(int64_t place) const {
    return {bounds[static_cast<size_t>(place)], bounds[static_cast<size_t>(place) + 1]};
  }
  Range shard(int64_t dp_rank) const {
    return {bounds[static_cast<size_t>(dp_rank * lanes)],
            bounds[static_cast<size_t>((dp_rank + 1) * lanes)]};
  }
  // Returns the place of `rank`, or -1.
  int64_t place_of(int64_t rank) const;
};

// A transfer between two places. `rows` are rows of the global micro-batch and never empty.
// Subtract shard(dp_rank).begin for rows of a replica's tensor.
struct Transfer {
  int32_t from_place = 0;
  int32_t to_place = 0;
  Range rows;

  friend bool operator==(const Transfer&, const Transfer&) = default;
};

struct Route {
  Side from;
  Side to;
  std::vector<Transfer> transfers;  // sorted by rows; at most as many as both sides have places
};

// Returns the forward route of topology.edges()[edge], for tensors whose rows belong to `rows_of`
// of `ownership`, the table of the global micro-batch. Returns InvalidArgument, which names the
// module, if the samples cannot be divided (see ShardBounds), and OutOfRange if there is no such
// edge.
//
// Cost: O(places of both sides).
absl::StatusOr<Route> PlanRoute(const Topology& topology, int edge, const Ownership& ownership,
                                RowsOf rows_of, Division division = Division::kEven);

// Returns the route of the gradients: the same rows between the same ranks, with sides swapped.
Route Transpose(const Route& route);

// Return the transfers that a place sends, or receives, sorted by rows. Cost: O(log transfers).
absl::Span<const Transfer> TransfersFrom(const Route& route, int64_t place);
absl::Span<const Transfer> TransfersTo(const Route& route, int64_t place);

struct RankTransfer {
  int32_t peer = 0;  // the other rank, or the rank itself for a copy
  // Rows of the rank's own shard on that side, from 0. Ascending ranges, one unless they are needs.
  std::vector<Range> rows;
};

// One rank's part of a route. Every rank of the edge starts all its sends and receives in one
// batch, in this order, and then waits for them.
struct RankRoute {
  std::vector<RankTransfer> sends;     // rows of its shard of `from`
  std::vector<RankTransfer> receives;  // rows of its shard of `to`
  Range send_shard;                    // rows of the micro-batch that the rank holds on `from`
  Range receive_shard;  // rows of the micro-batch that the rank holds on `to` after the all-gather
  // The ranks of the lanes that all-gather after receiving, in order and with the rank itself.
  // Empty if the rank is not on `to`. Lane l brings rows gather_parts[l] of the shard, counted from
  // 0.
  std::vector<int32_t> gather_ranks;
  std::vector<Range> gather_parts;
};
RankRoute RouteOfRank(const Route& route, int64_t rank);

// The rows that the receiving ranks need. Each replica is divided into the same number of parts. A
// part is a cp coordinate, or a single rank. needs[dp_rank * parts + part] lists the rows of one
// part as ascending ranges that do not overlap. Rows count from 0 in the replica's shard. Two parts
// may need the same rows, and a part may need none.
using Needs = std::vector<std::vector<Range>>;

// Returns ascending rows as ranges. Returns InvalidArgument with the first row that does not
// ascend, or is negative.
absl::StatusOr<std::vector<Range>> RangesOfRows(absl::Span<const int64_t> rows);

struct RankRoutes {
  RankRoute forward, backward;
};

// Returns the rank's part of the routes on which each part of `to` receives only its needs. Its
// shard on `to` is then its needs, one behind the other. The lanes of a part divide them, and
// gather_ranks are the lanes of the part. The lanes of `from` send from the same shares as on
// `route`. Backward, each lane returns the gradient of the rows that it received. A row that
// several parts need comes back from each of them, and these gradients must be added up.
//
// `route` is what PlanRoute returned; `parts` divides its to.lanes. Returns InvalidArgument if
// `needs` has another number of parts, or rows that the replica does not have.
//
// Cost: O((places of `to` + places of `from`) * ranges).
absl::StatusOr<RankRoutes> RoutesOfNeeds(const Route& route, int64_t parts, const Needs& needs,
                                         int64_t rank);

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_BRIDGE_ROUTES_H_
