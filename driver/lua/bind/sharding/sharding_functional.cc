#include <string>
#include <vector>

#include "ATen/core/grad_mode.h"
#include "absl/strings/str_cat.h"
#include "driver/lua/bind/sharding/counted_call.h"
#include "driver/lua/bind/sharding/distributed.h"
#include "driver/lua/bind/sharding/functions.h"
#include "driver/lua/tensor/tensor.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/vm.h"
#include "driver/ranks/activity.h"
#include "driver/ranks/script_calls.h"
#include "sharding/functional/functional.h"

namespace lockstep::lua {
namespace {

namespace functional = sharding::functional;

// While this lives, the next collectives are the script's: compared with those of the other ranks
// first. Whether they require a gradient must be alike, too: backward is a collective.
class FunctionalCall {
 public:
  explicit FunctionalCall(const at::Tensor& x) : FunctionalCall(x, Describe(x)) {}
  FunctionalCall(const at::Tensor& x, const std::string& description)
      : subject_(absl::StrCat(
            description, at::GradMode::is_enabled() && x.requires_grad() ? " requires_grad" : "")) {
  }

 private:
  const driver::ScriptCall script_call_;
  const driver::CollectiveSubject subject_;
};

// The option, which has no default.
int64_t ReadDim(lua_State* state, const OptionTable& options, const char* key) {
  if (!options.Push(key)) {
    throw Error(absl::StrCat("dist.functional.all_to_all: ", key,
                             " is missing: dist.functional.all_to_all(x, {split_dim = 0, "
                             "concat_dim = 1})"));
  }
  const int64_t dim = ReadInteger(state, -1, key);
  lua_pop(state, 1);
  return dim;
}

int AllReduce(lua_State* state) {
  const at::Tensor& x = ReadTensor(state, 1, "dist.functional.all_reduce: x");
  const std::string op =
      lua_isnoneornil(state, 2) ? "sum" : ReadString(state, 2, "dist.functional.all_reduce: op");
  if (op != "sum" && op != "avg") {
    throw Error(absl::StrCat("dist.functional.all_reduce: op must be \"sum\" or \"avg\", not \"",
                             op, "\""));
  }
  const Group group =
      ReadGroup(state, OptionTable(state, 3, "dist.functional.all_reduce", {"group"}));
  CheckReducible(x, "dist.functional.all_reduce");
  const FunctionalCall call(x);
  return PushTensor(state, functional::AllReduce(x, group.process_group,
                                                 op == "avg" ? functional::Reduction::kMean
                                                             : functional::Reduction::kSum));
}

int AllGather(lua_State* state) {
  const at::Tensor& x = ReadTensor(state, 1, "dist.functional.all_gather: x");
  const OptionTable options(state, 2, "dist.functional.all_gather", {"dim", "group"});
  const Group group = ReadGroup(state, options);
  const FunctionalCall call(x);
  return PushTensor(state,
                    functional::AllGather(x, options.Integer("dim", 0), group.process_group));
}

int ReduceScatter(lua_State* state) {
  const at::Tensor& x = ReadTensor(state, 1, "dist.functional.reduce_scatter: x");
  const OptionTable options(state, 2, "dist.functional.reduce_scatter", {"dim", "group"});
  const Group group = ReadGroup(state, options);
  CheckReducible(x, "dist.functional.reduce_scatter");
  const FunctionalCall call(x);
  return PushTensor(state,
                    functional::ReduceScatter(x, options.Integer("dim", 0), group.process_group));
}

// Counts of rows for each rank, or from each.
std::vector<int64_t> ReadCounts(lua_State* state, const OptionTable& options, const char* key) {
  if (!options.Push(key)) {
    throw Error(absl::StrCat("dist.functional.all_to_all: ", key,
                             " is missing: dist.functional.all_to_all(x, {sent = {2, 0}, "
                             "received = {1, 3}})"));
  }
  const std::vector<int64_t> counts =
      ReadIntegers(state, -1, absl::StrCat("dist.functional.all_to_all: ", key).c_str());
  lua_pop(state, 1);
  return counts;
}

// The form with counts of rows. The ranks may have different numbers of rows.
at::Tensor AllToAllRows(lua_State* state, const at::Tensor& x, const OptionTable& options) {
  for (const char* key : {"split_dim", "concat_dim"}) {
    if (options.Has(key)) {
      throw Error(absl::StrCat("dist.functional.all_to_all: ", key,
                               " is for equal parts; counts of rows (sent, received) are of "
                               "dimension 0"));
    }
  }
  const Group group = ReadGroup(state, options);
  const std::vector<int64_t> sent = ReadCounts(state, options, "sent");
  const std::vector<int64_t> received = ReadCounts(state, options, "received");
  const std::string rows =
      x.dim() == 0 ? Describe(x)
                   : absl::StrCat("rows of ", Describe(x.new_empty(x.sizes().slice(1))));
  const FunctionalCall call(x, rows);
  return functional::AllToAllRows(x, sent, received, group.process_group);
}

int AllToAll(lua_State* state) {
  const at::Tensor& x = ReadTensor(state, 1, "dist.functional.all_to_all: x");
  const OptionTable options(state, 2, "dist.functional.all_to_all",
                            {"split_dim", "concat_dim", "sent", "received", "group"});
  if (options.Has("sent") || options.Has("received")) {
    return PushTensor(state, AllToAllRows(state, x, options));
  }
  const Group group = ReadGroup(state, options);
  const int64_t split_dim = ReadDim(state, options, "split_dim");
  const int64_t concat_dim = ReadDim(state, options, "concat_dim");
  const FunctionalCall call(x);
  return PushTensor(state, functional::AllToAll(x, split_dim, concat_dim, group.process_group));
}

int Broadcast(lua_State* state) {
  const at::Tensor& x = ReadTensor(state, 1, "dist.functional.broadcast: x");
  const int64_t source = ReadInteger(state, 2, "dist.functional.broadcast: src");
  const Group group =
      ReadGroup(state, OptionTable(state, 3, "dist.functional.broadcast", {"group"}));
  const int position = PositionOf(group, source, "dist.functional.broadcast: src");
  const FunctionalCall call(x);
  return PushTensor(state, functional::Broadcast(x, position, group.process_group));
}

}  // namespace

void SetFunctional(lua_State* state) {
  lua_newtable(state);
  SetFunctions(state, {{"all_reduce", CountedCall<AllReduce>},
                       {"all_gather", CountedCall<AllGather>},
                       {"reduce_scatter", CountedCall<ReduceScatter>},
                       {"all_to_all", CountedCall<AllToAll>},
                       {"broadcast", CountedCall<Broadcast>}});
  lua_setfield(state, -2, "functional");
}

}  // namespace lockstep::lua
