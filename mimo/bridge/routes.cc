#include "mimo/bridge/routes.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "mimo/batch/ownership.h"
#include "mimo/topology/topology.h"

// The rows of a micro-batch form one line, and both sides cut it: replica by replica at the bounds
// of samples, then each shard in near equal parts for the lanes. A transfer is a piece between two
// neighbouring cuts of either side. Walking both lists of cuts at once gives at most as many
// transfers as there are places on both sides. The transpose is the same walk with the sides
// swapped, so it has the same pieces. routes_test checks both against all pairs of intervals.

namespace lockstep::mimo {
namespace {

absl::StatusOr<Side> PlanSide(const Topology& topology, int module, int32_t stage,
                              const Ownership& ownership, RowsOf rows_of, Division division) {
  const Module& grid = topology.modules()[static_cast<size_t>(module)];
  const absl::StatusOr<std::vector<int64_t>> samples =
      ShardBounds(ownership.num_samples(), grid.dp, division);
  if (!samples.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(samples.status().message(), " (dp of \"", grid.name, "\")"));
  }
  Side side = {grid.dp, grid.tp * grid.cp, {}, {0}};
  side.ranks.reserve(static_cast<size_t>(side.num_places()));
  side.bounds.reserve(static_cast<size_t>(side.num_places()) + 1);
  for (int32_t dp = 0; dp < grid.dp; ++dp) {
    const auto d = static_cast<size_t>(dp);
    const Range shard = RowsOfSamples(ownership, rows_of, {(*samples)[d], (*samples)[d + 1]});
    for (int32_t cp = 0; cp < grid.cp; ++cp) {
      for (int32_t tp = 0; tp < grid.tp; ++tp) {
        side.ranks.push_back(topology.rank(module, {dp, tp, cp, stage}));
        side.bounds.push_back(Part(shard, cp * grid.tp + tp, side.lanes).end);
      }
    }
  }
  return side;
}

std::vector<Transfer> Intersect(const Side& from, const Side& to) {
  std::vector<Transfer> transfers;
  int64_t f = 0;
  int64_t t = 0;
  while (f < from.num_places() && t < to.num_places()) {
    const Range sent = from.share(f);
    const Range wanted = to.share(t);
    const Range common = {std::max(sent.begin, wanted.begin), std::min(sent.end, wanted.end)};
    if (common.size() > 0) {
      transfers.push_back({static_cast<int32_t>(f), static_cast<int32_t>(t), common});
    }
    if (sent.end <= wanted.end) ++f;
    if (wanted.end <= sent.end) ++t;
  }
  return transfers;
}

// Both places ascend along the transfers, so those of one place are next to each other.
absl::Span<const Transfer> TransfersOf(const Route& route, int32_t Transfer::*side, int64_t place) {
  const auto begin =
      std::partition_point(route.transfers.begin(), route.transfers.end(),
                           [&](const Transfer& transfer) { return transfer.*side < place; });
  const auto end =
      std::partition_point(begin, route.transfers.end(),
                           [&](const Transfer& transfer) { return transfer.*side == place; });
  return absl::MakeConstSpan(route.transfers)
      .subspan(static_cast<size_t>(begin - route.transfers.begin()),
               static_cast<size_t>(end - begin));
}

// Rows of the micro-batch as rows of a shard.
Range Within(Range shard, Range rows) { return {rows.begin - shard.begin, rows.end - shard.begin}; }

}  // namespace

int64_t Side::place_of(int64_t rank) const {
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  return found == ranks.end() ? -1 : found - ranks.begin();
}

absl::StatusOr<Route> PlanRoute(const Topology& topology, int edge, const Ownership& ownership,
                                RowsOf rows_of, Division division) {
  if (edge < 0 || edge >= static_cast<int>(topology.edges().size())) {
    return absl::OutOfRangeError(absl::StrCat("mimo: there is no edge ", edge, "; there are ",
                                              topology.edges().size(), ", counted from 0"));
  }
  const int from = topology.from(edge);
  const auto last_stage =
      static_cast<int32_t>(topology.modules()[static_cast<size_t>(from)].pp - 1);
  absl::StatusOr<Side> from_side =
      PlanSide(topology, from, last_stage, ownership, rows_of, division);
  if (!from_side.ok()) return from_side.status();
  absl::StatusOr<Side> to_side =
      PlanSide(topology, topology.to(edge), 0, ownership, rows_of, division);
  if (!to_side.ok()) return to_side.status();
  std::vector<Transfer> transfers = Intersect(*from_side, *to_side);
  return Route{*std::move(from_side), *std::move(to_side), std::move(transfers)};
}

Route Transpose(const Route& route) {
  Route transpose = {route.to, route.from, route.transfers};
  for (Transfer& transfer : transpose.transfers) std::swap(transfer.from_place, transfer.to_place);
  return transpose;
}

absl::Span<const Transfer> TransfersFrom(const Route& route, int64_t place) {
  return TransfersOf(route, &Transfer::from_place, place);
}

absl::Span<const Transfer> TransfersTo(const Route& route, int64_t place) {
  return TransfersOf(route, &Transfer::to_place, place);
}

