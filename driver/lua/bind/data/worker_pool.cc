#include "driver/lua/bind/data/worker_pool.h"

#include <pthread.h>
#include <signal.h>

#include <exception>
#include <optional>
#include <system_error>
#include <utility>

#include "ATen/Parallel.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "c10/core/AutogradState.h"
#include "c10/core/GradMode.h"
#include "driver/lua/bind/data/source.h"
#include "driver/lua/bind/program/serialize.h"
#include "driver/lua/operators/operators.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/status.h"

namespace lockstep::lua {
namespace {

// os.exit would end the run from a thread that no other rank hears of.
int RefuseExit(lua_State* /*state*/) {
  throw Error("os.exit ends the run, and cannot be called by a worker of data.loader");
}

// Signals are for the script's thread, whose handlers expect its Lua state.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

Travelling Pack(lua_State* state, int index) {
  Travelling value;
  value.bytes = Serialize(state, index, "the result of the map", &value.tensors);
  for (const at::Tensor& tensor : value.tensors) {
    if (!tensor.requires_grad()) continue;
    throw Error("the result of the map holds a tensor that requires a gradient; detach() it");
  }
  return value;
}

}  // namespace

WorkerState WorkerStateOf(lua_State* state) {
  WorkerState worker;
  worker.vm = OptionsOf(state);
  lua_getglobal(state, "package");
  lua_getfield(state, -1, "path");
  worker.package_path = ReadString(state, -1, "package.path");
  lua_pop(state, 2);
  lua_getfield(state, LUA_REGISTRYINDEX, "_PRELOAD");
  for (lua_pushnil(state); lua_next(state, -2) != 0; lua_pop(state, 1)) {
    if (lua_type(state, -2) == LUA_TSTRING && lua_iscfunction(state, -1))
      worker.modules.emplace_back(lua_tostring(state, -2), lua_tocfunction(state, -1));
  }
  lua_pop(state, 1);
  const driver::Context& context = driver::GetContext(state);
  worker.context.command_line = context.command_line;
  worker.context.timeout = context.timeout;
  worker.context.run_dir = context.run_dir;
  worker.context.world.environment = context.world.environment;
  worker.context.world.device = context.world.device;
  worker.context.world.backend = context.world.backend;
  return worker;
}

WorkerPool::WorkerPool(Options options, WorkerState state)
    : options_(std::move(options)), state_(std::move(state)) {
  const int num_threads = at::get_num_threads();
  try {
    const SignalsBlocked blocked;
    for (int i = 0; i < options_.num_workers; ++i) threads_.emplace_back([this, i] { Run(i); });
  } catch (const std::system_error& error) {
    queue_.Close();
    for (std::thread& thread : threads_) thread.join();
    throw Error(absl::StrCat("data.loader: cannot start worker ", threads_.size() + 1, " of ",
                             options_.num_workers, ": ", error.what()));
  }
  // A worker sets the number of threads that ATen's operators use, for itself and for threads that
  // begin later. The latter is set back.
  std::unique_lock<std::mutex> lock(begin_mutex_);
  has_begun_.wait(lock, [this] { return num_begun_ == options_.num_workers; });
  at::set_num_threads(num_threads);
}

WorkerPool::~WorkerPool() {
  queue_.Close();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::Submit(Job job) { queue_.Submit(std::move(job)); }

std::optional<WorkerPool::Result> WorkerPool::Next(double timeout_s) {
  absl::StatusOr<Result> result = queue_.Next(timeout_s);
  if (absl::IsDeadlineExceeded(result.status())) return std::nullopt;
  return ValueOrThrow(std::move(result), "data.loader: ");
}

// A thread's life. Its state is made and closed here: it belongs to this thread.
void WorkerPool::Run(int worker) {
  const std::string name = absl::StrCat("worker ", worker + 1, " of ", options_.num_workers);
  pthread_setname_np(pthread_self(), absl::StrCat("data ", worker + 1).c_str());
  at::set_num_threads(1);
  {
    const std::lock_guard<std::mutex> lock(begin_mutex_);
    ++num_begun_;
  }
  has_begun_.notify_one();
  try {
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
    c10::GradMode::set_enabled(false);
    driver::Context context = state_.context;
    LuaVm vm(state_.vm);
    driver::SetContext(vm.state(), context);
    for (const auto& [module, open] : state_.modules) vm.Preload(module.c_str(), open);
    lua_getglobal(vm.state(), "package");
    PushString(vm.state(), state_.package_path);
    lua_setfield(vm.state(), -2, "path");
    lua_getglobal(vm.state(), "os");
    lua_pushcfunction(vm.state(), RefuseExit);
    lua_setfield(vm.state(), -2, "exit");
    lua_pop(vm.state(), 2);
    if (const auto error = vm.RunString("lockstep = require 'lockstep'", "=lockstep"))
      throw Error(error->message);
    Work(worker, vm.state());
  } catch (const std::exception& error) {
    queue_.Fail(absl::StrCat(name, " has ended: ", error.what()));
  }
}

void WorkerPool::Work(int worker, lua_State* state) {
  const RandomRefused refused("a map of data.loader");
  RegisterSource(state);
  lua_getglobal(state, "require");
  PushString(state, options_.module);
  Call(state, 1, 1);
  PushSerialized(state, options_.start.bytes, options_.module, options_.start.tensors);
  lua_pushinteger(state, worker + 1);
  Call(state, 2, 1);
  const int function = lua_gettop(state);
  while (std::optional<Queue::Taken> taken = queue_.Take()) {
    const Job& job = taken->job;
    Result result;
    try {
      lua_pushvalue(state, function);
      PushSerialized(state, job.value.bytes, options_.module, job.value.tensors);
      if (job.source != nullptr) {
        PushSource(state, job.source);
      } else {
        lua_pushnil(state);
      }
      Call(state, 2, 1);
      result.value = Pack(state, lua_gettop(state));
      result.ok = true;
    } catch (const PendingError& error) {
      result.message = error.what();
    } catch (const Error& error) {
      result.message = error.what();
    }
    lua_settop(state, function);
    queue_.Put(taken->number, std::move(result));
  }
}

}  // namespace lockstep::lua
