// Topologies, owners of rows, routes and schedules of mimo/ for Python: python/lockstep/mimo.py
// says what the calls do. Arguments and results are JSON objects, whose numbers mimo.py has checked
// for their type.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "mimo/batch/ownership.h"
#include "mimo/batch/reads.h"
#include "mimo/batch/reorder.h"
#include "mimo/bridge/routes.h"
#include "mimo/draw/draw.h"
#include "mimo/gradient/gradient_scale.h"
#include "mimo/schedule/schedule.h"
#include "mimo/topology/groups.h"
#include "mimo/topology/topology.h"
#include "nlohmann/json.hpp"
#include "python/core/boundary.h"

namespace lockstep::python {
namespace {

using nlohmann::json;
using Integers = std::vector<int64_t>;

// --- Reading

// Returns the value of the name that `given` holds under `key`.
template <typename Value>
Value Named(const json& given, const char* key,
            const std::vector<std::pair<const char*, Value>>& values) {
  const std::string name = given.at(key);
  std::string known;
  for (const auto& [each, value] : values) {
    if (name == each) return value;
    absl::StrAppend(&known, known.empty() ? "" : ", ", "\"", each, "\"");
  }
  throw StatusError(absl::InvalidArgumentError(
      absl::StrCat("mimo: ", key, " must be one of ", known, ", not \"", name, "\"")));
}

mimo::RowsOf ReadRowsOf(const json& given) {
  return Named<mimo::RowsOf>(given, "rows_of",
                             {{"samples", mimo::RowsOf::kSamples},
                              {"items", mimo::RowsOf::kItems},
                              {"tokens", mimo::RowsOf::kTokens}});
}

mimo::Division ReadDivision(const json& given) {
  return given.at("uneven").get<bool>() ? mimo::Division::kUneven : mimo::Division::kEven;
}

mimo::Ownership ReadOwnership(const json& given) {
  mimo::Ownership ownership = {given.at("item_offsets"), given.at("token_offsets")};
  Check(mimo::ValidateOwnership(ownership));
  return ownership;
}

mimo::Topology ReadTopology(const json& given) {
  std::vector<mimo::Module> modules;
  for (const json& each : given.at("modules")) {
    mimo::Module module;
    module.name = each.at("name");
    for (const auto& [key, field] :
         std::map<std::string, int64_t*>{{"dp", &module.dp},
                                         {"tp", &module.tp},
                                         {"cp", &module.cp},
                                         {"pp", &module.pp},
                                         {"first_rank", &module.first_rank}}) {
      if (each.contains(key)) *field = each[key];
    }
    if (each.contains("order")) module.order = each["order"];
    if (each.contains("ranks")) {
      for (const int64_t rank : each["ranks"].get<Integers>()) {
        if (rank < 0 || rank > mimo::kMaxWorldSize) {
          throw StatusError(absl::InvalidArgumentError(
              absl::StrCat("mimo: module \"", module.name, "\" has rank ", rank)));
        }
        module.ranks.push_back(static_cast<int32_t>(rank));
      }
    }
    modules.push_back(std::move(module));
  }
  if (given.at("edges").is_null()) {
    return ValueOrThrow(mimo::Topology::Make(given.at("world_size"), std::move(modules)));
  }
  std::vector<mimo::Edge> edges;
  for (const json& each : given["edges"]) edges.push_back({each.at(0), each.at(1)});
  return ValueOrThrow(
      mimo::Topology::Make(given.at("world_size"), std::move(modules), std::move(edges)));
}

int FindModule(const mimo::Topology& topology, const std::string& name) {
  const int module = topology.index(name);
  if (module >= 0) return module;
  throw StatusError(
      absl::NotFoundError(absl::StrCat("mimo: the topology has no module \"", name, "\"")));
}

// --- Writing

json ToJson(const mimo::Range& range) { return {range.begin, range.end}; }

json ToJson(const mimo::DpInfo& info) { return {info.dp_rank, info.dp_size}; }

json ToJson(const mimo::Ownership& ownership) {
  return {{"item_offsets", ownership.item_offsets}, {"token_offsets", ownership.token_offsets}};
}

json ToJson(const mimo::GroupSet& set) {
  json groups = json::array();
  for (int64_t i = 0; i < set.num_groups(); ++i) {
    const auto group = set.group(i);
    groups.push_back(std::vector<int32_t>(group.begin(), group.end()));
  }
  return {set.name, groups};
}

json ToJson(const mimo::Reads& reads) {
  return {{"num_groups", reads.num_groups},
          {"samples_per_group", reads.samples_per_group},
          {"micro_batch_size", reads.micro_batch_size},
          {"num_micro_batches", reads.num_micro_batches}};
}

template <typename Value>
json ToJson(const absl::StatusOr<Value>& value) {
  return ToJson(ValueOrThrow(value));
}

// --- Calls that need no topology

json MakeOwnership(const json& given) {
  Integers tokens;
  if (given.contains("grid_thw")) {
    tokens = ValueOrThrow(mimo::TokensOfGrid(given["grid_thw"].get<Integers>(), given.at("merge")));
  } else if (given.contains("tokens")) {
    tokens = given["tokens"].get<Integers>();
  }
  if (given.contains("rows_per_sample"))
    return ToJson(mimo::OwnershipOfRows(given["rows_per_sample"].get<Integers>()));
  if (given.contains("sample_of_item")) {
    return ToJson(mimo::OwnershipOfItems(given.at("num_samples"),
                                         given["sample_of_item"].get<Integers>(), tokens));
  }
  return ToJson(mimo::MakeOwnership(given.at("items").get<Integers>(), tokens));
}

json RowsOfShard(const json& given) {
  const auto ownership = ReadOwnership(given);
  const auto rows_of = ReadRowsOf(given);
  return ToJson(mimo::RowsOfShard(ownership, rows_of, given.at("dp_rank"), given.at("dp_size"),
                                  ReadDivision(given)));
}

json SliceOwnership(const json& given) {
  const auto ownership = ReadOwnership(given);
  const auto samples = ValueOrThrow(mimo::SamplesOfShard(
      ownership.num_samples(), given.at("dp_rank"), given.at("dp_size"), ReadDivision(given)));
  return ToJson(mimo::SliceOwnership(ownership, samples));
}

json RowsPerSample(const json& given) {
  const auto ownership = ReadOwnership(given);
  const auto rows_of = ReadRowsOf(given);
  return json(mimo::RowsPerSample(ownership, rows_of));
}

void CheckOrder(const Integers& order, int64_t num_samples) {
  std::vector<bool> seen(static_cast<size_t>(num_samples), false);
  bool fits = static_cast<int64_t>(order.size()) == num_samples;
  for (const int64_t sample : order) {
    fits = fits && sample >= 0 && sample < num_samples && !seen[static_cast<size_t>(sample)];
    if (fits) seen[static_cast<size_t>(sample)] = true;
  }
  if (fits) return;
  throw StatusError(absl::InvalidArgumentError(
      absl::StrCat("mimo: order must hold each of the samples 0 to ", num_samples - 1,
                   " once, as balanced_order gives it")));
}

json ReorderOwnership(const json& given) {
  const auto ownership = ReadOwnership(given);
  const auto rows_of = ReadRowsOf(given);
  const Integers order = given.at("order");
  CheckOrder(order, ownership.num_samples());
  return json{{"ownership", ToJson(mimo::Reordered(ownership, order))},
              {"rows", mimo::RowOrder(ownership, rows_of, order)}};
}

json BalancedOrder(const json& given) {
  return json(ValueOrThrow(
      mimo::BalancedOrder(given.at("costs").get<std::vector<double>>(), given.at("num_groups"))));
}

json GradientScale(const json& given) {
  const auto loss = Named<mimo::Loss>(
      given, "loss",
      {{"per_token", mimo::Loss::kPerToken}, {"mean_of_means", mimo::Loss::kMeanOfMeans}});
  const auto reduction = Named<mimo::Reduction>(
      given, "reduction", {{"sum", mimo::Reduction::kSum}, {"mean", mimo::Reduction::kMean}});
  return json(ValueOrThrow(mimo::GradientScale({.loss = loss,
                                                .reduction = reduction,
                                                .reduction_size = given.at("reduction_size"),
                                                .language_dp = given.at("language_dp"),
                                                .num_micro_batches = given.at("num_micro_batches"),
                                                .num_tokens = given.at("num_tokens")})));
}

json PositionsOf(const json& given) {
  const mimo::Reads reads = {given.at("num_groups"), given.at("samples_per_group"),
                             given.at("micro_batch_size"), given.at("num_micro_batches")};
  return ToJson(mimo::PositionsOf(reads, given.at("micro_batch"),
                                  {given.at("dp_rank"), given.at("dp_size")}));
}

// --- Calls of a topology

json Modules(const mimo::Topology& topology, const json& /*given*/) {
  json modules = json::array();
  for (const mimo::Module& each : topology.modules()) {
    modules.push_back({{"name", each.name},
                       {"dp", each.dp},
                       {"tp", each.tp},
                       {"cp", each.cp},
                       {"pp", each.pp},
                       {"ranks", each.ranks},
                       {"order", each.order}});
  }
  json edges = json::array();
  for (const mimo::Edge& each : topology.edges()) edges.push_back({each.from, each.to});
  json order = json::array();
  for (const int each : topology.forward_order())
    order.push_back(topology.modules()[static_cast<size_t>(each)].name);
  return json{{"modules", modules}, {"edges", edges}, {"forward_order", order}};
}

json ModulesOf(const mimo::Topology& topology, const json& given) {
  json names = json::array();
  for (const int32_t each : topology.modules_of(given.at("rank")))
    names.push_back(topology.modules()[static_cast<size_t>(each)].name);
  return names;
}

json CoordinatesOf(const mimo::Topology& topology, const json& given) {
  const auto at = ValueOrThrow(
      given.at("name").is_null()
          ? topology.coordinates(given.at("rank"))
          : topology.coordinates(given.at("rank"), FindModule(topology, given["name"])));
  return json{{"dp", at.dp}, {"tp", at.tp}, {"cp", at.cp}, {"pp", at.pp}};
}

json DpInfo(const mimo::Topology& topology, const json& given) {
  if (given.at("name").is_null()) return ToJson(topology.dp_info(given.at("rank")));
  return ToJson(topology.dp_info(given.at("rank"), given["name"].get<std::string>()));
}

json SamplingInfo(const mimo::Topology& topology, const json& given) {
  const mimo::SamplingInfo info =
      topology.sampling_info(given.at("rank"), given.at("scalable_reads"));
  return json{info.dp_rank, info.dp_size, info.needs_data};
}

json Validate(const mimo::Topology& topology, const json& given) {
  mimo::BatchSizes sizes;
  sizes.division = ReadDivision(given);
  for (const auto& [key, field] : std::map<std::string, std::optional<int64_t>*>{
           {"micro_batch_size", &sizes.micro_batch_size},
           {"global_batch_size", &sizes.global_batch_size},
           {"eval_micro_batch_size", &sizes.eval_micro_batch_size},
           {"eval_global_batch_size", &sizes.eval_global_batch_size}}) {
    if (given.contains(key)) *field = given[key].get<int64_t>();
  }
  Check(topology.Validate(sizes));
  return json(nullptr);
}

json AllGroups(const mimo::Topology& topology, const json& /*given*/) {
  json sets = json::array();
  for (const mimo::GroupSet& set : mimo::ProcessGroups(topology)) sets.push_back(ToJson(set));
  return sets;
}

json Groups(const mimo::Topology& topology, const json& given) {
  const auto module = FindModule(topology, given.at("name"));
  return ToJson(mimo::ModuleGroups(topology, module, given.at("axes").get<std::string>()));
}

json PlanReads(const mimo::Topology& topology, const json& given) {
  return ToJson(mimo::PlanReads(topology, {.micro_batch_size = given.at("micro_batch_size"),
                                           .num_samples = given.at("num_samples")}));
}

json SideToJson(const mimo::Side& side) {
  return {{"dp_size", side.dp_size},
          {"lanes", side.lanes},
          {"ranks", side.ranks},
          {"bounds", side.bounds}};
}

json PlanRoute(const mimo::Topology& topology, const json& given) {
  const std::string from = given.at("from");
  const std::string to = given.at("to");
  const auto rows_of = ReadRowsOf(given);
  const auto ownership = ReadOwnership(given);
  const std::vector<mimo::Edge>& edges = topology.edges();
  for (size_t i = 0; i < edges.size(); ++i) {
    if (edges[i].from != from || edges[i].to != to) continue;
    const auto route = ValueOrThrow(
        mimo::PlanRoute(topology, static_cast<int>(i), ownership, rows_of, ReadDivision(given)));
    json transfers = json::array();
    for (const mimo::Transfer& each : route.transfers) {
      transfers.push_back({route.from.ranks[static_cast<size_t>(each.from_place)],
                           route.to.ranks[static_cast<size_t>(each.to_place)], each.rows.begin,
                           each.rows.end});
    }
    return json{
        {"from", SideToJson(route.from)}, {"to", SideToJson(route.to)}, {"transfers", transfers}};
  }
  throw StatusError(absl::NotFoundError(
      absl::StrCat("mimo: the topology has no edge from \"", from, "\" to \"", to, "\"")));
}

json Simulate(const mimo::Topology& topology, const json& given) {
  const auto order = Named<mimo::Order>(given, "order",
                                        {{"sequential", mimo::Order::kSequential},
                                         {"all_forwards_first", mimo::Order::kAllForwardsFirst},
                                         {"1f1b", mimo::Order::k1F1B}});
  const auto schedule =
      ValueOrThrow(mimo::MakeSchedule(topology, {.num_micro_batches = given.at("micro_batches"),
                                                 .micro_batch_size = given.at("micro_batch_size"),
                                                 .order = order}));
  const auto simulation = ValueOrThrow(mimo::Simulate(schedule));
  json ops = json::array();
  if (!given.at("rank").is_null()) {
    const int64_t rank = given["rank"];
    if (rank < 0 || rank >= topology.world_size()) {
      throw StatusError(absl::OutOfRangeError(absl::StrCat(
          "mimo: rank must be from 0 to ", topology.world_size() - 1, ", not ", rank)));
    }
    for (const mimo::Op& op : schedule.ops_of(rank))
      ops.push_back(mimo::Describe(schedule, rank, op));
  }
  return json{{"operations", simulation.ops},
              {"transfers", simulation.transfers},
              {"collectives", simulation.collectives},
              {"of_rank", ops}};
}

json Draw(const mimo::Topology& topology, const json& given) {
  const mimo::DrawOptions options = {.micro_batch_size = given.at("micro_batch_size")};
  return json(given.at("svg").get<bool>() ? mimo::DrawSvg(topology, options)
                                          : mimo::DrawText(topology, options));
}

using Call = json (*)(const json&);
using TopologyCall = json (*)(const mimo::Topology&, const json&);

json Dispatch(const mimo::Topology* topology, const std::string& name, const json& given) {
  static const auto* calls = new std::map<std::string, Call>{
      {"ownership", MakeOwnership},      {"rows", RowsOfShard},
      {"slice", SliceOwnership},         {"rows_per_sample", RowsPerSample},
      {"reorder", ReorderOwnership},     {"balanced_order", BalancedOrder},
      {"gradient_scale", GradientScale}, {"positions", PositionsOf}};
  static const auto* of_topology =
      new std::map<std::string, TopologyCall>{{"modules", Modules},
                                              {"modules_of", ModulesOf},
                                              {"coordinates", CoordinatesOf},
                                              {"dp_info", DpInfo},
                                              {"sampling_info", SamplingInfo},
                                              {"validate", Validate},
                                              {"all_groups", AllGroups},
                                              {"groups", Groups},
                                              {"reads", PlanReads},
                                              {"route", PlanRoute},
                                              {"simulate", Simulate},
                                              {"draw", Draw}};
  return topology == nullptr ? calls->at(name)(given) : of_topology->at(name)(*topology, given);
}

}  // namespace
}  // namespace lockstep::python

extern "C" {

// Makes a topology of a JSON object: world_size, modules, edges. The caller gives it to
// lockstep_mimo_delete.
char* lockstep_mimo_topology(const char* description, lockstep::mimo::Topology** topology) {
  return lockstep::python::Guarded([&] {
    *topology = new lockstep::mimo::Topology(
        lockstep::python::ReadTopology(nlohmann::json::parse(description)));
  });
}

void lockstep_mimo_delete(lockstep::mimo::Topology* topology) { delete topology; }

// Runs a call of mimo.py, on a topology unless that is null, and gives its result as JSON.
char* lockstep_mimo_call(const lockstep::mimo::Topology* topology, const char* name,
                         const char* arguments, char** result) {
  return lockstep::python::Guarded([&] {
    *result = lockstep::python::Give(
        lockstep::python::Dispatch(topology, name, nlohmann::json::parse(arguments)).dump());
  });
}

}  // extern "C"