RankRoute RouteOfRank(const Route& route, int64_t rank) {
  RankRoute mine;
  const int64_t from = route.from.place_of(rank);
  const int64_t to = route.to.place_of(rank);
  if (from >= 0) mine.send_shard = route.from.shard(from / route.from.lanes);
  if (to >= 0) {
    const int64_t dp_rank = to / route.to.lanes;
    mine.receive_shard = route.to.shard(dp_rank);
    for (int64_t place = dp_rank * route.to.lanes; place < (dp_rank + 1) * route.to.lanes;
         ++place) {
      mine.gather_ranks.push_back(route.to.ranks[static_cast<size_t>(place)]);
      mine.gather_parts.push_back(Within(mine.receive_shard, route.to.share(place)));
    }
  }
  for (const Transfer& transfer : TransfersFrom(route, from)) {
    mine.sends.push_back({route.to.ranks[static_cast<size_t>(transfer.to_place)],
                          {Within(mine.send_shard, transfer.rows)}});
  }
  for (const Transfer& transfer : TransfersTo(route, to)) {
    mine.receives.push_back({route.from.ranks[static_cast<size_t>(transfer.from_place)],
                             {Within(mine.receive_shard, transfer.rows)}});
  }
  return mine;
}

absl::StatusOr<std::vector<Range>> RangesOfRows(absl::Span<const int64_t> rows) {
  std::vector<Range> ranges;
  for (size_t i = 0; i < rows.size(); ++i) {
    const int64_t before = ranges.empty() ? 0 : ranges.back().end;
    if (rows[i] < before) {
      return absl::InvalidArgumentError(
          absl::StrCat("row ", rows[i],
                       ranges.empty() ? " is negative" : absl::StrCat(" follows row ", before - 1),
                       "; rows count from 0 and ascend"));
    }
    if (ranges.empty() || rows[i] > before) ranges.push_back({rows[i], rows[i]});
    ++ranges.back().end;
  }
  return ranges;
}

absl::StatusOr<RankRoutes> RoutesOfNeeds(const Route& route, int64_t parts, const Needs& needs,
                                         int64_t rank) {
  const Side& from_side = route.from;
  const Side& to_side = route.to;
  if (static_cast<int64_t>(needs.size()) != to_side.dp_size * parts) {
    return absl::InvalidArgumentError(absl::StrCat("needs has ", needs.size(), " lists, expected ",
                                                   to_side.dp_size * parts, ": ", parts,
                                                   " for each of ", to_side.dp_size, " replicas"));
  }
  for (size_t i = 0; i < needs.size(); ++i) {
    const auto replica = static_cast<int64_t>(i) / parts;
    const int64_t rows = to_side.shard(replica).size();
    int64_t last = 0;
    for (const Range& range : needs[i]) {
      if (range.begin < last || range.end <= range.begin || range.end > rows) {
        return absl::InvalidArgumentError(
            absl::StrCat("needs of part ", static_cast<int64_t>(i) % parts, " of replica ", replica,
                         " has the rows [", range.begin, ", ", range.end, ") after row ", last,
                         "; ranges ascend, and the replica has ", rows, " rows"));
      }
      last = range.end;
    }
  }
  const int64_t from = from_side.place_of(rank);
  const int64_t to = to_side.place_of(rank);
  RankRoutes mine;
  mine.forward = RouteOfRank(route, rank);
  mine.backward = RouteOfRank(Transpose(route), rank);
  mine.forward.sends.clear();
  mine.forward.receives.clear();
  const int64_t lanes = to_side.lanes / parts;  // of a part
  for (int64_t place = 0; place < to_side.num_places(); ++place) {
    if (from < 0 && place != to) continue;
    const Range shard = to_side.shard(place / to_side.lanes);
    const std::vector<Range>& own = needs[static_cast<size_t>(place / lanes)];
    int64_t size = 0;
    for (const Range& range : own) size += range.size();
    const Range share = Part({0, size}, place % lanes, lanes);
    // Returns the rows of the micro-batch that this place receives and a place of `from` sends, and
    // where they are among the needs. They are neighbours there, since both ascend.
    const auto meet = [&](int64_t source) {
      std::pair<std::vector<Range>, Range> met;
      const Range sent = from_side.share(source);
      int64_t before = 0;
      for (const Range& range : own) {
        const int64_t offset = shard.begin + range.begin - before;  // from needs to the micro-batch
        const Range common = {
            std::max({sent.begin, shard.begin + range.begin, share.begin + offset}),
            std::min({sent.end, shard.begin + range.end, share.end + offset})};
        before += range.size();
        if (common.size() <= 0) continue;
        if (met.first.empty()) met.second.begin = common.begin - offset;
        met.second.end = common.end - offset;
        met.first.push_back(common);
      }
      return met;
    };
    if (from >= 0) {
      std::vector<Range> rows = meet(from).first;
      for (Range& range : rows) range = Within(mine.forward.send_shard, range);
      if (!rows.empty()) {
        mine.forward.sends.push_back({to_side.ranks[static_cast<size_t>(place)], std::move(rows)});
      }
    }
    if (place != to) continue;
    for (int64_t source = 0; source < from_side.num_places(); ++source) {
      const auto [rows, where] = meet(source);
      if (!rows.empty()) {
        mine.forward.receives.push_back({from_side.ranks[static_cast<size_t>(source)], {where}});
      }
    }
    mine.forward.receive_shard = {0, size};
    mine.forward.gather_ranks.clear();
    mine.forward.gather_parts.clear();
    for (int64_t lane = 0; lane < lanes; ++lane) {
      mine.forward.gather_ranks.push_back(
          to_side.ranks[static_cast<size_t>(place / lanes * lanes + lane)]);
      mine.forward.gather_parts.push_back(Part({0, size}, lane, lanes));
    }
  }
  mine.backward.send_shard = mine.forward.receive_shard;
  mine.backward.sends = mine.forward.receives;
  mine.backward.receives = mine.forward.sends;
  return mine;
}

}  // namespace lockstep::mimo
