// lockstep.core.graph: recorded steps for lockstep/graph.lua.

#include "driver/lua/tensor/graph.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "ATen/autocast_mode.h"
#include "ATen/core/grad_mode.h"
#include "ATen/record_function.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/torch/weight_copies.h"
#include "c10/core/DefaultDtype.h"
#include "c10/core/InferenceMode.h"
#include "driver/cuda/cuda_graph.h"
#include "driver/graph/recording.h"
#include "driver/graph/tape.h"
#include "driver/lua/tensor/background_copies.h"
#include "driver/lua/tensor/tensor.h"
#include "driver/lua/vm/object.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/vm.h"

namespace lockstep::lua {

using Graph = std::unique_ptr<driver::CudaGraph>;
template <>
inline constexpr const char* kObjectName<Graph> = "CUDA graph";
using Tape = std::unique_ptr<driver::Tape>;
template <>
inline constexpr const char* kObjectName<Tape> = "tape";

namespace {

thread_local bool recording = false;
// The first error of this recording, with the script's line. The script may have caught it.
thread_local std::string refusal;

// Operators that wait for the device, since the shape or the type of what they return lies there.
// The second half reads values without an operator, which a replay would not read again.
constexpr std::array<std::string_view, 20> kWaitingOperators = {
    "aten::nonzero",
    "aten::masked_select",
    "aten::equal",
    "aten::allclose",
    "aten::is_nonzero",
    "aten::bincount",
    "aten::_unique",
    "aten::_unique2",
    "aten::unique_consecutive",
    "aten::unique_dim",
    "aten::unique_dim_consecutive",
    "aten::_linalg_check_errors",
    "aten::tensor_split.tensor_indices_or_sections",
    "aten::_pack_padded_sequence",
    "aten::_pad_packed_sequence",
    "aten::gru.data",
    "aten::lstm.data",
    "aten::rnn_tanh.data",
    "aten::rnn_relu.data",
    "aten::ctc_loss.Tensor"};

bool IsListed(const std::string& name) {
  return std::find(kWaitingOperators.begin(), kWaitingOperators.end(), name) !=
         kWaitingOperators.end();
}

// An entry of the list is an operator with all its overloads, or one overload.
bool IsWaiting(const c10::OperatorName& name) {
  return IsListed(name.name) || IsListed(absl::StrCat(name.name, ".", name.overload_name));
}

// The first of those operators while this lives, however deep: a boolean index calls nonzero.
class WaitingOperator {
 public:
  WaitingOperator() {
    name_.clear();
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(OnStart).scopes({at::RecordScope::FUNCTION}));
  }
  WaitingOperator(const WaitingOperator&) = delete;
  WaitingOperator& operator=(const WaitingOperator&) = delete;
  ~WaitingOperator() { at::removeCallback(handle_); }

  // Throws Error where there was one.
  void Check() const {
    if (name_.empty()) return;
    throw Error(absl::StrCat(
        "lockstep.graph: ", name_, " at ", line_,
        " waits for the device to know the shape or the value of what it returns, or reads values "
        "that a graph would not read again (an index of booleans calls nonzero): use torch.where "
        "or masked_fill, or do it outside"));
  }

 private:
  static std::unique_ptr<at::ObserverContext> OnStart(const at::RecordFunction& function) {
    if (!name_.empty()) return nullptr;
    const std::optional<c10::OperatorName> name = function.operator_name();
    if (!name.has_value() || !IsWaiting(*name)) return nullptr;
    name_ = std::string(absl::StripPrefix(name->name, "aten::"));
    line_ = RunningScriptLine();
    return nullptr;
  }

