// lockstep.core.checkpoint: the library checkpoint.

#include "checkpoint/region/checkpoint.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "ATen/core/grad_mode.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/offload/host_offload.h"
#include "checkpoint/region/selection.h"
#include "driver/lua/bind/context.h"
#include "driver/lua/bind/open.h"
#include "driver/lua/tensor/captured.h"
#include "driver/lua/tensor/tensor.h"
#include "driver/lua/vm/fields.h"
#include "driver/lua/vm/object.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/vm.h"

namespace lockstep::lua {

template <>
inline constexpr const char* kObjectName<checkpoint::Checkpoint> = "checkpoint";
using Offload = std::shared_ptr<checkpoint::HostOffload>;
template <>
inline constexpr const char* kObjectName<Offload> = "host offload";
using SelectionPointer = std::shared_ptr<const checkpoint::Selection>;
template <>
inline constexpr const char* kObjectName<SelectionPointer> = "selection of operators";

namespace {

// A function and its arguments, less the tensors: to be called in forward, and again with other
// tensors.
class RegionCall {
 public:
  // The function is at `function`, the arguments are above it. Hands over the tensors among them.
  RegionCall(lua_State* state, int function, std::vector<at::Tensor>* tensors)
      : state_(state), num_arguments_(lua_gettop(state) - function), function_(state, function) {
    lua_newtable(state);
    for (int i = 1; i <= num_arguments_; ++i) {
      if (const at::Tensor* tensor = TensorAt(state, function + i)) {
        is_tensor_.push_back(true);
        tensors->push_back(*tensor);
        continue;
      }
      is_tensor_.push_back(false);
      lua_pushvalue(state, function + i);
      lua_rawseti(state, -2, i);
    }
    values_.emplace(state, lua_gettop(state));
    lua_pop(state, 1);
  }

  // Lets a recomputation throw Error if variables that the function at `function` has captured have
  // changed by then. `where` begins the message.
  void CompareCaptured(int function, std::string where) {
    captured_.emplace(state_, function);
    where_ = std::move(where);
  }

  // Forward calls what is on the stack, and leaves the results there; a recomputation has none.
  void operator()(const std::vector<at::Tensor>& tensors) {
    if (std::exchange(is_first_, false)) {
      Call(state_, num_arguments_, LUA_MULTRET);
      if (captured_.has_value()) captured_->EndFirstRun();
      return;
    }
    if (captured_.has_value()) captured_->Check(where_);
    lua_State* const state = function_.Push();
    if (lua_checkstack(state, num_arguments_ + 8) == 0) throw Error("lua: the stack is full");
    values_->Push();
    const int values = lua_gettop(state);
    auto tensor = tensors.begin();
    for (int i = 1; i <= num_arguments_; ++i) {
      if (is_tensor_[i - 1]) {
        PushTensor(state, *tensor++);
      } else {
        lua_rawgeti(state, values, i);
      }
    }
    lua_remove(state, values);
    Call(state, num_arguments_, 0);
  }

