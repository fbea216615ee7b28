#include "driver/lua/sharding.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "driver/context.h"
#include "driver/control.h"
#include "driver/lua/distributed.h"
#include "driver/lua/object.h"
#include "driver/lua/stack.h"
#include "driver/lua/tensor.h"
#include "driver/lua/vm.h"
#include "driver/world.h"
#include "sharding/c10d_collective.h"
#include "sharding/data_parallel.h"
#include "sharding/gather_texts.h"
#include "sharding/guard.h"
#include "sharding/lockstep.h"
#include "sharding/pack.h"
#include "sharding/shard.h"

namespace lockstep::lua {
namespace {

using driver::GetContext;

// The group that agreements between these ranks travel on, apart from the training's collectives.
// Made when it is first asked for, by all its ranks.
sharding::Collective* ControlCollective(lua_State* state, const Group& group) {
  if (group.ranks.size() == 1) return nullptr;
  static auto* const collectives =
      new std::map<std::vector<int>, std::unique_ptr<sharding::Collective>>();
  auto& collective = (*collectives)[group.ranks];
  if (collective == nullptr) {
    const driver::Context& context = GetContext(state);
    collective = driver::NewControlCollective(context.world, group.ranks, context.timeout,
                                              {"sharding.lockstep"});
  }
  return collective.get();
}

// --- lockstep
// ---------------------------------------------------------------------------------------

using Batch = std::shared_ptr<LuaReference>;
using Loop = std::unique_ptr<sharding::Lockstep<Batch>>;

}  // namespace

template <>
inline constexpr const char* kObjectName<Loop> = "lockstep loop";
using Replicas = std::unique_ptr<sharding::DataParallel>;
template <>
inline constexpr const char* kObjectName<Replicas> = "data parallel";
template <>
inline constexpr const char* kObjectName<sharding::Shard> = "shard";
template <>
inline constexpr const char* kObjectName<sharding::Packer> = "packer";
struct GuardObject {  // null pointers in a group of one rank
  std::unique_ptr<sharding::Collective> collective;
  std::unique_ptr<sharding::StoreNotes> notes;
  std::unique_ptr<sharding::Guard> guard;
};
using GuardPointer = std::unique_ptr<GuardObject>;
template <>
inline constexpr const char* kObjectName<GuardPointer> = "guard";
struct GatheringObject {
  std::unique_ptr<sharding::Collective> collective;  // null in a run of one rank
};
template <>
inline constexpr const char* kObjectName<GatheringObject> = "gathering";

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

int NewLoop(lua_State* state) {
  const OptionTable options(state, 2, "sharding.lockstep", {"policy", "group", "filler"});
  auto iterator = std::make_shared<LuaReference>(state, 1);
  sharding::Lockstep<Batch>::Options loop_options;
  loop_options.policy = ReadPolicy(options);
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
  PushObject<Loop>(state, std::make_unique<sharding::Lockstep<Batch>>(
                              ControlCollective(state, ReadGroup(state, options)),
                              [iterator] { return CallForBatch(*iterator, std::nullopt); },
                              std::move(loop_options)));
  return 1;
}

sharding::Lockstep<Batch>& ReadLoop(lua_State* state) {
  return *ReadObject<Loop>(state, 1, "sharding.lockstep: loop");
}

// next() -> batch, real; nothing when the loop is over.
int NextBatch(lua_State* state) {
  absl::StatusOr<std::optional<sharding::Lockstep<Batch>::Step>> step = ReadLoop(state).Next();
  if (!step.ok()) throw Error(std::string(step.status().message()));
  if (!step->has_value()) return 0;
  (*step)->batch->Push();
  lua_pushboolean(state, (*step)->real);
  return 2;
}

int StopLoop(lua_State* state) {
  ReadLoop(state).Stop();
  return 0;
}

int Steps(lua_State* state) {
  PushInteger(state, ReadLoop(state).steps());
  return 1;
}

int Filled(lua_State* state) {
  PushInteger(state, ReadLoop(state).filled());
  return 1;
}

int Dropped(lua_State* state) {
  PushInteger(state, ReadLoop(state).CountDropped());
  return 1;
}

// --- data_parallel
// ----------------------------------------------------------------------------------

// {{name, tensor}, ...}
std::vector<sharding::NamedTensor> ReadNamedTensors(lua_State* state, int index) {
  ReadTable(state, index, "data_parallel: tensors");
  std::vector<sharding::NamedTensor> tensors;
  for (int i = 1; i <= static_cast<int>(lua_objlen(state, index)); ++i) {
    lua_rawgeti(state, index, i);
    lua_rawgeti(state, -1, 1);
    lua_rawgeti(state, -2, 2);
    tensors.push_back({ReadString(state, -2, "data_parallel: name"),
                       ReadTensor(state, lua_gettop(state), "data_parallel: tensor")});
    lua_pop(state, 3);
  }
  return tensors;
}

sharding::Compression ReadCompression(const OptionTable& options) {
  const std::string compression = options.String("compression", "none");
  if (compression == "none") return sharding::Compression::kNone;
  if (compression == "bf16") return sharding::Compression::kBFloat16;
  if (compression == "fp16") return sharding::Compression::kFloat16;
  throw Error(absl::StrCat(
      "sharding.data_parallel: compression must be \"none\", \"bf16\" or \"fp16\", not \"",
      compression, "\""));
}

int NewReplicas(lua_State* state) {
  const OptionTable table(state, 3, "sharding.data_parallel",
                          {"bucket_mb", "find_unused", "static_graph", "compression", "group"});
  sharding::DataParallelOptions options;
  options.bucket_bytes = static_cast<int64_t>(table.Number("bucket_mb", 25) * (1 << 20));
  options.find_unused = table.Boolean("find_unused", false);
  options.static_graph = table.Boolean("static_graph", false);
  options.compression = ReadCompression(table);
  PushObject<Replicas>(state, std::make_unique<sharding::DataParallel>(
                                  ReadNamedTensors(state, 1), ReadNamedTensors(state, 2),
                                  ReadGroup(state, table).process_group, options));
  return 1;
}

sharding::DataParallel& ReadReplicas(lua_State* state) {
  return *ReadObject<Replicas>(state, 1, "data_parallel: replicas");
}

int BeforeForward(lua_State* state) {
  ReadReplicas(state).BeforeForward();
  return 0;
}

int AfterForward(lua_State* state) {
  PushTensors(state,
              ReadReplicas(state).AfterForward(ReadTensors(state, 2, "data_parallel: outputs")));
  return 1;
}

// buckets() -> {{index, ...}, ...}, from 0
int GetBuckets(lua_State* state) {
  const std::vector<std::vector<size_t>> buckets = ReadReplicas(state).Buckets();
  lua_createtable(state, static_cast<int>(buckets.size()), 0);
  for (size_t i = 0; i < buckets.size(); ++i) {
    PushIntegers(state, std::vector<int64_t>(buckets[i].begin(), buckets[i].end()));
    lua_rawseti(state, -2, static_cast<int>(i + 1));
  }
  return 1;
}

int SetBuckets(lua_State* state) {
  sharding::DataParallel& replicas = ReadReplicas(state);
  ReadTable(state, 2, "data_parallel: buckets");
  std::vector<std::vector<size_t>> buckets;
  for (int i = 1; i <= static_cast<int>(lua_objlen(state, 2)); ++i) {
    lua_rawgeti(state, 2, i);
    const std::vector<int64_t> indices =
        ReadIntegers(state, lua_gettop(state), "data_parallel: a bucket");
    buckets.emplace_back(indices.begin(), indices.end());
    lua_pop(state, 1);
  }
  replicas.SetBuckets(buckets);
  return 0;
}

// no_sync(replicas, fn, ...) -> fn(...), without averaging.
int NoSync(lua_State* state) {
  sharding::DataParallel& replicas = ReadReplicas(state);
  ReadFunction(state, 2, "no_sync: the argument");
  struct Guard {
    sharding::DataParallel& replicas;
    bool before;
    ~Guard() { replicas.set_sync(before); }
  } guard{replicas, replicas.sync()};
  replicas.set_sync(false);
  Call(state, lua_gettop(state) - 2, LUA_MULTRET);
  return lua_gettop(state) - 1;
}

// --- dataset
// ----------------------------------------------------------------------------------------

sharding::Tail ReadTail(const OptionTable& table) {
  const bool drop = table.Boolean("drop_last", false);
  const bool pad = table.Boolean("pad", false);
  if (drop && pad) throw Error("sharding.dataset: drop_last and pad exclude each other");
  return drop ? sharding::Tail::kDrop : pad ? sharding::Tail::kPad : sharding::Tail::kUneven;
}

int NewShard(lua_State* state) {
  const OptionTable table(
      state, 1, "sharding.dataset",
      {"size", "rank", "world", "seed", "epoch", "shuffle", "drop_last", "pad", "start"});
  sharding::ShardOptions options;
  options.size = table.Integer("size", -1);
  options.rank = static_cast<int>(table.Integer("rank", 0));
  options.world = static_cast<int>(table.Integer("world", 1));
  options.seed = static_cast<uint64_t>(table.Integer("seed", 0));
  options.epoch = table.Integer("epoch", 0);
  options.shuffle = table.Boolean("shuffle", true);
  options.tail = ReadTail(table);
  options.start = table.Integer("start", 0);
  absl::StatusOr<sharding::Shard> shard = sharding::Shard::Make(options);
  if (!shard.ok()) throw Error(std::string(shard.status().message()));
  PushObject<sharding::Shard>(state, *std::move(shard));
  return 1;
}

sharding::Shard& ReadShard(lua_State* state) {
  return ReadObject<sharding::Shard>(state, 1, "sharding.dataset");
}

// next() -> index from 1, as Lua counts; nothing at the end.
int NextIndex(lua_State* state) {
  const std::optional<int64_t> index = ReadShard(state).Next();
  if (!index.has_value()) return 0;
  PushInteger(state, *index + 1);
  return 1;
}

// counts() -> length, taken, padded, dropped
int ShardCounts(lua_State* state) {
  const sharding::Shard& shard = ReadShard(state);
  for (const int64_t count : {shard.length(), shard.taken(), shard.padded(), shard.dropped()})
    PushInteger(state, count);
  return 4;
}

int StartAfter(lua_State* state) {
  PushInteger(state, ReadShard(state).StartAfter(ReadInteger(state, 2, "sharding.dataset: taken")));
  return 1;
}

// --- pack
// -------------------------------------------------------------------------------------------

// packer(seq_len, split, drop_last)
int NewPacker(lua_State* state) {
  sharding::PackOptions options;
  options.seq_len = ReadInteger(state, 1, "sharding.pack: seq_len");
  if (options.seq_len < 1)
    throw Error(absl::StrCat("sharding.pack: seq_len must be at least 1, not ", options.seq_len));
  options.split = lua_toboolean(state, 2) != 0;
  options.drop_last = lua_toboolean(state, 3) != 0;
  PushObject<sharding::Packer>(state, sharding::Packer(options));
  return 1;
}

sharding::Packer& ReadPacker(lua_State* state) {
  return ReadObject<sharding::Packer>(state, 1, "sharding.pack");
}

// {sample, begin, end, sample, begin, end, ...}, samples from 1
void PushChunk(lua_State* state, const sharding::Chunk& chunk) {
  std::vector<int64_t> numbers;
  for (const sharding::Piece& piece : chunk)
    numbers.insert(numbers.end(), {piece.sample + 1, piece.begin, piece.end});
  PushIntegers(state, numbers);
}

// add(tokens) -> array of chunks
int AddSample(lua_State* state) {
  const std::vector<sharding::Chunk> chunks =
      ReadPacker(state).Add(ReadInteger(state, 2, "sharding.pack: tokens"));
  lua_createtable(state, static_cast<int>(chunks.size()), 0);
  for (size_t i = 0; i < chunks.size(); ++i) {
    PushChunk(state, chunks[i]);
    lua_rawseti(state, -2, static_cast<int>(i + 1));
  }
  return 1;
}

// finish() -> chunk or nothing
int FinishPacking(lua_State* state) {
  const std::optional<sharding::Chunk> chunk = ReadPacker(state).Finish();
  if (!chunk.has_value()) return 0;
  PushChunk(state, *chunk);
  return 1;
}

// waiting() -> the pieces of the chunk that is not full
int WaitingPieces(lua_State* state) {
  PushChunk(state, ReadPacker(state).waiting());
  return 1;
}

int DroppedTokens(lua_State* state) {
  PushInteger(state, ReadPacker(state).dropped_tokens());
  return 1;
}

// --- guard
// ------------------------------------------------------------------------------------------

int NewGuard(lua_State* state) {
  const OptionTable table(state, 1, "sharding.guard", {"group", "timeout_s"});
  const driver::Context& context = GetContext(state);
  const double timeout_s =
      table.Number("timeout_s", std::chrono::duration<double>(context.timeout).count());
  constexpr double kLongest = 604800;  // as of --timeout
  if (!(timeout_s >= 0.001 && timeout_s <= kLongest)) {
    throw Error(absl::StrCat("sharding.guard: timeout_s must be from 0.001 to ", kLongest, ", not ",
                             timeout_s));
  }
  const Group& group = ReadGroup(state, table);
  // Guards are made alike on every rank: their count names their notes.
  static auto* const counts = new std::map<std::vector<int>, int>();
  const std::string prefix =
      absl::StrCat("guard/", absl::StrJoin(group.ranks, ","), "/", (*counts)[group.ranks]++);
  auto guard = std::make_unique<GuardObject>();
  if (group.ranks.size() > 1) {
    const auto timeout = std::chrono::milliseconds(static_cast<int64_t>(1000 * timeout_s));
    guard->collective = driver::NewControlCollective(context.world, group.ranks, timeout,
                                                     {"sharding.guard", /*watched=*/false});
    guard->notes = std::make_unique<sharding::StoreNotes>(context.world.store, prefix,
                                                          guard->collective->rank());
    guard->guard = std::make_unique<sharding::Guard>(guard->collective.get(), guard->notes.get(),
                                                     timeout_s, group.ranks);
  }
  PushObject<GuardPointer>(state, std::move(guard));
  return 1;
}

// check(label, fingerprint): texts
int CheckGuard(lua_State* state) {
  GuardObject& object = *ReadObject<GuardPointer>(state, 1, "sharding.guard");
  const std::string label = ReadString(state, 2, "guard:check: the label");
  const std::string fingerprint = ReadString(state, 3, "guard:check: the fingerprint");
  if (object.guard == nullptr) return 0;  // one rank agrees with itself
  GetContext(state).world.activity->SetLabel(label);
  const absl::Status status = object.guard->Check(label, fingerprint, RunningScriptLine());
  if (!status.ok()) throw Error(std::string(status.message()));
  return 0;
}

// --- gathering
// ---------------------------------------------------------------------------------------

// gathering(purpose [, timeout_s]): texts of all ranks of the run, apart from the training's
// collectives. Collective.
int NewGathering(lua_State* state) {
  const std::string purpose = ReadString(state, 1, "gathering: purpose");
  const driver::Context& context = GetContext(state);
  auto timeout = context.timeout;
  if (!lua_isnoneornil(state, 2)) {
    timeout = std::max<std::chrono::milliseconds>(
        timeout, std::chrono::seconds(ReadInteger(state, 2, "gathering: timeout_s")));
  }
  GatheringObject gathering;
  const int world_size = context.world.environment.world_size;
  if (world_size > 1) {
    std::vector<int> ranks(static_cast<size_t>(world_size));
    std::iota(ranks.begin(), ranks.end(), 0);
    gathering.collective = driver::NewControlCollective(context.world, ranks, timeout, {purpose});
  }
  PushObject(state, std::move(gathering));
  return 1;
}

// gather(text) -> array of texts, by rank. gather_flags: in half the time, where the texts are of
// one length on every rank. Collective.
template <bool kFlags>
int Gather(lua_State* state) {
  const auto& collective = ReadObject<GatheringObject>(state, 1, "gathering").collective;
  const std::string text = ReadString(state, 2, "gathering: text");
  absl::StatusOr<std::vector<std::string>> texts = std::vector<std::string>{text};
  if (collective != nullptr) {
    texts = kFlags ? collective->StartAllGather(text)->Wait()
                   : sharding::GatherTexts(*collective, text);
  }
  if (!texts.ok()) throw Error(std::string(texts.status().message()));
  lua_createtable(state, static_cast<int>(texts->size()), 0);
  for (size_t i = 0; i < texts->size(); ++i) {
    PushString(state, (*texts)[i]);
    lua_rawseti(state, -2, static_cast<int>(i + 1));
  }
  return 1;
}

}  // namespace