  static thread_local std::string name_;
  static thread_local std::string line_;
  at::CallbackHandle handle_;
};
thread_local std::string WaitingOperator::name_;
thread_local std::string WaitingOperator::line_;

struct RecordingFlag {
  RecordingFlag() {
    recording = true;
    refusal.clear();
  }
  ~RecordingFlag() { recording = false; }
};

// Throws Error where something was refused, although the function went on.
void CheckNothingWasRefused() {
  if (refusal.empty()) return;
  throw Error(absl::StrCat("lockstep.graph: the function caught an error of its recording, after ",
                           "which it took another way than with values: ", refusal));
}

[[noreturn]] void Refuse(const std::string& message) {
  if (refusal.empty()) refusal = absl::StrCat(RunningScriptLine(), ": ", message);
  throw Error(message);
}

// Graph:record(fn: function, ...: any) -> broken: string?, ...: any
// Records what fn(...) gives the current stream, which must not be the device's default one. The
// recording ends however fn ends. Returns why CUDA could not record it, or nil, and fn's results.
int Record(lua_State* state) {
  driver::CudaGraph& graph = *ReadObject<Graph>(state, 1, "record: graph");
  ReadFunction(state, 2, "record: fn");
  const base::WithoutCopiesFromBefore recorded_copies;
  graph.Begin();
  const WaitingOperator waiting;
  try {
    const RecordingFlag flag;
    Call(state, lua_gettop(state) - 2, LUA_MULTRET);
    waiting.Check();
    CheckNothingWasRefused();
  } catch (...) {
    graph.End();      // it may be broken: what was thrown first says why
    waiting.Check();  // says more than CUDA's own error
    throw;
  }
  const std::string broken = graph.End();
  broken.empty() ? lua_pushnil(state) : lua_pushstring(state, broken.c_str());
  lua_insert(state, 2);
  return lua_gettop(state) - 1;
}

// Graph:replay()
// Launches what was recorded, on the current stream.
int Replay(lua_State* state) {
  ReadObject<Graph>(state, 1, "replay: graph")->Replay();
  base::ForgetAllCopies();  // a replay writes to weights, and their versions stay
  return 0;
}

// refuse(message: string)
// Raises an error that ends the recording under way, even if the script catches it.
int RefuseFromLua(lua_State* state) {
  const std::string message = ReadString(state, 1, "refuse: message");
  if (recording) Refuse(message);
  throw Error(message);
}

// modes() -> modes: string, is_autocast: boolean
// Returns the modes of this thread that change what operators do, as one text without autocast, and
// whether autocast is on for the CPU or a GPU.
int Modes(lua_State* state) {
  PushString(state, absl::StrCat(at::GradMode::is_enabled() ? "gradients" : "no gradients",
                                 c10::InferenceMode::is_enabled() ? ", inference mode" : "", ", ",
                                 c10::toString(c10::get_default_dtype_as_scalartype())));
  lua_pushboolean(state, at::autocast::is_autocast_enabled(at::kCPU) ||
                             at::autocast::is_autocast_enabled(at::kCUDA));
  return 2;
}

// new() -> Graph
// An empty graph. An error where there is no GPU.
int NewGraph(lua_State* state) { return PushObject<Graph>(state, driver::NewCudaGraph()); }

// --- On the CPU

// Tape:record(fn: function, ...: any) -> ...: any
// Calls fn(...), notes the operators that this thread calls on the CPU, and returns the results.
// Once for each tape.
int RecordTape(lua_State* state) {
  driver::Tape& tape = *ReadObject<Tape>(state, 1, "record: tape");
  ReadFunction(state, 2, "record: fn");
  CheckNotRecording("lockstep.graph");
  const WaitingOperator waiting;
  const RecordingFlag flag;
  const base::WithoutCopiesFromBefore recorded_copies;
  driver::Recording under_way(&tape);
  try {
    Call(state, lua_gettop(state) - 2, LUA_MULTRET);
  } catch (...) {
    waiting.Check();  // says more than the recording's own error
    throw;
  }
  waiting.Check();
  CheckNothingWasRefused();
  // Leaves that the function made for itself go away, as far as Lua holds them.
  lua_gc(state, LUA_GCCOLLECT, 0);
  lua_gc(state, LUA_GCCOLLECT, 0);
  PrefixErrors("lockstep.graph", [&] { under_way.Finish(); });
  return lua_gettop(state) - 1;
}

// Tape:replay()
// Runs what was recorded.
int ReplayTape(lua_State* state) {
  CheckNotRecording("lockstep.graph");
  driver::Tape& tape = *ReadObject<Tape>(state, 1, "replay: tape");
  BackgroundCopies::WaitUntilRead();
  PrefixErrors("lockstep.graph", [&] { tape.Replay(); });
  return 0;
}

// Tape:mismatch() -> reason: string?
// Returns why a replay would not do what the function would do, or nil.
int TapeMismatch(lua_State* state) {
  const std::string reason = ReadObject<Tape>(state, 1, "mismatch: tape")->Mismatch();
  if (reason.empty()) return 0;
  return PushString(state, reason);
}

// Tape:stats() -> {operators: integer, in_place: integer, allocating: integer, bytes: integer}
// Returns counts of what was recorded.
int TapeStats(lua_State* state) {
  const driver::Tape::Stats& stats = ReadObject<Tape>(state, 1, "stats: tape")->stats();
  lua_newtable(state);
  SetInteger(state, "operators", stats.operators);
  SetInteger(state, "in_place", stats.in_place);
  SetInteger(state, "allocating", stats.allocating);
  SetInteger(state, "bytes", stats.bytes);
  return 1;
}

// is_recording() -> boolean
// Whether a graph of either kind is being recorded.
int IsRecording(lua_State* state) { return PushBoolean(state, recording); }

// new_tape() -> Tape
// An empty tape.
int NewTape(lua_State* state) { return PushObject<Tape>(state, std::make_unique<driver::Tape>()); }

}  // namespace

void CheckNotRecording(const char* what) {
  if (!recording) return;
  Refuse(absl::StrCat(
      what,
      ": a graph is being recorded, in which no value can be read or waited for; do it outside of "
      "lockstep.graph's function, on what that returns"));
}

bool IsGraphRecording() { return recording; }

int OpenGraph(lua_State* state) {
  RegisterObject<Graph>(state, {{"record", Record}, {"replay", Replay}});
  RegisterObject<Tape>(state, {{"record", RecordTape},
                               {"replay", ReplayTape},
                               {"mismatch", TapeMismatch},
                               {"stats", TapeStats}});
  lua_newtable(state);
  SetFunctions(state, {{"new", NewGraph},
                       {"new_tape", NewTape},
                       {"refuse", RefuseFromLua},
                       {"modes", Modes},
                       {"is_recording", IsRecording}});
  return 1;
}

}  // namespace lockstep::lua
