// Which rows go from which rank of one module to which rank of the next, and back.
//
// A bridge between grids of different sizes that gathers on one leader, or that splits tensors in
// equal parts, is slow, or wrong as soon as samples differ in tokens: forward works, and the
// gradients come back cut at the wrong rows. Here the rows of a micro-batch, known from its
// ownership table alone, are divided twice: over the ranks that send and over the ranks that
// receive. What two ranks have in common is what one sends to the other. That is any pair of
// data-parallel sizes (fan-in, fan-out, 2 to 3), any number of tokens for a sample, and every rank
// carries its share.
//
//   // vision dp 2 on ranks 0 and 1, language dp 3 on ranks 2 to 4; 6 samples of one row
//   Route route = *PlanRoute(*topology, /*edge=*/0, UniformOwnership(6), RowsOf::kTokens);
//   // 0 -> 2 rows [0, 2)   0 -> 3 rows [2, 3)   1 -> 3 rows [3, 4)   1 -> 4 rows [4, 6)
//
// Forward. A replica's lanes are its tp * cp ranks (tp fastest) at the stage that bridges: the last
// of `from`, the first of `to`. All lanes of a replica of `from` hold all rows of its shard; lane l
// sends part l of it. Each lane of `to` receives its part of its shard; then the lanes of the
// replica all-gather (parts differ by at most one row; Side::bounds has the sizes). Backward is the
// transpose: each lane of `to` holds the gradient of its shard (equal over tp; over cp it is a
// part, to be summed over the cp group first), sends back the rows that it had received, and the
// lanes of `from` all-gather (of cp, each keeps the rows that it had sent). Where a rank is on both
// sides (colocated modules) its own rows are a copy: a transfer to itself.
//
// No sizes need to be exchanged: every rank plans the same route. Thread-safe: plain data.

#ifndef LOCKSTEP_MIMO_ROUTES_H_
#define LOCKSTEP_MIMO_ROUTES_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "mimo/ownership.h"
#include "mimo/topology.h"

namespace lockstep::mimo {

// One end of an edge: place dp_rank * lanes + lane.
struct Side {
  int64_t dp_size = 1;
  int64_t lanes = 1;            // tp * cp; lane = cp * (size of tp) + tp
  std::vector<int32_t> ranks;   // of each place
  std::vector<int64_t> bounds;  // places + 1: place p carries rows [bounds[p], bounds[p + 1])

  int64_t num_places() const { return dp_size * lanes; }
  Range share(int64_t place) const {
    return {bounds[static_cast<size_t>(place)], bounds[static_cast<size_t>(place) + 1]};
  }
  Range shard(int64_t dp_rank) const {
    return {bounds[static_cast<size_t>(dp_rank * lanes)],
            bounds[static_cast<size_t>((dp_rank + 1) * lanes)]};
  }
  // The place of `rank`; -1 if it has none here.
  int64_t place_of(int64_t rank) const;
};

// `rows` of the global micro-batch; subtract shard(dp_rank).begin for rows of a replica's tensor.
// Never empty.
struct Transfer {
  int32_t from_place = 0;
  int32_t to_place = 0;
  Range rows;

  friend bool operator==(const Transfer&, const Transfer&) = default;
};

struct Route {
  Side from;
  Side to;
  std::vector<Transfer> transfers;  // by rows, ascending; at most the places of both sides
};

// The forward route of topology.edges()[edge] for tensors whose rows belong to `rows_of` of
// `ownership`, the table of the global micro-batch. InvalidArgument if the samples cannot be
// divided (see ShardBounds); it names the module. OutOfRange if there is no such edge.
//
// Cost: O(places of both sides).
absl::StatusOr<Route> PlanRoute(const Topology& topology, int edge, const Ownership& ownership,
                                RowsOf rows_of, Division division = Division::kEven);

// The way back of the gradients: the same rows between the same ranks, sides swapped.
Route Transpose(const Route& route);

// Those that a place sends, and those that it receives, by rows. Cost: O(log transfers).
absl::Span<const Transfer> TransfersFrom(const Route& route, int64_t place);
absl::Span<const Transfer> TransfersTo(const Route& route, int64_t place);

// What one rank does for a route. Every rank of the edge does its part in one batch: all sends and
// receives started together, in this order, then waited for.
struct RankTransfer {
  int32_t peer = 0;  // rank; may be the rank itself: a copy
  Range rows;        // of the rank's own shard on that side, from 0
};
struct RankRoute {
  std::vector<RankTransfer> sends;     // rows of its shard of `from`
  std::vector<RankTransfer> receives;  // rows of its shard of `to`
  Range send_shard;                    // rows of the micro-batch that it holds on `from`
  Range receive_shard;                 // and on `to`, after the all-gather
  // The lanes that all-gather after receiving, itself included, in order; one if it is alone, empty
  // if it is not on `to`. Lane l brings gather_parts[l] of the shard, rows from 0.
  std::vector<int32_t> gather_ranks;
  std::vector<Range> gather_parts;
};
RankRoute RouteOfRank(const Route& route, int64_t rank);

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_ROUTES_H_
