// lockstep.core.sharding: fully_shard.

#include "sharding/fully_shard/fully_shard.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "c10/util/ScopeExit.h"
#include "driver/lua/bind/context.h"
#include "driver/lua/bind/sharding/distributed.h"
#include "driver/lua/bind/sharding/functions.h"
#include "driver/lua/tensor/tensor.h"
#include "driver/lua/vm/fields.h"
#include "driver/lua/vm/object.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/vm.h"
#include "driver/ranks/control.h"
#include "driver/ranks/world.h"

namespace lockstep::lua {

struct ShardedModel {
  // Before the model, whose last collectives may need it. Graphs may outlive this object: they
  // share both.
  std::shared_ptr<sharding::Collective> control;
  std::shared_ptr<sharding::FullyShard> model;
};
template <>
inline constexpr const char* kObjectName<ShardedModel> = "sharded model";

namespace {

using driver::GetContext;
using sharding::FullyShard;

// --- Construction --------------------------------------------------------------------------------

// {{name = "layers.0", parameters = {{name, tensor}, ...}}, ...}
std::vector<sharding::UnitParameters> ReadUnits(lua_State* state, int index) {
  ReadTable(state, index, "fully_shard: units");
  std::vector<sharding::UnitParameters> units;
  ForEachElement(state, index, [&](int) {
    lua_getfield(state, -1, "name");
    lua_getfield(state, -2, "parameters");
    units.push_back({ReadString(state, -2, "fully_shard: a unit's name"),
                     ReadNamedTensors(state, lua_gettop(state), "fully_shard")});
    lua_pop(state, 2);
  });
  return units;
}

std::optional<at::ScalarType> ReadDtype(lua_State* state, const OptionTable& options,
                                        const char* key) {
  if (!options.Push(key)) return std::nullopt;
  at::ScalarType dtype;
  if (!DtypeAt(state, lua_gettop(state), &dtype) || !at::isFloatingType(dtype)) {
    throw Error(absl::StrCat("sharding.fully_shard: ", key,
                             " must be a floating-point dtype, such as torch.bfloat16"));
  }
  lua_pop(state, 1);
  return dtype;
}

constexpr Field<sharding::FullyShardOptions> kOptions[] = {
    {"reshard_after_forward", &sharding::FullyShardOptions::reshard_after_forward},
    {"prefetch", &sharding::FullyShardOptions::prefetch},
};

sharding::FullyShardOptions ReadOptions(lua_State* state, const OptionTable& table) {
  sharding::FullyShardOptions options;
  ReadFields(table, kOptions, options);
  options.unit.param_dtype = ReadDtype(state, table, "param_dtype");
  options.unit.reduce_dtype = ReadDtype(state, table, "reduce_dtype");
  options.unit.deterministic = table.Boolean("deterministic", false);
  options.unit.offload = table.String("offload", "") == "host";
  options.unit.has_values = table.Boolean("has_values", true);
  if (table.Push("float8_weights")) {
    for (std::string& name :
         ReadStrings(state, lua_gettop(state), "fully_shard: float8_weights", "a parameter's name"))
      options.unit.float8_weights.insert(std::move(name));
    lua_pop(state, 1);
  }
  if (options.prefetch < 0) {
    throw Error(
        absl::StrCat("sharding.fully_shard: prefetch must be at least 0, not ", options.prefetch));
  }
  options.joins = table.String("skipped", "error") == "join";
  options.place = RunningScriptLine;
  // The backend of //tests/strict sees what NCCL would: every collective.
  if (driver::HasStrictBackend()) options.exchange_bytes = 0;
  return options;
}

void CheckReplicas(int64_t replicas, size_t num_ranks) {
  if (replicas >= 1 && static_cast<int64_t>(num_ranks) % replicas == 0) return;
  throw Error(absl::StrCat("sharding.fully_shard: replicas must divide the ", num_ranks,
                           " ranks of the group, and ", replicas, " does not"));
}

// The groups of a model whose masters `replicas` groups of ranks keep. Collective.
sharding::ShardGroups MakeGroups(const driver::Context& context, const std::vector<int>& ranks,
                                 int64_t replicas) {
  sharding::ShardGroups groups;
  const auto size = static_cast<int64_t>(ranks.size());
  const auto make = [&](const std::vector<int>& members, const char* purpose) {
    return members.size() == 1
               ? nullptr
               : driver::NewGroup(context.world, members, context.timeout, {purpose});
  };
  const int64_t copies = size / replicas;  // ranks that share one copy
  const int64_t position = driver::PositionIn(context.world, ranks);
  const auto first = ranks.begin() + position / copies * copies;
  const std::vector<int> own(first, first + copies);
  groups.all = make(ranks, "fully_shard: first values");
  groups.gather = make(own, "fully_shard: weights");
  groups.reduce = make(own, "fully_shard: gradients");
  if (replicas > 1) {
    std::vector<int> same;
    for (int64_t r = position % copies; r < size; r += copies)
      same.push_back(ranks[static_cast<size_t>(r)]);
    groups.replicas = make(same, "fully_shard: gradients of replicas");
  }
  return groups;
}

// fully_shard(units: sharding.Unit[], buffers: table[], options: table<string, any>) -> FullyShard
// buffers: {{name, tensor}, ...}; options: as sharding.fully_shard takes them; has_values = false:
// masters begin as zeros, and the parameters are not read. float8_weights: names of parameters that
// travel in float8, in place of float8_gather. Collective.
int NewFullyShard(lua_State* state) {
  const OptionTable table(
      state, 3, "sharding.fully_shard",
      NamesOf(kOptions, {"param_dtype", "reduce_dtype", "group", "replicas", "skipped", "offload",
                         "deterministic", "has_values", "float8_weights"}));
  const sharding::FullyShardOptions options = ReadOptions(state, table);
  const Group group = ReadGroup(state, table);
  const driver::Context& context = GetContext(state);
  // Before ranks connect: one that leaves meanwhile would be a lost connection to the others.
  const int64_t replicas = table.Integer("replicas", 1);
  CheckReplicas(replicas, group.ranks.size());
  ShardedModel made;
  if (group.ranks.size() > 1) {
    made.control = driver::NewControlCollective(context.world, group.ranks, context.timeout,
                                                {"sharding.fully_shard"});
    sharding::CheckSameReplicas(*made.control, replicas);
  }
  std::vector<at::Tensor> buffers;
  for (const sharding::NamedTensor& buffer : ReadNamedTensors(state, 2, "fully_shard"))
    buffers.push_back(buffer.tensor);
  made.model = std::make_shared<FullyShard>(ReadUnits(state, 1), buffers,
                                            MakeGroups(context, group.ranks, replicas),
                                            made.control, options);
  return PushObject(state, std::move(made));
}

FullyShard& ReadModel(lua_State* state) {
  return *ReadObject<ShardedModel>(state, 1, "fully_shard: model").model;
}

// --- Forward -------------------------------------------------------------------------------------

// Tensors of the value at `index`, in plain tables too.
void CollectTensors(lua_State* state, int index, int depth, std::vector<at::Tensor>& tensors) {
  if (const at::Tensor* tensor = TensorAt(state, index)) {
    tensors.push_back(*tensor);
    return;
  }
  constexpr int kDeepest = 16;
  if (depth > kDeepest || lua_type(state, index) != LUA_TTABLE) return;
  if (lua_getmetatable(state, index) != 0) {
    lua_pop(state, 1);
    return;
  }
  if (lua_checkstack(state, 4) == 0) throw Error("fully_shard: the stack is full");
  for (lua_pushnil(state); lua_next(state, index) != 0; lua_pop(state, 1))
    CollectTensors(state, lua_gettop(state), depth + 1, tensors);
}

std::vector<at::Tensor> TensorsFrom(lua_State* state, int first) {
  std::vector<at::Tensor> tensors;
  const int last = lua_gettop(state);
  for (int index = first; index <= last; ++index) CollectTensors(state, index, 0, tensors);
  return tensors;
}

// FullyShard:call(unit: integer, fn: fun(...): ..., ...: any) -> ...: any
// fn(...), as a forward of the unit, counted from 0. Collective.
int CallUnit(lua_State* state) {
  FullyShard& model = ReadModel(state);
  const auto unit = static_cast<size_t>(ReadInteger(state, 2, "fully_shard: unit"));
  model.BeginForward(unit, TensorsFrom(state, 4));
  try {
    Call(state, lua_gettop(state) - 3, LUA_MULTRET);
  } catch (...) {
    model.AbandonForward(unit);
    throw;
  }
  model.EndForward(unit, TensorsFrom(state, 3));
  return lua_gettop(state) - 2;
}

// --- What the model does besides -----------------------------------------------------------------

int PushNamed(lua_State* state, const std::vector<sharding::NamedTensor>& named) {
  lua_createtable(state, 0, static_cast<int>(named.size()));
  for (const sharding::NamedTensor& one : named) {
    PushTensor(state, one.tensor);
    lua_setfield(state, -2, one.name.c_str());
  }
  return 1;
}

// FullyShard:shards() -> table<string, torch.Tensor>
// This rank's parts by the parameters' names.
int Shards(lua_State* state) { return PushNamed(state, ReadModel(state).Shards()); }

// FullyShard:no_sync(fn: fun(...): ..., ...: any) -> ...: any
// Calls fn(...) without reduction, and returns its results.
int WithoutSync(lua_State* state) {
  FullyShard& model = ReadModel(state);
  ReadFunction(state, 2, "no_sync: the argument");
  const auto restore =
      c10::make_scope_exit([&model, before = model.sync()] { model.set_sync(before); });
  model.set_sync(false);
  Call(state, lua_gettop(state) - 2, LUA_MULTRET);
  return lua_gettop(state) - 1;
}

// FullyShard:drop_gradients()
// Forgets the whole gradients that no_sync has left.
int DropGradients(lua_State* state) {
  ReadModel(state).DropGradients();
  return 0;
}

// FullyShard:full(fn: fun(...): ..., ...: any) -> ...: any
// Calls fn(...) with all parameters gathered, and returns its results. Collective.
int WithAll(lua_State* state) {
  FullyShard& model = ReadModel(state);
  ReadFunction(state, 2, "full: the argument");
  model.BeginFull();
  try {
    Call(state, lua_gettop(state) - 2, LUA_MULTRET);
  } catch (...) {
    model.EndFull();
    throw;
  }
  model.EndFull();
  return lua_gettop(state) - 1;
}

// FullyShard:clip_grad_norm(max_norm: number, p: number) -> torch.Tensor
// The norm before. Collective.
int ClipGradNorm(lua_State* state) {
  return PushTensor(state,
                    ReadModel(state).ClipGradNorm(ReadNumber(state, 2, "clip_grad_norm: max_norm"),
                                                  ReadNumber(state, 3, "clip_grad_norm: p")));
}

// FullyShard:gather(unit: integer, pieces: torch.Tensor[]?) -> table<string, torch.Tensor>
// Whole masters of a unit by name, or whole tensors of which `pieces` are the parts. Collective.
int GatherWhole(lua_State* state) {
  std::vector<at::Tensor> pieces;
  if (!lua_isnoneornil(state, 3)) pieces = ReadTensors(state, 3, "fully_shard: pieces");
  return PushNamed(state,
                   ReadModel(state).GatherWhole(
                       static_cast<size_t>(ReadInteger(state, 2, "fully_shard: unit")), pieces));
}

// FullyShard:load(name: string, whole: torch.Tensor, into: torch.Tensor?)
// Takes this rank's part of a whole value. into: the parameter's shard unless given.
int Load(lua_State* state) {
  at::Tensor into;
  if (!lua_isnoneornil(state, 4)) into = ReadTensor(state, 4, "fully_shard: into");
  ReadModel(state).Load(ReadString(state, 2, "fully_shard: name"),
                        ReadTensor(state, 3, "fully_shard: value"), into);
  return 0;
}

// FullyShard:stats() -> sharding.FullyShardStats
int Stats(lua_State* state) {
  const sharding::FullyShardStats stats = ReadModel(state).Stats();
  lua_newtable(state);
  SetInteger(state, "gathers", stats.gathers);
  SetInteger(state, "reductions", stats.reductions);
  SetInteger(state, "joined", stats.joined);
  SetInteger(state, "prefetched", stats.prefetched);
  SetInteger(state, "exchanged", stats.exchanged);
  SetInteger(state, "gather_bytes", stats.gather_bytes);
  SetInteger(state, "scale_reductions", stats.scale_reductions);
  SetInteger(state, "float8_weights", stats.float8_weights);
  SetInteger(state, "shard_bytes", stats.shard_bytes);
  SetInteger(state, "largest_unit_bytes", stats.largest_unit_bytes);
  SetInteger(state, "root_bytes", stats.root_bytes);
  SetInteger(state, "pool_bytes", stats.pool_bytes);
  SetInteger(state, "peak_pool_bytes", stats.peak_pool_bytes);
  return 1;
}

}  // namespace

void SetFullyShardFunctions(lua_State* state) {
  RegisterObject<ShardedModel>(state, {{"call", CallUnit},
                                       {"shards", Shards},
                                       {"no_sync", WithoutSync},
                                       {"drop_gradients", DropGradients},
                                       {"full", WithAll},
                                       {"clip_grad_norm", ClipGradNorm},
                                       {"gather", GatherWhole},
                                       {"load", Load},
                                       {"stats", Stats}});
  SetFunctions(state, {{"fully_shard", NewFullyShard}});
  SetDefaults<sharding::FullyShardOptions>(state, "fully_shard_defaults", kOptions);
}

}  // namespace lockstep::lua
