// lockstep.core.sharding: loops in lockstep, and data parallelism.

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "c10/util/ScopeExit.h"
#include "driver/lua/bind/context.h"
#include "driver/lua/bind/open.h"
#include "driver/lua/bind/sharding/distributed.h"
#include "driver/lua/bind/sharding/functions.h"
#include "driver/lua/tensor/tensor.h"
#include "driver/lua/vm/fields.h"
#include "driver/lua/vm/object.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/status.h"
#include "driver/lua/vm/vm.h"
#include "driver/ranks/activity.h"
#include "driver/ranks/control.h"
#include "sharding/agreement/lockstep.h"
#include "sharding/data_parallel/data_parallel.h"

namespace lockstep::lua {
namespace {

using driver::GetContext;

// --- lockstep ------------------------------------------------------------------------------------

using Batch = std::shared_ptr<LuaReference>;
using Loop = std::unique_ptr<sharding::Lockstep<Batch>>;

}  // namespace

template <>
inline constexpr const char* kObjectName<Loop> = "lockstep loop";
using Replicas = std::unique_ptr<sharding::DataParallel>;
template <>
inline constexpr const char* kObjectName<Replicas> = "data parallel";

namespace {

// Calls the function; its first result, or nothing where that is nil.
std::optional<Batch> CallForBatch(const LuaReference& function,
                                  const std::optional<Batch>& argument) {
  lua_State* state = function.Push();
  int num_arguments = 0;
  if (argument.has_value()) {
    (*argument)->Push();
    num_arguments = 1;
  }
  Call(state, num_arguments, 1);
  std::optional<Batch> batch;
  if (!lua_isnil(state, -1)) batch = std::make_shared<LuaReference>(state, lua_gettop(state));
  lua_pop(state, 1);
  return batch;
}

sharding::Policy ReadPolicy(const OptionTable& options) {
  const std::string policy = options.String("policy", "until_first");
  if (policy == "until_first") return sharding::Policy::kUntilFirst;
  if (policy == "until_last") return sharding::Policy::kUntilLast;
  throw Error(absl::StrCat(
      "sharding.lockstep: policy must be \"until_first\" or \"until_last\", not \"", policy, "\""));
}

// lockstep(iterator: fun(): any, options: sharding.LockstepOptions) -> Loop
int NewLoop(lua_State* state) {
  const OptionTable options(state, 2, "sharding.lockstep",
                            {"policy", "group", "filler", "read_ahead"});
  auto iterator = std::make_shared<LuaReference>(state, 1);
  sharding::Lockstep<Batch>::Options loop_options;
  loop_options.policy = ReadPolicy(options);
  const int64_t read_ahead = options.Integer("read_ahead", 1);
  if (read_ahead != 0 && read_ahead != 1)
    throw Error(absl::StrCat("sharding.lockstep: read_ahead must be 0 or 1, not ", read_ahead));
  loop_options.read_ahead = read_ahead == 1;
  const Group& group = ReadGroup(state, options);
  if (options.Push("filler")) {
    ReadFunction(state, lua_gettop(state), "sharding.lockstep: filler");
    auto filler = std::make_shared<LuaReference>(state, lua_gettop(state));
    lua_pop(state, 1);
    loop_options.filler = [filler](const std::optional<Batch>& last) {
      std::optional<Batch> batch = CallForBatch(*filler, last);
      if (!batch.has_value())
        throw Error("sharding.lockstep: the filler returned nil; it must return a batch");
      return *batch;
    };
  }
  const driver::Context& context = GetContext(state);
  sharding::Collective* const collective = driver::SharedControlCollective(
      context.world, group.ranks, context.timeout, "sharding.lockstep");
  return PushObject<Loop>(
      state, std::make_unique<sharding::Lockstep<Batch>>(
                 collective, [iterator] { return CallForBatch(*iterator, std::nullopt); },
                 std::move(loop_options)));
}

sharding::Lockstep<Batch>& ReadLoop(lua_State* state) {
  return *ReadObject<Loop>(state, 1, "sharding.lockstep: loop");
}

// Loop:next() -> batch: any, real: boolean?
// The next batch and whether it is the iterator's own; nothing when the loop is over. Collective.
int NextBatch(lua_State* state) {
  const auto step = ValueOrThrow(ReadLoop(state).Next());
  if (!step.has_value()) return 0;
  step->batch->Push();
  lua_pushboolean(state, step->real);
  return 2;
}

// Loop:stop()
// Ends the loop on every rank, after the batch that is agreed on already.
int StopLoop(lua_State* state) {
  ReadLoop(state).Stop();
  return 0;
}

// Loop:steps() -> integer
int Steps(lua_State* state) { return PushInteger(state, ReadLoop(state).steps()); }

// Loop:filled() -> integer
int Filled(lua_State* state) { return PushInteger(state, ReadLoop(state).filled()); }

// Loop:dropped() -> integer?
// Batches of this rank that no step took; reads what is left, but at most 10,000: nil where more
// are left. An endless source ends here.
int Dropped(lua_State* state) {
  const std::optional<int64_t> dropped = ReadLoop(state).CountDropped(10'000);
  if (!dropped.has_value()) return 0;
  return PushInteger(state, *dropped);
}

// --- data_parallel -------------------------------------------------------------------------------

sharding::Compression ReadCompression(const OptionTable& options) {
  const std::string compression = options.String("compression", "none");
  if (compression == "none") return sharding::Compression::kNone;
  if (compression == "bf16") return sharding::Compression::kBFloat16;
  if (compression == "fp16") return sharding::Compression::kFloat16;
  throw Error(absl::StrCat(
      "sharding.data_parallel: compression must be \"none\", \"bf16\" or \"fp16\", not \"",
      compression, "\""));
}

constexpr Field<sharding::DataParallelOptions> kReplicaOptions[] = {
    {"find_unused", &sharding::DataParallelOptions::find_unused},
    {"static_graph", &sharding::DataParallelOptions::static_graph},
    {"broadcast_buffers", &sharding::DataParallelOptions::broadcast_buffers},
    {"gradient_as_bucket_view", &sharding::DataParallelOptions::gradient_as_bucket_view},
    {"compare_every", &sharding::DataParallelOptions::compare_every},
};

// data_parallel(parameters: table[], buffers: table[], options: sharding.DataParallelOptions) ->
//     Replicas
// parameters: {{name, tensor}, ...}; buffers: {{name, tensor}, ...}.
int NewReplicas(lua_State* state) {
  const OptionTable table(state, 3, "sharding.data_parallel",
                          NamesOf(kReplicaOptions, {"bucket_mb", "compression", "group"}));
  sharding::DataParallelOptions options;
  ReadFields(table, kReplicaOptions, options);
  options.bucket_bytes = static_cast<int64_t>(table.Number("bucket_mb", 25) * (1 << 20));
  options.compression = ReadCompression(table);
  const Group& group = ReadGroup(state, table);
  options.ranks = group.ranks;
  if (group.ranks.size() > 1) {
    const driver::Context& context = GetContext(state);
    options.control = driver::NewComparedCollective(context.world, group.process_group, group.ranks,
                                                    context.timeout, "sharding.data_parallel");
  }
  return PushObject<Replicas>(
      state, std::make_unique<sharding::DataParallel>(ReadNamedTensors(state, 1, "data_parallel"),
                                                      ReadNamedTensors(state, 2, "data_parallel"),
                                                      group.process_group, options));
}

sharding::DataParallel& ReadReplicas(lua_State* state) {
  return *ReadObject<Replicas>(state, 1, "data_parallel: replicas");
}

// Replicas:begin_pass(parameters: table[], buffers: table[]) -> has_changed: boolean
// Begins a pass: compares it over the ranks, and follows the module's parameters. Does nothing
// where gradients are off. parameters: {{name, tensor}, ...} of the module now; buffers: {{name,
// tensor}, ...}; has_changed: whether parameters were frozen, unfrozen, added or removed.
int BeginPass(lua_State* state) {
  sharding::DataParallel& replicas = ReadReplicas(state);
  const driver::CollectiveSubject subject(
      absl::StrCat("pass ", replicas.passes() + 1, " of sharding.data_parallel"));
  return PushBoolean(state, replicas.BeginPass(ReadNamedTensors(state, 2, "data_parallel"),
                                               ReadNamedTensors(state, 3, "data_parallel")));
}

// Replicas:before_forward(buffers: table[])
// Prepares the forward pass that follows, and gives every rank rank 0's buffers. buffers: {{name,
// tensor}, ...}.
int BeforeForward(lua_State* state) {
  ReadReplicas(state).BeforeForward(ReadNamedTensors(state, 2, "data_parallel"));
  return 0;
}

// Replicas:check_backward()
// Raises if the last backward left gradients unaveraged.
int CheckBackward(lua_State* state) {
  ReadReplicas(state).CheckBackward();
  return 0;
}

// Replicas:after_forward(outputs: torch.Tensor[]) -> torch.Tensor[]
// The outputs, tied to the averaging. With neither find_unused nor static_graph the array may be
// empty.
int AfterForward(lua_State* state) {
  return PushTensors(
      state, ReadReplicas(state).AfterForward(ReadTensors(state, 2, "data_parallel: outputs")));
}

// Replicas:buckets() -> integer[][]
// The trained parameters, by index from 0, that are averaged together. Collective, between steps.
int GetBuckets(lua_State* state) {
  const std::vector<std::vector<size_t>> buckets = ReadReplicas(state).Buckets();
  return PushArray(state, buckets, [&](const std::vector<size_t>& bucket) {
    PushIntegers(state, std::vector<int64_t>(bucket.begin(), bucket.end()));
  });
}

// Replicas:set_buckets(buckets: integer[][])
// Averages in these from now on. Collective, between steps.
int SetBuckets(lua_State* state) {
  sharding::DataParallel& replicas = ReadReplicas(state);
  ReadTable(state, 2, "data_parallel: buckets");
  std::vector<std::vector<size_t>> buckets;
  ForEachElement(state, 2, [&](int) {
    const std::vector<int64_t> indices =
        ReadIntegers(state, lua_gettop(state), "data_parallel: a bucket");
    buckets.emplace_back(indices.begin(), indices.end());
  });
  replicas.SetBuckets(buckets);
  return 0;
}

// Replicas:no_sync(fn: fun(...): ..., ...: any) -> ...: any
// Calls fn(...) without averaging, and returns its results.
int NoSync(lua_State* state) {
  sharding::DataParallel& replicas = ReadReplicas(state);
  ReadFunction(state, 2, "no_sync: the argument");
  const auto restore =
      c10::make_scope_exit([&replicas, before = replicas.sync()] { replicas.set_sync(before); });
  replicas.set_sync(false);
  Call(state, lua_gettop(state) - 2, LUA_MULTRET);
  return lua_gettop(state) - 1;
}

}  // namespace

int OpenSharding(lua_State* state) {
  RegisterObject<Loop>(state, {{"next", NextBatch},
                               {"stop", StopLoop},
                               {"steps", Steps},
                               {"filled", Filled},
                               {"dropped", Dropped}});
  RegisterObject<Replicas>(state, {{"begin_pass", BeginPass},
                                   {"before_forward", BeforeForward},
                                   {"after_forward", AfterForward},
                                   {"check_backward", CheckBackward},
                                   {"no_sync", NoSync},
                                   {"buckets", GetBuckets},
                                   {"set_buckets", SetBuckets}});
  lua_newtable(state);
  SetFunctions(state, {{"lockstep", NewLoop}, {"data_parallel", NewReplicas}});
  SetDefaults<sharding::DataParallelOptions>(state, "data_parallel_defaults", kReplicaOptions);
  SetDataFunctions(state);
  SetGuardFunctions(state);
  SetFullyShardFunctions(state);
  SetRingFunctions(state);
  SetLinkFunctions(state);
  return 1;
}

}  // namespace lockstep::lua
