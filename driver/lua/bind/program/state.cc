// lockstep.core.state: functions for run:save() that do not concern files.

#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <atomic>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ops/empty.h"
#include "ATen/ops/scalar_tensor.h"
#include "absl/strings/str_cat.h"
#include "driver/lua/bind/context.h"
#include "driver/lua/bind/open.h"
#include "driver/lua/bind/program/copies.h"
#include "driver/lua/bind/program/serialize.h"
#include "driver/lua/tensor/bits.h"
#include "driver/lua/tensor/tensor.h"
#include "driver/lua/vm/math_random.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/vm.h"
#include "driver/ranks/failure.h"

namespace lockstep::lua {
namespace {

// --- Values --------------------------------------------------------------------------------------

// encode(value: any, caller: string) -> bytes: string, tensors: torch.Tensor[]
// Plain Lua values as bytes, the same for the same content, and the tensors among them. value: nil,
// booleans, numbers, strings, tensors and tables of them; caller: what errors begin with.
int Encode(lua_State* state) {
  std::vector<at::Tensor> tensors;
  PushString(state, Serialize(state, 1, ReadString(state, 2, "encode: caller"), &tensors));
  PushTensors(state, tensors);
  return 2;
}

// decode(bytes: string, tensors: torch.Tensor[], caller: string) -> any
// caller: what errors begin with.
int Decode(lua_State* state) {
  return PushSerialized(state, ReadString(state, 1, "decode: bytes"),
                        ReadString(state, 3, "decode: caller"),
                        ReadTensors(state, 2, "decode: tensors"));
}

// bytes_to_tensor(bytes: string) -> torch.Tensor
// result: uint8 {n}.
int BytesToTensor(lua_State* state) {
  const std::string bytes = ReadString(state, 1, "bytes_to_tensor: bytes");
  at::Tensor tensor = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
  std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return PushTensor(state, std::move(tensor));
}

// tensor_to_bytes(tensor: torch.Tensor) -> string
int TensorToBytes(lua_State* state) {
  const at::Tensor dense = ReadTensor(state, 1, "tensor_to_bytes: tensor").cpu().contiguous();
  lua_pushlstring(state, static_cast<const char*>(dense.const_data_ptr()), dense.nbytes());
  return 1;
}

// sum_of_bits(tensor: torch.Tensor) -> torch.Tensor
// A sum of the bits of a contiguous tensor of the CPU, which differs for different values: see
// bits.h. result: int64 {}.
int SumOfBitsOf(lua_State* state) {
  return PushTensor(
      state, at::scalar_tensor(SumOfBits(ReadTensor(state, 1, "sum_of_bits: tensor")), at::kLong));
}

// --- math.random ---------------------------------------------------------------------------------

// math_random_state() -> string?
// The state of math.random's generator; nil if it is not LuaJIT's own.
int GetMathRandomState(lua_State* state) {
  const void* random = PushMathRandomState(state);
  if (random == nullptr) return 0;
  lua_pushlstring(state, static_cast<const char*>(random), kMathRandomBytes);
  return 1;
}

// set_math_random_state(bytes: string)
int SetMathRandomState(lua_State* state) {
  const std::string bytes = ReadString(state, 1, "set_math_random_state: bytes");
  void* random = PushMathRandomState(state);
  if (random == nullptr || bytes.size() != kMathRandomBytes) {
    throw Error(absl::StrCat("math.random cannot take up a state of ", bytes.size(),
                             " bytes: it is not LuaJIT's own function, or the state is not"));
  }
  std::memcpy(random, bytes.data(), bytes.size());
  return 0;
}

// --- The loop of run:steps -----------------------------------------------------------------------

// Registry keys.
constexpr char kLoop[] = "lockstep.loop";               // {iterator}, weak
constexpr char kLoopThread[] = "lockstep.loop_thread";  // the coroutine that runs it

// The loop's frame; nullptr without a loop, or if it is not written as `for ... in iterator`.
lua_State* loop_thread = nullptr;

// Whether the loop's body has not been left. A break leaves no trace but this: the loop's hidden
// variable is gone. Any coroutine may ask: the body may have resumed it. A coroutine that is
// suspended within the body may go on there; one that has ended, by an error too, may not. A
// coroutine that runs has not ended. Its status is an error's while a message handler runs, and a
// pcall within the body may catch that error: the recomputation of a region does.
bool IsInLoop(lua_State* state) {
  if (loop_thread == nullptr) return false;
  if (loop_thread != state && lua_status(loop_thread) > LUA_YIELD) return false;
  lua_getfield(state, LUA_REGISTRYINDEX, kLoop);
  lua_rawgeti(state, -1, 1);
  const void* const iterator = lua_topointer(state, -1);
  lua_pop(state, 2);
  if (iterator == nullptr) return false;
  bool is_found = false;
  lua_Debug frame;
  for (int level = 0; !is_found && lua_getstack(loop_thread, level, &frame) != 0; ++level) {
    const char* name = nullptr;
    for (int i = 1; !is_found && (name = lua_getlocal(loop_thread, &frame, i)) != nullptr; ++i) {
      is_found =
          std::strcmp(name, "(for generator)") == 0 && lua_topointer(loop_thread, -1) == iterator;
      lua_pop(loop_thread, 1);
    }
  }
  return is_found;
}

// begin_loop(iterator: function)
// Called by the iterator of run:steps as its loop begins.
int BeginLoop(lua_State* state) {
  ReadFunction(state, 1, "begin_loop: iterator");
  lua_createtable(state, 1, 0);
  lua_pushvalue(state, 1);
  lua_rawseti(state, -2, 1);
  MakeWeak(state, "v");
  lua_setfield(state, LUA_REGISTRYINDEX, kLoop);
  lua_pushthread(state);
  lua_setfield(state, LUA_REGISTRYINDEX, kLoopThread);
  loop_thread = state;
  if (!IsInLoop(state)) loop_thread = nullptr;
  return 0;
}

// end_loop()
// Called by it as the loop ends. One that is left by a break or an error does not come here.
int EndLoop(lua_State* /*state*/) {
  loop_thread = nullptr;
  return 0;
}

// in_loop() -> boolean
// Whether the loop that began last goes on, in this coroutine or another, one that is suspended
// too: false where it was left, and where it is not written as `for ... in iterator`.
int InLoop(lua_State* state) { return PushBoolean(state, IsInLoop(state)); }

// --- SIGTERM -------------------------------------------------------------------------------------

std::atomic<bool> sigterm_came{false};  // written by the handler, on any thread
static_assert(std::atomic<bool>::is_always_lock_free);
pthread_t script_thread;

// Runs at each line and call after SIGTERM has come. If the loop that would handle the signal was
// left by a break or an error, the signal takes its default effect.
void EndOutsideOfTheLoop(lua_State* state, lua_Debug* /*event*/) {
  if (loop_thread == nullptr || IsInLoop(state)) return;
  signal(SIGTERM, SIG_DFL);
  raise(SIGTERM);
}

// Whether a SIGTERM came a second ago or earlier: a cluster may send one to each process of the
// run, and our launcher pass on its own. On one thread; allowed in a handler.
bool IsAskedAgain() {
  static timespec first{};
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (first.tv_sec == 0) first = now;
  return now.tv_sec - first.tv_sec > (now.tv_nsec < first.tv_nsec ? 1 : 0);
}

// lua_sethook is what may be called in a handler, on the thread that runs Lua.
void NoteSigterm(int number) {
  sigterm_came = true;
  if (pthread_equal(pthread_self(), script_thread) == 0) {
    pthread_kill(script_thread, number);
    return;
  }
  const bool is_again = IsAskedAgain();
  if (loop_thread == nullptr) return;
  lua_sethook(loop_thread, EndOutsideOfTheLoop, LUA_MASKCALL | LUA_MASKLINE, 0);
  // The coroutine that is inside the loop may never be resumed.
  if (is_again && lua_status(loop_thread) == LUA_YIELD) {
    signal(SIGTERM, SIG_DFL);
    raise(SIGTERM);
  }
}

// catch_sigterm(on: boolean)
// From now on a SIGTERM is only noted, or ends the process again: one that was noted, too.
int CatchSigterm(lua_State* state) {
  const bool on = ReadBoolean(state, 1, "catch_sigterm: on");
  static bool ends_with_script = false;
  if (!ends_with_script) {
    driver::GetContext(state).at_end.emplace_back([] {
      loop_thread = nullptr;
      signal(SIGTERM, SIG_DFL);
    });
    ends_with_script = true;
  }
  script_thread = pthread_self();
  struct sigaction action {};
  action.sa_handler = on ? NoteSigterm : SIG_DFL;
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
  if (!on && sigterm_came) raise(SIGTERM);
  return 0;
}

// sigterm_came() -> boolean
int SigtermCame(lua_State* state) { return PushBoolean(state, sigterm_came); }

// announce_saving()
// Tells the launcher to pass a SIGTERM on, and to wait.
int AnnounceSaving(lua_State* state) {
  const driver::World& world = driver::GetContext(state).world;
  if (world.store != nullptr) driver::AnnounceSaving(*world.store);
  return 0;
}

// end_together(exit_code: integer, reason: string)
// Ends the process, as every rank does. Collective.
int EndTogether(lua_State* state) {
  const auto code = static_cast<int>(ReadInteger(state, 1, "end_together: exit_code"));
  driver::GetContext(state).end_together(code, ReadString(state, 2, "end_together: reason"));
  return 0;
}

}  // namespace

int OpenState(lua_State* state) {
  RegisterCopies(state);
  lua_newtable(state);
  SetFunctions(state, {{"encode", Encode},
                       {"decode", Decode},
                       {"bytes_to_tensor", BytesToTensor},
                       {"tensor_to_bytes", TensorToBytes},
                       {"sum_of_bits", SumOfBitsOf},
                       {"background_copies", StartCopies},
                       {"math_random_state", GetMathRandomState},
                       {"set_math_random_state", SetMathRandomState},
                       {"begin_loop", BeginLoop},
                       {"end_loop", EndLoop},
                       {"in_loop", InLoop},
                       {"catch_sigterm", CatchSigterm},
                       {"sigterm_came", SigtermCame},
                       {"announce_saving", AnnounceSaving},
                       {"end_together", EndTogether}});
  return 1;
}

}  // namespace lockstep::lua
