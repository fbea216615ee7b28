// The state that all calls of a bridge share. Private to the bridge's sources; see bridge.h.

#ifndef LOCKSTEP_MIMO_BRIDGE_BRIDGE_STATE_H_
#define LOCKSTEP_MIMO_BRIDGE_BRIDGE_STATE_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ops/empty.h"
#include "ATen/ops/full.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/torch/versions/collectives.h"
#include "c10/util/Exception.h"
#include "mimo/bridge/bridge.h"
#include "mimo/bridge/edge_plan.h"
#include "mimo/bridge/exchange.h"
#include "mimo/bridge/messages.h"
#include "mimo/topology/groups.h"

namespace lockstep::mimo {

// Returns a text of everything that decides which rank of the module holds which rows.
inline std::string LayoutOf(const Module& module) {
  return absl::StrCat(module.name, " dp ", module.dp, " tp ", module.tp, " cp ", module.cp, " pp ",
                      module.pp, " ", module.order, " ranks ", absl::StrJoin(module.ranks, " "),
                      "; ");
}

// Returns the name of BridgeOptions::receives for messages: the axes over which needs differ.
inline std::string NameOf(Receives receives) {
  switch (receives) {
    case Receives::kReplica: return "none";
    case Receives::kChunk: return "cp";
    case Receives::kShard: return "tp-cp";
  }
  return "";
}

inline std::string TextOf(const std::exception& error) {
  const auto* of_c10 = dynamic_cast<const c10::Error*>(&error);
  return of_c10 == nullptr ? error.what() : of_c10->what_without_backtrace();
}

class Bridge::State {
 public:
  State(const Topology& topology, int edge, int64_t rank, const NewGroup& new_group,
        const BridgeOptions& options)
      : topology_(topology),
        edge_(edge),
        options_(options),
        usual_route_(UsualRoute(topology, edge)) {
    const Edge& ends = topology.edges()[static_cast<size_t>(edge)];
    TORCH_CHECK_VALUE(options.dim >= 0 && options.dim < kMaxDims, "mimo: bridge ", ends.from,
                      " -> ", ends.to, ": dim must be from 0 to ", kMaxDims - 1, ", but is ",
                      options.dim);
    link_.name = absl::StrCat(ends.from, " -> ", ends.to);
    link_.rank = rank;
    const Module& from = topology.modules()[static_cast<size_t>(topology.from(edge))];
    const Module& to = topology.modules()[static_cast<size_t>(topology.to(edge))];
    on_from = usual_route_.from.place_of(rank) >= 0;
    on_to = usual_route_.to.place_of(rank) >= 0;
    const auto has = [&](int module) { return topology.coordinates(rank, module).ok(); };
    TORCH_CHECK_VALUE(has(topology.from(edge)) || has(topology.to(edge)), "mimo: bridge ",
                      link_.name, ": rank ", rank, " has neither module; ", ends.from,
                      " is on ranks ", absl::StrJoin(from.ranks, ", "), ", ", ends.to, " on ranks ",
                      absl::StrJoin(to.ranks, ", "));
    const bool same_grid = usual_route_.from.ranks == usual_route_.to.ranks &&
                           usual_route_.from.dp_size == usual_route_.to.dp_size &&
                           from.cp == to.cp;  // otherwise gradients are summed
    nothing_travels = same_grid || (!on_from && !on_to);
    TORCH_CHECK_VALUE(
        !same_grid || options.receives == Receives::kReplica, "mimo: bridge ", link_.name,
        ": needs = \"", NameOf(options.receives), "\", but both modules ",
        "have the same grid, so that nothing travels and y is x; leave needs out, and "
        "take the rows from y");
    layout = Fingerprint(absl::StrCat(LayoutOf(from), LayoutOf(to), "dim ", options.dim));
    if (!nothing_travels) MakeGroups(new_group, from, to);
  }

  std::shared_ptr<const EdgePlan> PlanFor(const Ownership& ownership,
                                          const std::optional<Needs>& needs = std::nullopt) {
    if (last_plan_ == nullptr || !(last_plan_->ownership == ownership) ||
        last_plan_->needs != needs) {
      last_plan_ = std::make_shared<EdgePlan>(
          PlanEdge(topology_, edge_, link_.rank, usual_route_, ownership, num_parts(), needs));
    }
    return last_plan_;
  }

  // Returns into how many parts, each with needs of its own, the lanes of `to` are divided.
  int64_t num_parts() const {
    const Module& to = module(/*of_from=*/false);
    switch (options_.receives) {
      case Receives::kReplica: return 1;
      case Receives::kChunk: return to.cp;
      case Receives::kShard: return to.cp * to.tp;
    }
    return 1;
  }