int OpenSharding(lua_State* state) {
  RegisterObject<Loop>(state, {{"next", NextBatch},
                               {"stop", StopLoop},
                               {"steps", Steps},
                               {"filled", Filled},
                               {"dropped", Dropped}});
  RegisterObject<Replicas>(state, {{"before_forward", BeforeForward},
                                   {"after_forward", AfterForward},
                                   {"no_sync", NoSync},
                                   {"buckets", GetBuckets},
                                   {"set_buckets", SetBuckets}});
  RegisterObject<sharding::Shard>(
      state, {{"next", NextIndex}, {"counts", ShardCounts}, {"start_after", StartAfter}});
  RegisterObject<sharding::Packer>(state, {{"add", AddSample},
                                           {"finish", FinishPacking},
                                           {"waiting", WaitingPieces},
                                           {"dropped_tokens", DroppedTokens}});
  RegisterObject<GuardPointer>(state, {{"check", CheckGuard}});
  RegisterObject<GatheringObject>(state,
                                  {{"gather", Gather<false>}, {"gather_flags", Gather<true>}});
  lua_newtable(state);
  SetFunctions(state, {{"lockstep", NewLoop},
                       {"data_parallel", NewReplicas},
                       {"dataset", NewShard},
                       {"packer", NewPacker},
                       {"guard", NewGuard},
                       {"gathering", NewGathering}});
  return 1;
}

}  // namespace lockstep::lua