 private:
  lua_State* const state_;
  const int num_arguments_;
  const LuaReference function_;
  std::optional<CapturedVariables> captured_;
  std::string where_;
  std::optional<LuaReference> values_;  // {[i] = argument}, where it is no tensor
  std::vector<bool> is_tensor_;
  bool is_first_ = true;
};

constexpr Field<checkpoint::CheckpointOptions> kOptions[] = {
    {"preserve_rng", &checkpoint::CheckpointOptions::preserve_rng},
    {"early_stop", &checkpoint::CheckpointOptions::early_stop},
    {"check_metadata", &checkpoint::CheckpointOptions::check_metadata},
};

constexpr Field<checkpoint::OffloadOptions> kOffloadOptions[] = {
    {"keep_last", &checkpoint::OffloadOptions::keep_last},
    {"prefetch", &checkpoint::OffloadOptions::prefetch},
    {"min_bytes", &checkpoint::OffloadOptions::min_bytes},
};

constexpr Field<checkpoint::OffloadStats> kOffloadStats[] = {
    {"offloaded_bytes", &checkpoint::OffloadStats::offloaded_bytes},
    {"restored_bytes", &checkpoint::OffloadStats::restored_bytes},
    {"host_bytes", &checkpoint::OffloadStats::host_bytes},
    {"peak_host_bytes", &checkpoint::OffloadStats::peak_host_bytes},
    {"pool_allocations", &checkpoint::OffloadStats::pool_allocations},
    {"refused_bytes", &checkpoint::OffloadStats::refused_bytes},
    {"failed_prefetches", &checkpoint::OffloadStats::failed_prefetches},
};

// new(options: {preserve_rng: boolean?, early_stop: boolean?, check_metadata: boolean?},
//     offload: Offload?, policy: Selection?) -> Regions
int NewCheckpoint(lua_State* state) {
  checkpoint::CheckpointOptions options;
  ReadFields(OptionTable(state, 1, "checkpoint.new", NamesOf(kOptions)), kOptions, options);
  if (!lua_isnoneornil(state, 2))
    options.offload = ReadObject<Offload>(state, 2, "checkpoint.new: offload");
  if (!lua_isnoneornil(state, 3))
    options.save = ReadObject<SelectionPointer>(state, 3, "checkpoint.new: policy");
  const auto& environment = driver::GetContext(state).world.environment;
  if (environment.world_size > 1) options.rank = environment.rank;
  return PushObject<checkpoint::Checkpoint>(state, checkpoint::Checkpoint(std::move(options)));
}

// Regions:run(given: fun(...): ..., fn: fun(...): ..., ...: any) -> ...: any
// fn(...), computed again in backward with copies of the tensors among the arguments. An error
// then, if a variable that `given` has captured has changed. given: the function or module that the
// script gave, which is fn or is called by fn.
int RunRegion(lua_State* state) {
  const auto& region = ReadObject<checkpoint::Checkpoint>(state, 1, "checkpoint");
  ReadFunction(state, 3, "checkpoint: the first argument");
  const std::string line = RunningScriptLine();
  std::vector<at::Tensor> tensors;
  auto call = std::make_shared<RegionCall>(state, 3, &tensors);
  const checkpoint::CheckpointOptions& options = region.options();
  if (options.check_metadata && at::GradMode::is_enabled()) {
    const std::string rank = options.rank < 0 ? "" : absl::StrCat(" on rank ", options.rank);
    call->CompareCaptured(2, absl::StrCat("checkpoint: region ", line, rank, ": "));
  }
  region.Run([call](const std::vector<at::Tensor>& inputs) { (*call)(inputs); }, tensors, line);
  return lua_gettop(state) - 2;
}

// Regions:stats() -> checkpoint.Stats
int Stats(lua_State* state) {
  const auto& region = ReadObject<checkpoint::Checkpoint>(state, 1, "checkpoint");
  const checkpoint::CheckpointStats stats = region.stats();
  const Offload& offload = region.options().offload;
  lua_newtable(state);
  SetInteger(state, "regions", stats.regions);
  SetInteger(state, "recomputes", stats.recomputes);
  SetInteger(state, "modified_results", stats.modified_results);
  SetFields(state, kOffloadStats,
            offload == nullptr ? checkpoint::OffloadStats() : offload->stats());
  return 1;
}

// offload(options: {keep_last: integer?, prefetch: integer?, min_bytes: integer?,
//     max_host_bytes: integer?}) -> Offload
int NewOffload(lua_State* state) {
  const OptionTable table(state, 1, "checkpoint.new", NamesOf(kOffloadOptions, {"max_host_bytes"}));
  checkpoint::OffloadOptions options;
  ReadFields(table, kOffloadOptions, options);
  options.max_host_bytes = table.Integer("max_host_bytes", options.max_host_bytes);
  return PushObject<Offload>(state, checkpoint::HostOffload::New(options));
}

// Offload:save(fn: fun(...): ..., ...: any) -> ...: any
// fn(...), whose saved tensors wait in host memory.
int SaveOnHost(lua_State* state) {
  const Offload& offload = ReadObject<Offload>(state, 1, "checkpoint.save_on_host");
  ReadFunction(state, 2, "checkpoint.save_on_host: the first argument");
  checkpoint::SaveOnHost(*offload, [&] { Call(state, lua_gettop(state) - 2, LUA_MULTRET); });
  return lua_gettop(state) - 1;
}

// Offload:keep_on_device(tensors: torch.Tensor[])
// Never copies the tensors.
int KeepOnDevice(lua_State* state) {
  const Offload& offload = ReadObject<Offload>(state, 1, "checkpoint: offload");
  offload->KeepOnDevice(ReadTensors(state, 2, "checkpoint.new: frozen"));
  return 0;
}

// Offload:stats() -> checkpoint.HostStats
int OffloadStats(lua_State* state) {
  const Offload& offload = ReadObject<Offload>(state, 1, "checkpoint: offload");
  lua_newtable(state);
  SetFields(state, kOffloadStats, offload->stats());
  return 1;
}

// selection(operators: string[]) -> Selection
// The operators of which results are kept.
int NewSelection(lua_State* state) {
  const std::vector<std::string> operators = ReadStrings(
      state, 1, "checkpoint.selective: save", "checkpoint.selective: an operator of save");
  return PushObject<SelectionPointer>(state, checkpoint::Selection::Of(operators));
}

// Selection:operators() -> string[]
// Each overload that is kept.
int SelectedOperators(lua_State* state) {
  return PushStrings(state,
                     ReadObject<SelectionPointer>(state, 1, "checkpoint.selective")->Names());
}

}  // namespace

int OpenCheckpoint(lua_State* state) {
  RegisterObject<checkpoint::Checkpoint>(state, {{"run", RunRegion}, {"stats", Stats}});
  RegisterObject<Offload>(
      state, {{"save", SaveOnHost}, {"keep_on_device", KeepOnDevice}, {"stats", OffloadStats}});
  RegisterObject<SelectionPointer>(state, {{"operators", SelectedOperators}});
  lua_newtable(state);
  SetFunctions(state,
               {{"new", NewCheckpoint}, {"offload", NewOffload}, {"selection", NewSelection}});
  SetDefaults<checkpoint::CheckpointOptions>(state, "defaults", kOptions);
  SetDefaults<checkpoint::OffloadOptions>(state, "offload_defaults", kOffloadOptions);
  return 1;
}

}  // namespace lockstep::lua
