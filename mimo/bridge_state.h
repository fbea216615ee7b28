// What the calls of a bridge share. See bridge.h.

#ifndef LOCKSTEP_MIMO_BRIDGE_STATE_H_
#define LOCKSTEP_MIMO_BRIDGE_STATE_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "c10/util/Exception.h"
#include "mimo/bridge.h"
#include "mimo/edge_plan.h"
#include "mimo/exchange.h"
#include "mimo/groups.h"

namespace lockstep::mimo {

// All that decides which rank of the module holds which rows.
inline std::string LayoutOf(const Module& module) {
  return absl::StrCat(module.name, " dp ", module.dp, " tp ", module.tp, " cp ", module.cp, " pp ",
                      module.pp, " ", module.order, " ranks ", absl::StrJoin(module.ranks, " "),
                      "; ");
}

class Bridge::State : public std::enable_shared_from_this<Bridge::State> {
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
                           from.cp == to.cp;  // else gradients are to be summed
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
  void CheckUsable() const {
    TORCH_CHECK(failure_.empty(), "mimo: bridge ", link_.name, " failed before: ", failure_);
  }

  // Tells all peers of this call, and calls to come. `exchange` has sent no word yet. Who can be
  // told nothing is gone, and says so itself.
  void Fail(const std::shared_ptr<Exchange>& exchange, const std::string& text) {
    failure_ = text;
    std::vector<int32_t> peers;
    for (const Transfer& t : usual_route_.transfers) {
      const int32_t a = usual_route_.from.ranks[static_cast<size_t>(t.from_place)];
      const int32_t b = usual_route_.to.ranks[static_cast<size_t>(t.to_place)];
      if (a == link_.rank) AddPeer(peers, b, link_.rank);
      if (b == link_.rank) AddPeer(peers, a, link_.rank);
    }
    for (const int32_t sibling : siblings) AddPeer(peers, sibling, link_.rank);
    SendError(exchange, text, peers);
  }

  void SendError(const std::shared_ptr<Exchange>& exchange, const std::string& text,
                 const std::vector<int32_t>& peers) {
    Word word;
    word.is_error = 1;
    word.set_text(text);
    Keep(exchange);
    try {
      for (const int32_t peer : peers) exchange->SendWord(word, peer);
    } catch (const std::exception&) {
      failure_ = text;  // the error that brought us here stands
    }
  }

  // Until the end of the bridge.
  void Keep(const std::shared_ptr<Exchange>& exchange) { kept_.push_back(exchange); }

  // --- Gradients under way

  // On `from`: how many it has taken from a rank of `to`.
  int64_t CountTaken(int32_t destination) const {
    const auto it = num_taken_from_.find(destination);
    return it == num_taken_from_.end() ? 0 : it->second;
  }
  void AddTaken(const std::vector<int32_t>& destinations) {
    for (const int32_t destination : destinations) ++num_taken_from_[destination];
  }

  void WaitForGradients() {
    for (const auto& exchange : gradients_sent_) exchange->WaitForSends();
    gradients_sent_.clear();
  }

  // On `to`: what it sent to these sources, until they have taken it.
  void KeepUntilTaken(const std::shared_ptr<Exchange>& exchange,
                      const std::vector<int32_t>& sources) {
    gradients_sent_.push_back(exchange);
    for (const int32_t source : sources) ++num_sent_to_[source];
  }

  // `words` of `peers` say how many gradients each has taken: where it is all, forgets them.
  void ForgetTaken(const std::vector<int32_t>& peers, const std::vector<Word>& words) {
    for (size_t i = 0; i < peers.size(); ++i) {
      const auto sent = num_sent_to_.find(peers[i]);
      if (sent != num_sent_to_.end()) taken_by_[peers[i]] = words[i].gradients_taken;
    }
    if (gradients_sent_.empty() || num_sent_to_ != taken_by_) return;
    WaitForGradients();
  }

  bool is_under_way() const;  // whether a peer may still have to take something
  void KeepItself() { self_ = shared_from_this(); }
  void LetGo() { self_ = nullptr; }

  void set_failure(const std::string& text) { failure_ = text; }

  // --- What calls share

  uint64_t layout = 0;  // of both grids and of dim: must be the same on every rank

  const Link& link() const { return link_; }
  const BridgeOptions& options() const { return options_; }
  const Module& module(bool of_from) const {
    const int index = of_from ? topology_.from(edge_) : topology_.to(edge_);
    return topology_.modules()[static_cast<size_t>(index)];
  }

  bool on_from = false;
  bool on_to = false;
  // Both modules have the same grid, or this rank is of another stage: y is x.
  bool nothing_travels = false;
  int64_t num_calls = 0;
  std::optional<std::vector<TensorSpec>> specs;  // those of the first call
  std::optional<int64_t> num_rows;               // of calls without ownership: those of the first
  std::deque<std::shared_ptr<Pending::Call>> unsettled;       // whose sends may still be under way
  std::deque<std::weak_ptr<Pending::Call>> without_gradient;  // on `from`: backward is to come
  std::set<int64_t> without_backward;  // calls by number whose gradient this rank takes or owes
  // The other lanes of this rank's replica of `from`: what they gather in backward all must want.
  std::vector<int32_t> siblings;
  // Lanes of this rank's replica on each side, and the cp ranks among those of `to`; null: alone.
  c10::intrusive_ptr<c10d::ProcessGroup> from_lanes, to_lanes, to_context;

 private:
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
    link_.forward = new_group(link_.ranks, absl::StrCat("bridge ", link_.name));
    link_.backward = new_group(link_.ranks, absl::StrCat("bridge ", link_.name, ", gradient"));
    const auto lanes = [&](const Side& side,
                           const Module& module) -> c10::intrusive_ptr<c10d::ProcessGroup> {
      const int64_t place = side.place_of(link_.rank);
      if (place < 0 || side.lanes == 1) return nullptr;
      const auto first = side.ranks.begin() + place / side.lanes * side.lanes;
      return new_group(std::vector<int>(first, first + side.lanes),
                       absl::StrCat("bridge ", link_.name, ", replica of ", module.name));
    };
    from_lanes = lanes(usual_route_.from, from);
    if (from_lanes != nullptr) {
      const Side& side = usual_route_.from;
      const int64_t first = side.place_of(link_.rank) / side.lanes * side.lanes;
      for (int64_t lane = 0; lane < side.lanes; ++lane)
        AddPeer(siblings, side.ranks[static_cast<size_t>(first + lane)], link_.rank);
    }
    to_lanes = lanes(usual_route_.to, to);
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
  std::shared_ptr<State> self_;
  std::shared_ptr<const EdgePlan> last_plan_;
  std::vector<std::shared_ptr<Exchange>> kept_;
  std::vector<std::shared_ptr<Exchange>> gradients_sent_;
  std::map<int32_t, int64_t> num_taken_from_, num_sent_to_, taken_by_;  // by peer
};

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_BRIDGE_STATE_H_