  // --- Errors

  bool has_failed() const { return !failure_.empty(); }
  const std::string& failure() const { return failure_; }
  void CheckUsable() const {
    TORCH_CHECK(failure_.empty(), "mimo: bridge ", link_.name, " failed before: ", failure_);
  }

  // Tells all ranks of the edge. Only the first failure counts.
  void Fail(const std::string& text) {
    if (has_failed()) return;
    failure_ = text.empty() ? "no reason was given" : text;
    messages.SendFailure(failure_);
  }

  // Keeps tensors that a backend may still read or write until the bridge ends.
  void Keep(const std::vector<std::shared_ptr<Exchange>>& exchanges) {
    kept_.insert(kept_.end(), exchanges.begin(), exchanges.end());
  }

  // --- The end

  void SayLeft() {
    if (!nothing_travels) messages.SendLeft("its program has ended");
  }

  // Waits until all others have ended too, so that they receive this rank's last message. Throws
  // c10::Error if one of them has left without taking gradients of this rank.
  void WaitForOthers() {
    if (nothing_travels) return;
    messages.WaitUntilAllLeft();
    ForgetTaken();
    for (const auto& [peer, number] : num_sent_to_) {
      TORCH_CHECK(has_failed() || !messages.has_left(peer) || messages.taken_by(peer) == number,
                  "mimo: bridge ", link_.name, ": ", link_.Describe(link_.rank), " sent ", number,
                  " gradients to ", link_.Describe(peer), ", which took ", messages.taken_by(peer),
                  " of them and left: did backward run there?");
    }
  }

  // --- Gradients under way

  // On `to`: keeps a gradient until these sources have taken it.
  void KeepUntilTaken(const std::shared_ptr<Exchange>& exchange,
                      const std::vector<int32_t>& sources) {
    gradients_sent_.push_back({exchange, {}});
    for (const int32_t source : sources)
      gradients_sent_.back().peers.emplace_back(source, ++num_sent_to_[source]);
  }

  // Frees each gradient if all its sources are known to have taken it.
  void ForgetTaken() {
    const auto is_taken = [this](const Sent& sent) {
      return std::all_of(sent.peers.begin(), sent.peers.end(), [this](const auto& peer) {
        return messages.taken_by(peer.first) >= peer.second;
      });
    };
    for (auto& sent : gradients_sent_) {
      if (is_taken(sent)) sent.exchange->WaitForSends();  // They have arrived: returns at once.
    }
    std::erase_if(gradients_sent_, is_taken);
  }
  int64_t num_gradients_kept() const { return static_cast<int64_t>(gradients_sent_.size()); }

  // --- What calls share

  uint64_t layout = 0;  // hash of both grids and of dim; must be equal on every rank

  const Link& link() const { return link_; }
  const std::vector<int32_t>& ranks(bool of_from) const {
    return of_from ? usual_route_.from.ranks : usual_route_.to.ranks;
  }
  const BridgeOptions& options() const { return options_; }
  const Module& module(bool of_from) const {
    const int index = of_from ? topology_.from(edge_) : topology_.to(edge_);
    return topology_.modules()[static_cast<size_t>(index)];
  }

  int64_t number = 0;         // of the bridge, the same on all its ranks
  bool is_abandoned = false;  // the Bridge is gone; calls of it may live on
  bool on_from = false;
  bool on_to = false;
  // True if both modules have the same grid, or if this rank is on another stage: y is x.
  bool nothing_travels = false;
  int64_t num_calls = 0;
  std::optional<std::vector<TensorSpec>> specs;  // of the first call
  bool has_dtypes = false;                       // those of `specs` are of tensors with rows
  bool rows_have_come = false;                   // in any call before, on any rank
  std::optional<int64_t> num_rows;               // of the first call without ownership
  std::deque<std::shared_ptr<Pending::Call>> unsettled;  // with sends that may be in progress
  std::set<int64_t> without_backward;  // calls by number: this rank takes or owes a gradient
  Messages messages{link_};
  std::map<int64_t, Pending::Call*> unreceived;  // on `to`: started, rows not yet received
  // The other lanes of this rank's replica on `from`, and of its part of its replica on `to`.
  std::vector<int32_t> from_siblings, to_siblings;
  // Lanes of this rank's replica on `from`, lanes of its part of its replica on `to`, and the cp
  // ranks among the lanes of `to`. Null: alone. With needs, `from` sums over cp.
  c10::intrusive_ptr<c10d::ProcessGroup> from_lanes, to_lanes, to_context;

