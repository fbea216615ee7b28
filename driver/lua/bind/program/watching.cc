// lockstep.core.watching: measurements for lockstep and lockstep.log.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/record_function.h"
#include "driver/files/event_file.h"
#include "driver/lua/bind/open.h"
#include "driver/lua/tensor/tensor.h"
#include "driver/lua/vm/object.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/vm.h"
#include "driver/watching/flops.h"
#include "driver/watching/memory_lines.h"
#include "driver/watching/operator_costs.h"
#include "driver/watching/own_work.h"
#include "driver/watching/trace.h"

namespace lockstep::lua {

template <>
inline constexpr const char* kObjectName<driver::EventFile> = "event file";
using Counter = std::unique_ptr<driver::FlopCounter>;
template <>
inline constexpr const char* kObjectName<Counter> = "counter of FLOPs";
using Tracker = std::unique_ptr<driver::MemoryTracker>;
template <>
inline constexpr const char* kObjectName<Tracker> = "memory tracker";
struct Costs {
  at::Device device;
  std::unique_ptr<driver::OperatorCosts> costs;
};
template <>
inline constexpr const char* kObjectName<Costs> = "costs of operators";
using TracePointer = std::unique_ptr<driver::Trace>;
template <>
inline constexpr const char* kObjectName<TracePointer> = "trace";

namespace {

// --- TensorBoard ---------------------------------------------------------------------------------

// event_file(folder: string) -> EventFile
// Makes a file for TensorBoard in the folder.
int NewEventFile(lua_State* state) {
  return PushObject(state, driver::EventFile(ReadString(state, 1, "event_file: folder")));
}

// EventFile:write(step: integer, scalars: table<string, number>)
// Adds a record, which is in the file when this returns. scalars: by tag.
int WriteEvent(lua_State* state) {
  auto& file = ReadObject<driver::EventFile>(state, 1, "event file");
  const int64_t step = ReadInteger(state, 2, "event file: step");
  ReadTable(state, 3, "event file: scalars");
  driver::Scalars scalars;
  for (lua_pushnil(state); lua_next(state, 3) != 0; lua_pop(state, 1)) {
    scalars.emplace_back(ReadString(state, -2, "event file: a tag"),
                         ReadNumber(state, -1, "event file: a scalar"));
  }
  std::sort(scalars.begin(), scalars.end());
  file.Write(step, scalars);
  return 0;
}

// EventFile:write_text(step: integer, tag: string, text: string)
// Adds a text, which TensorBoard shows as Markdown.
int WriteText(lua_State* state) {
  auto& file = ReadObject<driver::EventFile>(state, 1, "event file");
  file.WriteText(ReadInteger(state, 2, "event file: step"), ReadString(state, 3, "event file: tag"),
                 ReadString(state, 4, "event file: text"));
  return 0;
}

// --- FLOPs ---------------------------------------------------------------------------------------

// {total =, {name =, flops =, calls =}, ...}
int PushFlops(lua_State* state, const driver::FlopCounter& counter) {
  const std::vector<driver::OperatorFlops> operators = counter.ByOperator();
  lua_newtable(state);
  SetInteger(state, "total", counter.total());
  for (size_t i = 0; i < operators.size(); ++i) {
    lua_newtable(state);
    SetString(state, "name", operators[i].name);
    SetInteger(state, "flops", operators[i].flops);
    SetInteger(state, "calls", operators[i].calls);
    lua_rawseti(state, -2, static_cast<int>(i + 1));
  }
  return 1;
}

// flops(fn: fun(...): ..., ...: any) -> counts: lockstep.Flops, ...: any
// Counts the FLOPs of fn(...), by operator. ...: fn's results.
int Flops(lua_State* state) {
  ReadFunction(state, 1, "lockstep.flops: the argument");
  const driver::FlopCounter counter;
  Call(state, lua_gettop(state) - 1, LUA_MULTRET);
  PushFlops(state, counter);
  lua_insert(state, 1);
  return lua_gettop(state);
}

// flop_counter() -> Counter
// Counts what this thread calls from here on.
int NewFlopCounter(lua_State* state) {
  return PushObject(state, std::make_unique<driver::FlopCounter>());
}

// Counter:total() -> integer
// FLOPs counted since it was made.
int CounterTotal(lua_State* state) {
  return PushInteger(state, ReadObject<Counter>(state, 1, "counter of FLOPs")->total());
}

// Counter:by_operator() -> lockstep.Flops
// The same by operator.
int CounterByOperator(lua_State* state) {
  return PushFlops(state, *ReadObject<Counter>(state, 1, "counter of FLOPs"));
}

// --- Ranks ---------------------------------------------------------------------------------------

// work_of_ranks() -> seconds: number[]?
// How long each rank worked, by rank, between the newest agreement at the last call and the newest
// one now. Nil where there was none since. Time in which a rank waits for others is not in it.
int WorkOfRanks(lua_State* state) {
  const std::vector<double> seconds = driver::OwnWork::OfThisThread().TakeSeconds();
  if (seconds.empty()) return 0;
  return PushArray(state, seconds, [&](double own) { lua_pushnumber(state, own); });
}

// work_clocks() -> number[]
// Seconds of own work by rank at the newest agreement, each from a beginning of its own: the same
// on every rank. Empty before the first.
int WorkClocks(lua_State* state) {
  return PushArray(state, driver::OwnWork::OfThisThread().Seconds(),
                   [&](double own) { lua_pushnumber(state, own); });
}

// own_seconds() -> seconds: number
// How long this rank has worked, from any beginning. Time in which it waits for other ranks is not
// in it.
int OwnSeconds(lua_State* state) {
  return PushNumber(state, static_cast<double>(driver::OwnWork::OfThisThread().Now()) / 1e9);
}

// --- Roofline ------------------------------------------------------------------------------------

void PushCost(lua_State* state, const driver::OperatorCost& cost) {
  lua_newtable(state);
  SetString(state, "name", cost.name);
  SetString(state, "group", cost.group);
  SetInteger(state, "calls", cost.calls);
  SetInteger(state, "bytes", cost.bytes);
  SetInteger(state, "flops", cost.flops);
  SetNumber(state, "seconds", cost.seconds);
  SetNumber(state, "bound_s", cost.bound_s);
}

Costs NewCosts(at::Device device) {
  return {device, std::make_unique<driver::OperatorCosts>(device)};
}

// operator_costs(device: string) -> Costs
// Measures what operators cost on this thread from here on.
int MeasureCosts(lua_State* state) {
  return PushObject(state, NewCosts(ReadDevice(state, 1, "lockstep.profile: device")));
}

// costs_of(device: string, fn: fun(...): ..., ...: any) -> costs: Costs, ...: any
// Measures what the operators of fn(...) cost. ...: fn's results.
int CostsOf(lua_State* state) {
  const at::Device device = ReadDevice(state, 1, "lockstep.profile: device");
  ReadFunction(state, 2, "lockstep.profile: the second argument");
  Costs costs = NewCosts(device);
  Call(state, lua_gettop(state) - 2, LUA_MULTRET);
  costs.costs->Stop();
  PushObject(state, std::move(costs));
  lua_replace(state, 1);
  return lua_gettop(state);
}

// Costs:stop()
// Ends the measurement.
int StopCosts(lua_State* state) {
  ReadObject<Costs>(state, 1, "costs of operators").costs->Stop();
  return 0;
}

// Costs:report() -> log.CostReport
// Ends the measurement. Measures the machine's peaks, where no call before has.
int ReportCosts(lua_State* state) {
  const Costs& measured = ReadObject<Costs>(state, 1, "costs of operators");
  measured.costs->Stop();
  const driver::Peaks peaks = driver::MeasurePeaks(measured.device, measured.costs->FlopDtypes());
  const std::vector<driver::OperatorCost> operators = measured.costs->ByOperator(peaks);
  lua_newtable(state);
  SetNumber(state, "seconds", measured.costs->seconds());
  SetString(state, "device", measured.device.str());
  SetNumber(state, "bytes_per_s", peaks.bytes_per_s);
  lua_newtable(state);
  for (const auto& [dtype, flops_per_s] : peaks.flops_per_s)
    SetNumber(state, std::string(c10::getDtypeNames(dtype).first).c_str(), flops_per_s);
  lua_setfield(state, -2, "flops_per_s");
  PushArray(state, operators, [&](const driver::OperatorCost& cost) { PushCost(state, cost); });
  lua_setfield(state, -2, "operators");
  return 1;
}

// --- Memory by line ------------------------------------------------------------------------------

// {{place =, bytes =, count =}, ...}
void PushLines(lua_State* state, const std::vector<driver::LineMemory>& lines) {
  PushArray(state, lines, [&](const driver::LineMemory& line) {
    lua_newtable(state);
    SetString(state, "place", line.place);
    SetInteger(state, "bytes", line.bytes);
    SetInteger(state, "count", line.count);
  });
}

// {peak_bytes =, peak =, held_bytes =, held =}
int PushReport(lua_State* state, const driver::MemoryByLine& report) {
  lua_newtable(state);
  SetInteger(state, "peak_bytes", report.peak_bytes);
  PushLines(state, report.peak);
  lua_setfield(state, -2, "peak");
  SetInteger(state, "held_bytes", report.held_bytes);
  PushLines(state, report.held);
  lua_setfield(state, -2, "held");
  return 1;
}

// memory_by_line(device: string, fn: fun(...): ..., ...: any) -> report: lockstep.MemoryByLine,
//     ...: any
// Finds the lines that hold the device's memory in fn(...). ...: fn's results.
int MemoryByLine(lua_State* state) {
  const at::Device device = ReadDevice(state, 1, "lockstep.memory_by_line: device");
  ReadFunction(state, 2, "lockstep.memory_by_line: the argument");
  const driver::MemoryTracker tracker(device.type(), RunningScriptLine);
  Call(state, lua_gettop(state) - 2, LUA_MULTRET);
  PushReport(state, tracker.Report());
  lua_replace(state, 1);
  return lua_gettop(state);
}

// memory_over_time(device: string, fn: fun(...): ..., ...: any) -> points: number[][],
//     peak_bytes: integer, ...: any
// Notes the memory that is held of the device after each allocation and release in fn(...). points:
// {seconds since the start, bytes} each; ...: fn's results.
int MemoryOverTime(lua_State* state) {
  const at::Device device = ReadDevice(state, 1, "log.memory: device");
  ReadFunction(state, 2, "log.memory: a part");
  const driver::MemoryTracker tracker(
      device.type(), [] { return std::string(); }, /*keeps_points=*/true);
  Call(state, lua_gettop(state) - 2, LUA_MULTRET);
  PushArray(state, tracker.Points(), [&](const driver::MemoryPoint& point) {
    lua_createtable(state, 2, 0);
    lua_pushnumber(state, point.seconds);
    lua_rawseti(state, -2, 1);
    PushInteger(state, point.bytes);
    lua_rawseti(state, -2, 2);
  });
  PushInteger(state, tracker.Report().peak_bytes);
  lua_insert(state, 2);
  lua_replace(state, 1);
  return lua_gettop(state);
}

// memory_tracker(device: string) -> Tracker
// Notes which line allocates what on the device from here on.
int NewMemoryTracker(lua_State* state) {
  const at::Device device = ReadDevice(state, 1, "memory_tracker: device");
  return PushObject(state,
                    std::make_unique<driver::MemoryTracker>(device.type(), RunningScriptLine));
}

// Tracker:report() -> lockstep.MemoryByLine
// result: since it was made.
int TrackerReport(lua_State* state) {
  return PushReport(state, ReadObject<Tracker>(state, 1, "memory tracker")->Report());
}

// Tracker:reset_peak()
// Forgets earlier peaks: peak_bytes is that from here on.
int ResetPeak(lua_State* state) {
  ReadObject<Tracker>(state, 1, "memory tracker")->ResetPeak();
  return 0;
}

// --- Traces --------------------------------------------------------------------------------------

// span(name: string, fn: fun(...): ..., ...: any) -> ...: any
// fn(...), as a span of a trace that is under way. ...: fn's results.
int Span(lua_State* state) {
  const std::string name = ReadString(state, 1, "lockstep.span: name");
  ReadFunction(state, 2, "lockstep.span: the second argument");
  at::RecordFunction span(at::RecordScope::USER_SCOPE);
  if (span.isActive()) span.before(name);
  Call(state, lua_gettop(state) - 2, LUA_MULTRET);
  return lua_gettop(state) - 1;
}

driver::TraceOptions ReadTraceOptions(lua_State* state, int index) {
  const OptionTable options(state, index, "lockstep.profile", {"record_shapes", "profile_memory"});
  return {options.Boolean("record_shapes", false), options.Boolean("profile_memory", false)};
}

// traced(path: string, options: {record_shapes: boolean?, profile_memory: boolean?},
//     fn: fun(...): ..., ...: any) -> ...: any
// fn(...), and a trace of it. ...: fn's results.
int Traced(lua_State* state) {
  const std::string path = ReadString(state, 1, "lockstep.profile: path");
  ReadFunction(state, 3, "lockstep.profile: the second argument");
  driver::Trace trace(path, ReadTraceOptions(state, 2));
  Call(state, lua_gettop(state) - 3, LUA_MULTRET);
  trace.Stop();
  return lua_gettop(state) - 2;
}

// trace(path: string, options: {record_shapes: boolean?, profile_memory: boolean?}) -> Trace
// Begins a trace.
int NewTrace(lua_State* state) {
  const std::string path = ReadString(state, 1, "lockstep.profile: path");
  return PushObject(state, std::make_unique<driver::Trace>(path, ReadTraceOptions(state, 2)));
}

// Trace:begin_step(step: integer)
// A step's span, until the next one or the end.
int BeginStep(lua_State* state) {
  ReadObject<TracePointer>(state, 1, "trace")->BeginStep(ReadInteger(state, 2, "trace: step"));
  return 0;
}

// Trace:stop()
// Ends the trace and writes its file.
int StopTrace(lua_State* state) {
  ReadObject<TracePointer>(state, 1, "trace")->Stop();
  return 0;
}

}  // namespace

int OpenWatching(lua_State* state) {
  RegisterObject<driver::EventFile>(state, {{"write", WriteEvent}, {"write_text", WriteText}});
  RegisterObject<Counter>(state, {{"total", CounterTotal}, {"by_operator", CounterByOperator}});
  RegisterObject<Costs>(state, {{"stop", StopCosts}, {"report", ReportCosts}});
  RegisterObject<Tracker>(state, {{"report", TrackerReport}, {"reset_peak", ResetPeak}});
  RegisterObject<TracePointer>(state, {{"begin_step", BeginStep}, {"stop", StopTrace}});
  lua_newtable(state);
  SetFunctions(state, {{"event_file", NewEventFile},
                       {"operator_costs", MeasureCosts},
                       {"costs_of", CostsOf},
                       {"flops", Flops},
                       {"flop_counter", NewFlopCounter},
                       {"memory_by_line", MemoryByLine},
                       {"memory_over_time", MemoryOverTime},
                       {"memory_tracker", NewMemoryTracker},
                       {"own_seconds", OwnSeconds},
                       {"span", Span},
                       {"traced", Traced},
                       {"trace", NewTrace},
                       {"work_clocks", WorkClocks},
                       {"work_of_ranks", WorkOfRanks}});
  return 1;
}

}  // namespace lockstep::lua
