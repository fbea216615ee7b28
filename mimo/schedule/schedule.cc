#include "mimo/schedule/schedule.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "mimo/schedule/rank_writer.h"
#include "mimo/topology/problems.h"

namespace lockstep::mimo {
namespace {

constexpr int64_t kMaxSteps = 1 << 22;  // of all ranks: micro-batches times ranks

// Whether a side has the places of a module.
bool IsSideOf(const Module& module, const Side& side) {
  return side.dp_size == module.dp && side.lanes == module.tp * module.cp &&
         static_cast<int64_t>(side.ranks.size()) == side.num_places() &&
         side.bounds.size() == side.ranks.size() + 1;
}

std::vector<std::string> CheckOptions(const Topology& topology, const StepOptions& options) {
  std::vector<std::string> problems;
  if (options.num_micro_batches < 1) {
    problems.push_back(
        absl::StrCat("num_micro_batches is ", options.num_micro_batches, "; it must be positive"));
  }
  // The simulated operations repeat from micro-batch to micro-batch, and memory grows with each.
  const int64_t most = std::max<int64_t>(kMaxSteps / topology.world_size(), 1);
  if (options.num_micro_batches > most) {
    problems.push_back(absl::StrCat("num_micro_batches is ", options.num_micro_batches, "; ",
                                    topology.world_size(), " ranks are simulated for at most ",
                                    most));
  }
  if (options.routes.empty() && options.micro_batch_size > kMaxMicroBatchSize) {
    problems.push_back(absl::StrCat("micro_batch_size is ", options.micro_batch_size, "; at most ",
                                    kMaxMicroBatchSize, " samples are simulated"));
  }
  const auto given = static_cast<int64_t>(options.routes.size());
  const auto edges = static_cast<int64_t>(topology.edges().size());
  if (options.routes.empty() && edges > 0 && options.micro_batch_size < 1) {
    problems.push_back(absl::StrCat("there are no routes, and micro_batch_size is ",
                                    options.micro_batch_size, "; give either"));
  }
  if (given != 0 && given != edges && given != edges * options.num_micro_batches) {
    problems.push_back(absl::StrCat("there are ", given, " routes for ", edges, " edges and ",
                                    options.num_micro_batches, " micro-batches; give ", edges,
                                    ", or ", edges * options.num_micro_batches));
  }
  for (int64_t i = 0; i < given && edges > 0; ++i) {
    const int edge = static_cast<int>(i % edges);
    const Route& route = options.routes[static_cast<size_t>(i)];
    if (IsSideOf(topology.modules()[static_cast<size_t>(topology.from(edge))], route.from) &&
        IsSideOf(topology.modules()[static_cast<size_t>(topology.to(edge))], route.to)) {
      continue;
    }
    const Edge& names = topology.edges()[static_cast<size_t>(edge)];
    problems.push_back(absl::StrCat("route ", i, " is not of edge ", names.from, " -> ", names.to,
                                    "; use PlanRoute with this topology"));
    break;
  }
  for (int64_t r = 0; options.order == Order::k1F1B && r < topology.world_size(); ++r) {
    if (!topology.colocated(r)) continue;
    problems.push_back(absl::StrCat("rank ", r, " has ", topology.modules_of(r).size(),
                                    " modules; 1F1B wants one on each rank: use kSequential"));
    break;
  }
  return problems;
}

// The group of each rank in a set whose first group is `first`; -1 where it has none.
std::vector<int32_t> GroupOfRanks(const GroupSet& set, int64_t first, int64_t world_size) {
  std::vector<int32_t> group_of(static_cast<size_t>(world_size), -1);
  for (size_t i = 0; i < set.ranks.size(); ++i) {
    group_of[static_cast<size_t>(set.ranks[i])] =
        static_cast<int32_t>(first + static_cast<int64_t>(i) / set.group_size);
  }
  return group_of;
}

void FillGroups(const Topology& topology, const std::vector<GroupSet>& sets, Step* step) {
  step->groups.resize(topology.modules().size());
  int64_t first = 0;
  for (const GroupSet& set : sets) {
    for (size_t m = 0; m < topology.modules().size(); ++m) {
      const std::string& name = topology.modules()[m].name;
      const auto fill = [&](absl::string_view axes, std::vector<int32_t>* group_of) {
        if (set.name != absl::StrCat(name, "/", axes)) return;
        *group_of = GroupOfRanks(set, first, topology.world_size());
      };
      fill("cp", &step->groups[m].cp);
      fill("tp-cp", &step->groups[m].tp_cp);
      fill("dp-cp", &step->groups[m].dp_cp);
      fill("embedding", &step->groups[m].embedding);
    }
    step->world_group = static_cast<int32_t>(first);  // the last set, of one group
    first += set.num_groups();
  }
}

void FillStagesBelow(const Topology& topology, Step* step) {
  step->stages_below.assign(topology.modules().size(), 0);
  const std::vector<int>& order = topology.forward_order();
  for (auto module = order.rbegin(); module != order.rend(); ++module) {
    for (int e = 0; e < static_cast<int>(topology.edges().size()); ++e) {
      if (topology.from(e) != *module) continue;
      const auto to = static_cast<size_t>(topology.to(e));
      int64_t& below = step->stages_below[static_cast<size_t>(*module)];
      below = std::max(below, step->stages_below[to] + topology.modules()[to].pp);
    }
  }
}

absl::Status FillRoutes(const Topology& topology, const StepOptions& options, Step* step) {
  step->forward.assign(options.routes.begin(), options.routes.end());
  for (int e = 0; options.routes.empty() && e < static_cast<int>(step->num_edges()); ++e) {
    absl::StatusOr<Route> route = PlanRoute(topology, e, UniformOwnership(options.micro_batch_size),
                                            RowsOf::kSamples, Division::kUneven);
    if (!route.ok()) return route.status();
    step->forward.push_back(*std::move(route));
  }
  step->one_route_for_all = step->forward.size() == step->num_edges();
  for (const Route& route : step->forward) step->backward.push_back(Transpose(route));
  return absl::OkStatus();
}

absl::string_view NameOf(Payload payload) {
  switch (payload) {
    case Payload::kBridge:
    case Payload::kStage: return "activations";
    case Payload::kBridgeGradient:
    case Payload::kStageGradient: return "gradients";
    case Payload::kBridgeGather: return "all-gather of activations";
    case Payload::kGradientGather: return "all-gather of gradients";
    case Payload::kContextSum: return "sum of gradients over cp";
    case Payload::kTensorForward: return "tp-cp collective of forward";
    case Payload::kTensorBackward: return "tp-cp collective of backward";
    case Payload::kReduceGradients: return "reduction of gradients over dp-cp";
    case Payload::kReduceShared: return "reduction of shared gradients";
    case Payload::kCountTokens: return "count of tokens";
    case Payload::kGlobalNorm: return "global norm";
  }
  return "?";
}

// "vision>language" for what goes over edges, else the module, and nothing for the world's.
std::string SubjectOf(const Schedule& schedule, const Op& op) {
  const auto name = [&](const std::vector<std::string>& names) {
    const auto subject = static_cast<size_t>(op.subject);
    return subject < names.size() ? names[subject] : absl::StrCat("?", op.subject);
  };
  switch (op.payload) {
    case Payload::kBridge:
    case Payload::kBridgeGradient:
    case Payload::kBridgeGather:
    case Payload::kGradientGather:
    case Payload::kContextSum: return name(schedule.edges);
    case Payload::kStage:
    case Payload::kStageGradient:
    case Payload::kTensorForward:
    case Payload::kTensorBackward:
    case Payload::kReduceGradients:
    case Payload::kReduceShared: return name(schedule.modules);
    case Payload::kCountTokens:
    case Payload::kGlobalNorm: return "";
  }
  return "?";
}

// "group vision/dp-cp of ranks 0, 1".
std::string GroupName(const Schedule& schedule, int64_t group) {
  for (const GroupSet& set : schedule.group_sets) {
    if (group >= set.num_groups()) {
      group -= set.num_groups();
      continue;
    }
    const absl::Span<const int32_t> ranks = set.group(group);
    std::string name = absl::StrCat("group ", set.name, " of ranks");
    for (size_t i = 0; i < ranks.size() && i < 4; ++i) {
      absl::StrAppend(&name, i == 0 ? " " : ", ", ranks[i]);
    }
    if (ranks.size() > 4) absl::StrAppend(&name, " and ", ranks.size() - 4, " more");
    return name;
  }
  return "an unknown group";
}

}  // namespace

absl::StatusOr<Schedule> MakeSchedule(const Topology& topology, const StepOptions& options) {
  const absl::Status status = StatusOf("schedule", CheckOptions(topology, options));
  if (!status.ok()) return status;
  Schedule schedule;
  schedule.world_size = topology.world_size();
  schedule.group_sets = ProcessGroups(topology);
  for (const Module& module : topology.modules()) schedule.modules.push_back(module.name);
  for (const Edge& edge : topology.edges()) {
    schedule.edges.push_back(absl::StrCat(edge.from, ">", edge.to));
  }

  Step step;
  step.topology = &topology;
  step.num_micro_batches = options.num_micro_batches;
  const absl::Status routed = FillRoutes(topology, options, &step);
  if (!routed.ok()) return routed;
  FillGroups(topology, schedule.group_sets, &step);
  FillStagesBelow(topology, &step);
  for (int64_t rank = 0; rank < topology.world_size(); ++rank) {
    WriteRank(step, options.order, rank, &schedule.ops);
    schedule.op_offsets.push_back(static_cast<int64_t>(schedule.ops.size()));
  }
  return schedule;
}

std::string Describe(const Schedule& schedule, int64_t rank, const Op& op) {
  std::string text = absl::StrCat("rank ", rank, ": ");
  if (op.kind == OpKind::kSend) absl::StrAppend(&text, "send of ");
  if (op.kind == OpKind::kReceive) absl::StrAppend(&text, "receive of ");
  if (op.kind == OpKind::kWait) absl::StrAppend(&text, "wait for what it sent of ");
  absl::StrAppend(&text, NameOf(op.payload));
  const std::string subject = SubjectOf(schedule, op);
  if (!subject.empty()) absl::StrAppend(&text, " ", subject);
  absl::StrAppend(&text, ", micro-batch ", op.micro_batch);
  if (op.rows > 0) absl::StrAppend(&text, ", ", op.rows, op.rows == 1 ? " row" : " rows");
  if (op.kind == OpKind::kSend) return absl::StrCat(text, ", to rank ", op.partner);
  if (op.kind == OpKind::kReceive) return absl::StrCat(text, ", from rank ", op.partner);
  if (op.kind == OpKind::kWait) return text;
  return absl::StrCat(text, ", in ", GroupName(schedule, op.partner));
}

}  // namespace lockstep::mimo