 private:
  struct Sent {
    std::shared_ptr<Exchange> exchange;
    std::vector<std::pair<int32_t, int64_t>> peers;  // with the number of the gradient for each
  };

  // Makes a group and runs a first collective in it. NCCL's first batch of a group needs all ranks,
  // and a rank may have no rows in it.
  c10::intrusive_ptr<c10d::ProcessGroup> NewRowsGroup(const NewGroup& new_group,
                                                      const std::string& purpose) const {
    auto group = new_group(link_.ranks, purpose);
    std::vector<at::Tensor> tensors = {at::zeros({1}, options_.device)};
    group->allreduce(tensors)->wait();
    return group;
  }

  // Ranks with other options would wait for other groups. Collective.
  void CheckSameReceives() const {
    at::Tensor own = at::full({1}, static_cast<int64_t>(options_.receives), at::kLong);
    at::Tensor all = at::empty({link_.messages->getSize()}, at::kLong);
    base::AllGatherSingle(*link_.messages, all, own)->wait();
    const auto name_at = [&](int64_t i) {
      return NameOf(static_cast<Receives>(all[i].item<int64_t>()));
    };
    for (int64_t i = 1; i < all.size(0); ++i) {
      TORCH_CHECK_VALUE(name_at(i) == name_at(0), "mimo: bridge ", link_.name, ": ",
                        link_.Describe(link_.ranks[0]), " makes it with needs = \"", name_at(0),
                        "\", ", link_.Describe(link_.ranks[static_cast<size_t>(i)]),
                        " with needs = \"", name_at(i), "\"; give every rank the same");
    }
  }

  void MakeGroups(const NewGroup& new_group, const Module& from, const Module& to) {
    const GroupSet ranks = EdgeGroup(topology_, edge_);
    link_.ranks.assign(ranks.ranks.begin(), ranks.ranks.end());
    for (const int rank : link_.ranks) {
      const bool sends = usual_route_.from.place_of(rank) >= 0;
      const bool takes = usual_route_.to.place_of(rank) >= 0;
      link_.modules.push_back(sends && takes ? absl::StrCat(from.name, ", ", to.name)
                              : sends        ? from.name
                                             : to.name);
    }
    link_.forward = NewRowsGroup(new_group, absl::StrCat("bridge ", link_.name));
    link_.backward = NewRowsGroup(new_group, absl::StrCat("bridge ", link_.name, ", gradient"));
    link_.messages = new_group(link_.ranks, absl::StrCat("bridge ", link_.name, ", messages"));
    link_.why_gone = options_.why_gone;
    CheckSameReceives();
    const auto lanes =
        [&](const Side& side, const Module& module, int64_t parts,
            std::vector<int32_t>& siblings) -> c10::intrusive_ptr<c10d::ProcessGroup> {
      const int64_t place = side.place_of(link_.rank);
      const int64_t count = side.lanes / parts;
      if (place < 0 || count == 1) return nullptr;
      const auto first = side.ranks.begin() + place / count * count;
      const std::vector<int> ranks(first, first + count);
      for (const int rank : ranks) AddPeer(siblings, rank, link_.rank);
      return new_group(ranks, absl::StrCat("bridge ", link_.name, ", replica of ", module.name));
    };
    from_lanes = lanes(usual_route_.from, from, /*parts=*/1, from_siblings);
    to_lanes = lanes(usual_route_.to, to, num_parts(), to_siblings);
    if (!on_to || to.cp == 1 || options_.receives != Receives::kReplica) return;
    const int64_t place = usual_route_.to.place_of(link_.rank);
    std::vector<int> context;  // lane = cp * (size of tp) + tp
    for (int64_t cp = 0; cp < to.cp; ++cp) {
      const int64_t lane = cp * to.tp + place % usual_route_.to.lanes % to.tp;
      const int64_t other = place / usual_route_.to.lanes * usual_route_.to.lanes + lane;
      context.push_back(usual_route_.to.ranks[static_cast<size_t>(other)]);
    }
    to_context = new_group(context, absl::StrCat("bridge ", link_.name, ", cp of ", to.name));
  }

  const Topology topology_;
  const int edge_;
  const BridgeOptions options_;
  const Route usual_route_;
  Link link_;
  std::string failure_;
  std::shared_ptr<const EdgePlan> last_plan_;
  std::vector<std::shared_ptr<Exchange>> kept_;
  std::deque<Sent> gradients_sent_;
  std::map<int32_t, int64_t> num_sent_to_;  // gradients, by peer
};

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_BRIDGE_BRIDGE_STATE_H_
