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

#include "ATen/ops/zeros.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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
    layout = Fingerprint(absl::StrCat(LayoutOf(from), LayoutOf(to), "dim ", options.dim));
    if (!nothing_travels) MakeGroups(new_group, from, to);
  }

  std::shared_ptr<const EdgePlan> PlanFor(const Ownership& ownership) {
    if (last_plan_ == nullptr || !(last_plan_->ownership == ownership)) {
      last_plan_ = std::make_shared<EdgePlan>(
          PlanEdge(topology_, edge_, link_.rank, usual_route_, ownership));
    }
    return last_plan_;
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
  // The other lanes of this rank's replica on each side.
  std::vector<int32_t> from_siblings, to_siblings;
  // Lanes of this rank's replica on each side, and the cp ranks among those of `to`; null: alone.
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
    const auto lanes =
        [&](const Side& side, const Module& module,
            std::vector<int32_t>& siblings) -> c10::intrusive_ptr<c10d::ProcessGroup> {
      const int64_t place = side.place_of(link_.rank);
      if (place < 0 || side.lanes == 1) return nullptr;
      const auto first = side.ranks.begin() + place / side.lanes * side.lanes;
      const std::vector<int> ranks(first, first + side.lanes);
      for (const int rank : ranks) AddPeer(siblings, rank, link_.rank);
      return new_group(ranks, absl::StrCat("bridge ", link_.name, ", replica of ", module.name));
    };
    from_lanes = lanes(usual_route_.from, from, from_siblings);
    to_lanes = lanes(usual_route_.to, to, to_siblings);
    if (!on_to || to.cp == 1) return;
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
