#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "driver/lua/bind/mimo/functions.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/status.h"
#include "driver/lua/vm/vm.h"
#include "mimo/schedule/schedule.h"

namespace lockstep::lua {
namespace {

struct NamedOrder {
  const char* name;
  mimo::Order order;
};
constexpr NamedOrder kOrders[] = {{"sequential", mimo::Order::kSequential},
                                  {"all_forwards_first", mimo::Order::kAllForwardsFirst},
                                  {"1f1b", mimo::Order::k1F1B}};

// The one that is named; with "all", those that the topology allows.
std::vector<NamedOrder> ReadOrders(const mimo::Topology& topology, const OptionTable& table) {
  const std::string name = table.String("order", "sequential");
  bool is_colocated = false;
  for (int64_t rank = 0; rank < topology.world_size(); ++rank)
    is_colocated = is_colocated || topology.colocated(rank);
  std::vector<NamedOrder> orders;
  for (const NamedOrder& each : kOrders) {
    const bool applies = each.order != mimo::Order::k1F1B || !is_colocated;
    if (name == each.name || (name == "all" && applies)) orders.push_back(each);
  }
  if (!orders.empty()) return orders;
  throw Error(
      absl::StrCat("topology:check_schedule: order must be \"sequential\", \"all_forwards_first\", "
                   "\"1f1b\", or \"all\" of them, not \"",
                   name, "\""));
}

// Reads the operations of a rank: {{kind, gradient, with_previous, partner, subject, micro_batch},
// ...}, numbers from 0. kind: 0 sends, 1 receives.
void ReadOps(lua_State* state, int index, std::vector<mimo::Op>& ops) {
  ForEachElement(state, index, [&](int) {
    const std::vector<int64_t> fields = ReadIntegers(state, lua_gettop(state), "mimo: operation");
    if (fields.size() != 6) throw Error("mimo: an operation is six numbers");
    mimo::Op op;
    op.kind = fields[0] == 0 ? mimo::OpKind::kSend : mimo::OpKind::kReceive;
    op.payload = fields[1] == 0 ? mimo::Payload::kStage : mimo::Payload::kStageGradient;
    op.with_previous = fields[2] != 0;
    op.partner = static_cast<int32_t>(fields[3]);
    op.subject = static_cast<int32_t>(fields[4]);
    op.micro_batch = static_cast<int32_t>(fields[5]);
    ops.push_back(op);
  });
}

}  // namespace

int SimulateMessages(lua_State* state) {
  mimo::Schedule schedule;
  ReadTable(state, 1, "mimo: names of stages");
  ForEachElement(state, 1, [&](int) {
    schedule.modules.push_back(ReadString(state, lua_gettop(state), "mimo: name of a stage"));
  });
  ReadTable(state, 2, "mimo: operations");
  ForEachElement(state, 2, [&](int) {
    ReadOps(state, lua_gettop(state), schedule.ops);
    schedule.op_offsets.push_back(static_cast<int64_t>(schedule.ops.size()));
  });
  schedule.world_size = static_cast<int64_t>(schedule.op_offsets.size()) - 1;
  const mimo::Simulation simulation = ValueOrThrow(mimo::Simulate(schedule));
  PushInteger(state, simulation.ops);
  PushInteger(state, simulation.transfers);
  return 2;
}

int CheckSchedule(lua_State* state, const mimo::Topology& topology) {
  const OptionTable table(state, 2, "topology:check_schedule",
                          {"micro_batches", "micro_batch_size", "order"});
  const std::vector<NamedOrder> orders = ReadOrders(topology, table);
  mimo::StepOptions options;
  options.num_micro_batches = table.Integer("micro_batches", 1);
  options.micro_batch_size = table.Integer("micro_batch_size", 0);
  mimo::Simulation simulation;
  for (const auto& [name, order] : orders) {
    options.order = order;
    const mimo::Schedule schedule = ValueOrThrow(mimo::MakeSchedule(topology, options));
    const absl::StatusOr<mimo::Simulation> simulated = mimo::Simulate(schedule);
    if (!simulated.ok()) {
      throw Error(absl::StrCat(simulated.status().message(), "\n  in the order \"", name, "\" of ",
                               options.num_micro_batches, " micro-batches"));
    }
    simulation = *simulated;
  }
  for (const int64_t count : {simulation.ops, simulation.transfers, simulation.collectives})
    PushInteger(state, count);
  return 3;
}

}  // namespace lockstep::lua
