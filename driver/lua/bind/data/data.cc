// lockstep.core.data: mixes of sources, and workers.

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "driver/data/mix.h"
#include "driver/lua/bind/data/source.h"
#include "driver/lua/bind/data/worker_pool.h"
#include "driver/lua/bind/open.h"
#include "driver/lua/bind/program/serialize.h"
#include "driver/lua/operators/operators.h"
#include "driver/lua/vm/object.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/status.h"
#include "driver/lua/vm/vm.h"

namespace lockstep::lua {

using Workers = std::unique_ptr<WorkerPool>;

template <>
inline constexpr const char* kObjectName<data::Mix> = "mix of sources";
template <>
inline constexpr const char* kObjectName<Workers> = "workers";

namespace {

// --- Mixes ---------------------------------------------------------------------------------------

// mix(sizes: integer[], weights: number[]?, size: integer?) -> Mix
// Without weights they are the sizes. size: the samples of an epoch; without it, those of all
// sources together.
int NewMix(lua_State* state) {
  data::MixOptions options;
  options.sizes = ReadIntegers(state, 1, "data.mix: sizes");
  if (!lua_isnoneornil(state, 2)) {
    ReadTable(state, 2, "data.mix: weights");
    ForEachElement(state, 2, [&](int) {
      options.weights.push_back(ReadNumber(state, -1, "data.mix: a weight"));
    });
    if (options.weights.empty()) throw Error("data.mix: weights must be an array of numbers");
  }
  if (!lua_isnoneornil(state, 3)) {
    options.size = ReadInteger(state, 3, "data.mix: size");
    if (options.size < 1)
      throw Error(absl::StrCat("data.mix: size must be at least 1, not ", options.size));
  }
  return PushObject(state, ValueOrThrow(data::Mix::Make(options), "data.mix: "));
}

const data::Mix& ReadMix(lua_State* state) { return ReadObject<data::Mix>(state, 1, "mix"); }

// Mix:size() -> samples: integer
// The samples of an epoch.
int MixSize(lua_State* state) { return PushInteger(state, ReadMix(state).size()); }

// Mix:counts() -> samples: integer[]
// The samples of an epoch, of each source.
int MixCounts(lua_State* state) { return PushIntegers(state, ReadMix(state).counts()); }

// Mix:locate(position: integer, epoch: integer) -> source: integer, index: integer, pass: integer
// position: from 0 to size() - 1; source: from 1; index: from 1; pass: how often all of the source
// came before.
int Locate(lua_State* state) {
  const data::Mix::Located place = ReadMix(state).Locate(ReadInteger(state, 2, "locate: position"),
                                                         ReadInteger(state, 3, "locate: epoch"));
  PushInteger(state, place.source + 1);
  PushInteger(state, place.index + 1);
  PushInteger(state, place.pass);
  return 3;
}

// --- Work ----------------------------------------------------------------------------------------

// attempt(fn: fun(...): any, ...: any) -> ok: boolean, ...: any
// Calls fn as a worker does: operators that draw from torch's generator are errors. ...: fn's
// results, or the error's message.
int Attempt(lua_State* state) {
  ReadFunction(state, 1, "attempt: fn");
  lua_pushboolean(state, 1);
  lua_insert(state, 1);
  try {
    const RandomRefused refused("a map of data.loader");
    Call(state, lua_gettop(state) - 2, LUA_MULTRET);
  } catch (const PendingError& error) {
    lua_settop(state, 0);
    lua_pushboolean(state, 0);
    PushString(state, error.what());
  }
  return lua_gettop(state);
}

// workers(count: integer, module: string, start: any) -> Workers
// module: returns function(start), which returns function(value, source).
int NewWorkers(lua_State* state) {
  WorkerPool::Options options;
  options.num_workers = static_cast<int>(ReadInteger(state, 1, "workers: count"));
  options.module = ReadString(state, 2, "workers: module");
  options.start.bytes = Serialize(state, 3, "data.loader: options", &options.start.tensors);
  return PushObject(state, std::make_unique<WorkerPool>(std::move(options), WorkerStateOf(state)));
}

WorkerPool& ReadWorkers(lua_State* state) {
  Workers& workers = ReadObject<Workers>(state, 1, "workers");
  if (workers == nullptr) throw Error("data.loader: its workers were stopped");
  return *workers;
}

// Workers:submit(value: any, source: data.Source?)
// Gives the workers' function a value, and a source. value: what run:state can keep.
int Submit(lua_State* state) {
  WorkerPool& workers = ReadWorkers(state);
  WorkerPool::Job job;
  job.value.bytes = Serialize(state, 2, "data.loader: a sample", &job.value.tensors);
  job.source = SourceAt(state, 3);
  workers.Submit(std::move(job));
  return 0;
}

// Workers:next(timeout_s: number) -> ok: boolean?, value: any
// Waits for the result of the oldest value that has none yet. Throws an error that names a worker
// which has ended. ok: nil where it has not come in time; it may still come; value: the
// result, or the error's message.
int Next(lua_State* state) {
  const double timeout_s = ReadNumber(state, 2, "workers:next: timeout_s");
  const std::optional<WorkerPool::Result> result = ReadWorkers(state).Next(timeout_s);
  if (!result.has_value()) return 0;
  lua_pushboolean(state, result->ok ? 1 : 0);
  if (result->ok) {
    PushSerialized(state, result->value.bytes, "data.loader", result->value.tensors);
  } else {
    PushString(state, result->message);
  }
  return 2;
}

// Workers:stop()
// Ends the threads, once what they are at is done.
int Stop(lua_State* state) {
  ReadObject<Workers>(state, 1, "workers").reset();
  return 0;
}

// is_source(value: any) -> boolean
// Whether workers can read the value for themselves: data.source made it.
int IsSource(lua_State* state) { return PushBoolean(state, SourceAt(state, 1) != nullptr); }

}  // namespace

int OpenData(lua_State* state) {
  RegisterSource(state);
  RegisterObject<data::Mix>(state, {{"size", MixSize}, {"counts", MixCounts}, {"locate", Locate}});
  RegisterObject<Workers>(state, {{"submit", Submit}, {"next", Next}, {"stop", Stop}});
  lua_newtable(state);
  SetFunctions(state, {{"source", NewSource},
                       {"is_source", IsSource},
                       {"mix", NewMix},
                       {"attempt", Attempt},
                       {"workers", NewWorkers}});
  return 1;
}

}  // namespace lockstep::lua
