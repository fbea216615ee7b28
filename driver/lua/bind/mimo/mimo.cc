// lockstep.core.mimo: topologies and gradients.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "absl/strings/str_cat.h"
#include "driver/lua/bind/context.h"
#include "driver/lua/bind/mimo/functions.h"
#include "driver/lua/bind/mimo/mimo_ownership.h"
#include "driver/lua/bind/open.h"
#include "driver/lua/bind/sharding/distributed.h"
#include "driver/lua/tensor/tensor.h"
#include "driver/lua/vm/fields.h"
#include "driver/lua/vm/object.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/status.h"
#include "driver/lua/vm/vm.h"
#include "driver/ranks/world.h"
#include "mimo/batch/reads.h"
#include "mimo/batch/reorder.h"
#include "mimo/draw/draw.h"
#include "mimo/gradient/gradient_scale.h"
#include "mimo/gradient/gradients.h"
#include "mimo/topology/groups.h"
#include "mimo/topology/topology.h"

namespace lockstep::lua {

using TopologyPointer = std::shared_ptr<const mimo::Topology>;
template <>
inline constexpr const char* kObjectName<TopologyPointer> = "topology";

namespace {

using driver::GetContext;

// --- Topology ------------------------------------------------------------------------------------

constexpr Field<mimo::Module> kModule[] = {
    {"name", &mimo::Module::name},   {"dp", &mimo::Module::dp},
    {"tp", &mimo::Module::tp},       {"cp", &mimo::Module::cp},
    {"pp", &mimo::Module::pp},       {"first_rank", &mimo::Module::first_rank},
    {"order", &mimo::Module::order},
};

mimo::Module ReadModule(lua_State* state, int number) {
  const std::string name = absl::StrCat("mimo.topology: modules[", number, "]");
  const OptionTable table(state, lua_gettop(state), name.c_str(), NamesOf(kModule, {"ranks"}));
  mimo::Module module;
  ReadFields(table, kModule, module);
  if (table.Push("ranks")) {
    for (const int64_t rank :
         ReadIntegers(state, lua_gettop(state), absl::StrCat(name, ".ranks").c_str())) {
      // One beyond an int32 would be taken for another; the core names those outside the world.
      if (rank < -mimo::kMaxWorldSize || rank > mimo::kMaxWorldSize) {
        throw Error(absl::StrCat(name, ".ranks: a rank is from 0 to ", mimo::kMaxWorldSize - 1,
                                 ", not ", rank));
      }
      module.ranks.push_back(static_cast<int32_t>(rank));
    }
    lua_pop(state, 1);
  }
  return module;
}

mimo::Edge ReadEdge(lua_State* state, int number) {
  const std::string name = absl::StrCat("mimo.topology: edges[", number, "]");
  const OptionTable table(state, lua_gettop(state), name.c_str(), {"from", "to"});
  return {table.String("from", ""), table.String("to", "")};
}

// {vision = {dp = 3}} has no order, in which all ranks must read the modules.
void CheckIsList(lua_State* state, int index, const char* key) {
  for (lua_pushnil(state); lua_next(state, index) != 0; lua_pop(state, 1)) {
    if (lua_type(state, -2) == LUA_TNUMBER) continue;
    const std::string found = lua_type(state, -2) == LUA_TSTRING
                                  ? absl::StrCat("\"", lua_tostring(state, -2), "\"")
                                  : TypeName(state, -2);
    throw Error(
        absl::StrCat("mimo.topology: ", key, " must be a list, as in ", key, " = {",
                     std::string(key) == "modules"
                         ? "{name = \"vision\", dp = 3}, {name = \"language\", first_rank = 3}"
                         : "{from = \"vision\", to = \"language\"}",
                     "}, but has the key ", found));
  }
}

// The array under `key`, each element read at the top of the stack.
template <typename Read>
auto ReadArray(lua_State* state, const OptionTable& table, const char* key, const Read& read) {
  std::vector<decltype(read(state, 1))> values;
  if (!table.Push(key)) return values;
  const int index = lua_gettop(state);
  ReadTable(state, index, absl::StrCat("mimo.topology: ", key).c_str());
  CheckIsList(state, index, key);
  ForEachElement(state, index, [&](int i) { values.push_back(read(state, i)); });
  lua_pop(state, 1);
  return values;
}

// topology(options: {world_size: integer?, modules: mimo.Module[], edges: {from: string,
//     to: string}[]?}) -> Topology
int NewTopology(lua_State* state) {
  const OptionTable table(state, 1, "mimo.topology", {"world_size", "modules", "edges"});
  std::vector<mimo::Module> modules = ReadArray(state, table, "modules", ReadModule);
  const int64_t world_size =
      table.Integer("world_size", GetContext(state).world.environment.world_size);
  const bool has_edges = table.Has("edges");  // {} means no edges, not the default
  absl::StatusOr<mimo::Topology> topology =
      has_edges ? mimo::Topology::Make(world_size, std::move(modules),
                                       ReadArray(state, table, "edges", ReadEdge))
                : mimo::Topology::Make(world_size, std::move(modules));
  return PushObject<TopologyPointer>(
      state, std::make_shared<const mimo::Topology>(ValueOrThrow(std::move(topology))));
}

const mimo::Topology& ReadTopology(lua_State* state) {
  return *ReadObject<TopologyPointer>(state, 1, "mimo: topology");
}

// The argument `index`, or this rank.
int64_t ReadRank(lua_State* state, int index) {
  if (lua_isnoneornil(state, index)) return GetContext(state).world.environment.rank;
  return ReadInteger(state, index, "mimo: rank");
}

// The same, of the topology.
int64_t ReadRankInWorld(lua_State* state, int index, const char* function) {
  const int64_t rank = ReadRank(state, index), size = ReadTopology(state).world_size();
  if (rank >= 0 && rank < size) return rank;
  throw Error(absl::StrCat(function, ": rank ", rank,
                           " is not of the topology, whose ranks are 0 to ", size - 1));
}

// Checks that the topology is of this run: functions that communicate need all of its ranks.
void CheckWorldOf(lua_State* state, const mimo::Topology& topology, const std::string& function) {
  const int64_t size = GetContext(state).world.environment.world_size;
  if (topology.world_size() == size) return;
  throw Error(absl::StrCat(function, ": the topology is of world_size ", topology.world_size(),
                           ", but this run has ", size, size == 1 ? " rank" : " ranks",
                           "; start it with --nproc ", topology.world_size(),
                           ", or give the modules ", size, size == 1 ? " rank" : " ranks"));
}

// Topology:check_world(function_name: string)
// Raises an error, in the name of `function_name`, where the run has more or fewer ranks than the
// topology.
int CheckWorld(lua_State* state) {
  CheckWorldOf(state, ReadTopology(state), ReadString(state, 2, "check_world: function"));
  return 0;
}

int ReadModuleIndex(lua_State* state, int index) {
  const std::string name = ReadString(state, index, "mimo: module");
  const mimo::Topology& topology = ReadTopology(state);
  const int found = topology.index(name);
  if (found >= 0) return found;
  std::vector<std::string> names;
  for (const mimo::Module& module : topology.modules()) names.push_back(module.name);
  throw Error(absl::StrCat("mimo: no module is called \"", name, "\"", DidYouMean(name, names)));
}

// Topology:module(rank?: integer) -> string?
// The name of the rank's module. Without a rank it is this one, here and below.
int ModuleOf(lua_State* state) {
  const mimo::Module* module = ReadTopology(state).module(ReadRank(state, 2));
  if (module == nullptr) return 0;
  return PushString(state, module->name);
}

// Topology:modules() -> {name: string, dp: integer, tp: integer, cp: integer, pp: integer,
//     ranks: integer[]}[]
int Modules(lua_State* state) {
  return PushArray(state, ReadTopology(state).modules(), [&](const mimo::Module& module) {
    lua_newtable(state);
    SetString(state, "name", module.name);
    SetInteger(state, "dp", module.dp);
    SetInteger(state, "tp", module.tp);
    SetInteger(state, "cp", module.cp);
    SetInteger(state, "pp", module.pp);
    SetIntegers(state, "ranks", std::vector<int64_t>(module.ranks.begin(), module.ranks.end()));
  });
}

// Topology:dp_info(rank?: integer, name?: string) -> dp_rank: integer, dp_size: integer
int DpInfo(lua_State* state) {
  const mimo::Topology& topology = ReadTopology(state);
  const int64_t rank = ReadRankInWorld(state, 2, "topology:dp_info");
  const mimo::DpInfo info =
      lua_isnoneornil(state, 3)
          ? topology.dp_info(rank)
          : ValueOrThrow(topology.dp_info(rank, ReadString(state, 3, "mimo: module")));
  PushInteger(state, info.dp_rank);
  PushInteger(state, info.dp_size);
  return 2;
}

// Topology:sampling_info(rank?: integer, scalable_reads?: boolean) -> dp_rank: integer,
//     dp_size: integer, needs_data: boolean
int SamplingInfo(lua_State* state) {
  const mimo::SamplingInfo info = ReadTopology(state).sampling_info(
      ReadRankInWorld(state, 2, "topology:sampling_info"),
      !lua_isnoneornil(state, 3) && ReadBoolean(state, 3, "scalable_reads"));
  PushInteger(state, info.dp_rank);
  PushInteger(state, info.dp_size);
  lua_pushboolean(state, info.needs_data);
  return 3;
}

// Topology:coordinates(rank?: integer, name?: string) -> {dp: integer, pp: integer, cp: integer,
//     tp: integer}
int Coordinates(lua_State* state) {
  const mimo::Topology& topology = ReadTopology(state);
  const int64_t rank = ReadRankInWorld(state, 2, "topology:coordinates");
  const mimo::Coordinates at = ValueOrThrow(
      lua_isnoneornil(state, 3) ? topology.coordinates(rank)
                                : topology.coordinates(rank, ReadModuleIndex(state, 3)));
  lua_newtable(state);
  SetInteger(state, "dp", at.dp);
  SetInteger(state, "pp", at.pp);
  SetInteger(state, "cp", at.cp);
  SetInteger(state, "tp", at.tp);
  return 1;
}

constexpr Field<mimo::BatchSizes> kBatchSizes[] = {
    {"micro_batch_size", &mimo::BatchSizes::micro_batch_size},
    {"global_batch_size", &mimo::BatchSizes::global_batch_size},
    {"eval_micro_batch_size", &mimo::BatchSizes::eval_micro_batch_size},
    {"eval_global_batch_size", &mimo::BatchSizes::eval_global_batch_size},
};

// Topology:validate(sizes: table<string, any>)
int Validate(lua_State* state) {
  const OptionTable table(state, 2, "topology:validate", NamesOf(kBatchSizes, {"uneven"}));
  mimo::BatchSizes sizes;
  ReadFields(table, kBatchSizes, sizes);
  if (table.Boolean("uneven", false)) sizes.division = mimo::Division::kUneven;
  Check(ReadTopology(state).Validate(sizes));
  return 0;
}

// Topology:check_schedule(options: table<string, any>) -> operations: integer, transfers: integer,
//     collectives: integer
int CheckScheduleOf(lua_State* state) { return CheckSchedule(state, ReadTopology(state)); }

// Topology:draw(options: {micro_batch_size: integer?, max_replicas: integer?, max_ranks: integer?,
//     format: string?}) -> string
int Draw(lua_State* state) {
  const OptionTable table(state, 2, "mimo.draw",
                          {"micro_batch_size", "max_replicas", "max_ranks", "format"});
  mimo::DrawOptions options;
  options.micro_batch_size = table.Integer("micro_batch_size", 0);
  options.max_replicas = table.Integer("max_replicas", options.max_replicas);
  options.max_ranks = table.Integer("max_ranks", options.max_ranks);
  const std::string format = table.String("format", "text");
  if (format != "text" && format != "svg")
    throw Error(
        absl::StrCat("mimo.draw: format must be \"text\" or \"svg\", not \"", format, "\""));
  return PushString(state, format == "svg" ? mimo::DrawSvg(ReadTopology(state), options)
                                           : mimo::DrawText(ReadTopology(state), options));
}

// Topology:peers(name: string, axes: string, rank?: integer) -> integer[]?
// The ranks that differ from it in these axes alone, itself included.
int Peers(lua_State* state) {
  const mimo::GroupSet groups = ValueOrThrow(mimo::ModuleGroups(
      ReadTopology(state), ReadModuleIndex(state, 2), ReadString(state, 3, "mimo: axes")));
  const int64_t rank = ReadRank(state, 4);
  for (int64_t i = 0; i < groups.num_groups(); ++i) {
    const auto group = groups.group(i);
    for (const int32_t member : group) {
      if (member != rank) continue;
      return PushIntegers(state, std::vector<int64_t>(group.begin(), group.end()));
    }
  }
  return 0;
}

// --- Reads and order -----------------------------------------------------------------------------

// Topology:reads(sizes: {micro_batch_size: integer, num_samples: integer}, micro_batch: integer,
//     dp_rank: integer, dp_size: integer) -> first: integer, stop: integer, micro_batches: integer
// micro_batch: from 0; first: position, from 0.
int ReadPositions(lua_State* state) {
  const OptionTable table(state, 2, "topology:reads", {"micro_batch_size", "num_samples"});
  const mimo::Reads reads = ValueOrThrow(mimo::PlanReads(
      ReadTopology(state), {.micro_batch_size = table.Integer("micro_batch_size", 0),
                            .num_samples = table.Integer("num_samples", 0)}));
  const mimo::Range range = ValueOrThrow(
      mimo::PositionsOf(reads, ReadInteger(state, 3, "topology:reads: micro_batch"),
                        {.dp_rank = ReadInteger(state, 4, "topology:reads: dp_rank"),
                         .dp_size = ReadInteger(state, 5, "topology:reads: dp_size")}));
  PushInteger(state, range.begin);
  PushInteger(state, range.end);
  PushInteger(state, reads.num_micro_batches);
  return 3;
}

// balanced_order(costs: number[], num_groups: integer) -> integer[]
// Returns samples, from 1.
int BalancedOrder(lua_State* state) {
  const std::vector<double> costs = ReadCosts(state, 1, "mimo.balanced_order: costs");
  std::vector<int64_t> order = ValueOrThrow(
      mimo::BalancedOrder(costs, ReadInteger(state, 2, "mimo.balanced_order: num_groups")));
  for (int64_t& sample : order) ++sample;
  return PushIntegers(state, order);
}

// --- Bridge --------------------------------------------------------------------------------------

mimo::Receives ReadReceives(lua_State* state, int index) {
  const std::string name = ReadString(state, index, "mimo.bridge: needs");
  if (name == "none") return mimo::Receives::kReplica;
  if (name == "cp") return mimo::Receives::kChunk;
  if (name == "tp-cp") return mimo::Receives::kShard;
  throw Error(absl::StrCat("mimo.bridge: needs must be \"cp\" or \"tp-cp\", not \"", name, "\""));
}

// Topology:bridge(from: string, to: string, dim: integer, audit: boolean,
//     needs: "none"|"cp"|"tp-cp", rows_may_vary: boolean) -> Bridge
// Collective over the ranks of both modules. rows_may_vary: between two ranks: each call may have
// another number of rows.
int NewBridge(lua_State* state) {
  const mimo::Topology& topology = ReadTopology(state);
  const int from = ReadModuleIndex(state, 2), to = ReadModuleIndex(state, 3);
  int edge = -1;
  for (int i = 0; i < static_cast<int>(topology.edges().size()); ++i) {
    if (topology.from(i) == from && topology.to(i) == to) edge = i;
  }
  if (edge < 0) {
    throw Error(absl::StrCat("mimo.bridge: the topology has no edge from \"",
                             ReadString(state, 2, "from"), "\" to \"", ReadString(state, 3, "to"),
                             "\"; give it in edges = {{from = ..., to = ...}}"));
  }
  CheckWorldOf(state, topology, "mimo.bridge");
  return PushBridge(state, topology, edge,
                    {.dim = ReadInteger(state, 4, "mimo.bridge: dim"),
                     .device = GetContext(state).world.device,
                     .audit = ReadBoolean(state, 5, "mimo.bridge: audit"),
                     .receives = ReadReceives(state, 6),
                     .rows_may_vary = ReadBoolean(state, 7, "mimo.bridge: rows_may_vary")});
}

// --- Gradients -----------------------------------------------------------------------------------

// gradient_scale(options: table<string, any>) -> number
// options: loss, reduction, reduction_size, language_dp, micro_batches and tokens.
int GradientScale(lua_State* state) {
  const OptionTable table(
      state, 1, "mimo.reduce_gradients",
      {"loss", "reduction", "reduction_size", "language_dp", "micro_batches", "tokens"});
  mimo::GradientScaleOptions options;
  options.loss =
      table.String("loss", "") == "sum" ? mimo::Loss::kPerToken : mimo::Loss::kMeanOfMeans;
  options.reduction =
      table.String("reduction", "") == "mean" ? mimo::Reduction::kMean : mimo::Reduction::kSum;
  options.reduction_size = table.Integer("reduction_size", 1);
  options.language_dp = table.Integer("language_dp", 1);
  options.num_micro_batches = table.Integer("micro_batches", 1);
  options.num_tokens = table.Integer("tokens", 0);
  return PushNumber(state, ValueOrThrow(mimo::GradientScale(options)));
}

// The group at `index`, or nullptr for nil or a group of one.
c10d::ProcessGroup* ReadGroupOrNone(lua_State* state, int index) {
  if (lua_isnoneornil(state, index)) return nullptr;
  const Group& group = ReadObject<Group>(state, index, "mimo: group");
  return group.ranks.size() == 1 ? nullptr : group.process_group.get();
}

// reduce_gradients(parameters: torch.Tensor[], group: dist.Group?, factor: number)
// Collective over the group. Without a group this rank is alone.
int ReduceGradients(lua_State* state) {
  mimo::ReduceGradients(ReadTensors(state, 1, "mimo.reduce_gradients: parameters"),
                        ReadGroupOrNone(state, 2), ReadNumber(state, 3, "factor"));
  return 0;
}

// Topology:gradient_norm(parts: table[], max_norm: number) -> norm: torch.Tensor,
//     limits: torch.Tensor
// The norm of all modules' gradients: {{name, parameters, divided over tp, copy}, ...}. copy: which
// copy of a sharded model has these shards; nil for whole parameters. Collective over the world.
// limits: float64 [ranks]: each rank's max_norm.
int GradientNorm(lua_State* state) {
  const mimo::Topology& topology = ReadTopology(state);
  const driver::World& world = GetContext(state).world;
  ReadTable(state, 2, "mimo.clip_grad_norm: modules");
  std::vector<mimo::NormPart> parts;
  for (int i = 1; i <= static_cast<int>(lua_objlen(state, 2)); ++i) {
    lua_rawgeti(state, 2, i);
    const int part_at = lua_gettop(state);
    for (int field = 1; field <= 4; ++field) lua_rawgeti(state, part_at, field);
    mimo::NormPart part;
    part.coordinates = ValueOrThrow(
        topology.coordinates(world.environment.rank, ReadModuleIndex(state, part_at + 1)));
    if (!lua_isnil(state, part_at + 4)) {
      part.coordinates.dp =
          static_cast<int32_t>(ReadInteger(state, part_at + 4, "mimo.clip_grad_norm: copy"));
      part.coordinates.cp = 0;
    }
    part.parameters = ReadTensors(state, part_at + 2, "mimo.clip_grad_norm: parameters");
    for (int p = 1; p <= static_cast<int>(part.parameters.size()); ++p) {
      lua_rawgeti(state, part_at + 3, p);
      part.divided_over_tp.push_back(lua_toboolean(state, -1) != 0);
      lua_pop(state, 1);
    }
    parts.push_back(std::move(part));
    lua_settop(state, part_at - 1);
  }
  const mimo::NormAndLimits all = mimo::GradientNormAndLimits(
      parts, world.environment.world_size == 1 ? nullptr : world.group.get(), world.device,
      ReadNumber(state, 3, "mimo.clip_grad_norm: max_norm"));
  PushTensor(state, all.norm);
  PushTensor(state, all.limits);
  return 2;
}

// clip_gradients(parameters: torch.Tensor[], norm: torch.Tensor, max_norm: number)
int ClipGradients(lua_State* state) {
  mimo::ClipGradients(ReadTensors(state, 1, "mimo.clip_grad_norm: parameters"),
                      ReadTensor(state, 2, "mimo.clip_grad_norm: norm"),
                      ReadNumber(state, 3, "mimo.clip_grad_norm: max_norm"));
  return 0;
}

}  // namespace

template <>
inline constexpr const char* kObjectName<mimo::ReducedGradients> = "reduced gradients";

namespace {

// reduced_gradients() -> ReducedGradients
int NewReducedGradients(lua_State* state) { return PushObject(state, mimo::ReducedGradients()); }

// ReducedGradients:remember(parameters: torch.Tensor[])
int Remember(lua_State* state) {
  ReadObject<mimo::ReducedGradients>(state, 1, "mimo: reduced gradients")
      .Remember(ReadTensors(state, 2, "mimo: parameters"));
  return 0;
}

// ReducedGradients:are_unchanged(parameters: torch.Tensor[]) -> boolean
// Returns whether there are gradients, and all are those that were remembered, not modified since.
int AreUnchanged(lua_State* state) {
  return PushBoolean(state, ReadObject<mimo::ReducedGradients>(state, 1, "mimo: reduced gradients")
                                .AreUnchanged(ReadTensors(state, 2, "mimo: parameters")));
}

}  // namespace

int OpenMimo(lua_State* state) {
  RegisterObject<mimo::ReducedGradients>(state,
                                         {{"remember", Remember}, {"are_unchanged", AreUnchanged}});
  RegisterObject<TopologyPointer>(state, {{"module", ModuleOf},
                                          {"modules", Modules},
                                          {"dp_info", DpInfo},
                                          {"sampling_info", SamplingInfo},
                                          {"coordinates", Coordinates},
                                          {"validate", Validate},
                                          {"check_schedule", CheckScheduleOf},
                                          {"draw", Draw},
                                          {"peers", Peers},
                                          {"check_world", CheckWorld},
                                          {"reads", ReadPositions},
                                          {"bridge", NewBridge},
                                          {"gradient_norm", GradientNorm}});
  RegisterBridges(state);
  lua_newtable(state);
  SetFunctions(state, {{"topology", NewTopology},
                       {"simulate_messages", SimulateMessages},
                       {"slice", SliceBatch},
                       {"pack", PackBatch},
                       {"reorder", ReorderBatch},
                       {"balanced_order", BalancedOrder},
                       {"gradient_scale", GradientScale},
                       {"reduce_gradients", ReduceGradients},
                       {"reduced_gradients", NewReducedGradients},
                       {"clip_gradients", ClipGradients}});
  OpenOwnership(state);
  return 1;
}

}  // namespace lockstep::lua
