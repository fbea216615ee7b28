// Threads that call one function each, in Lua states of their own, and results in the order of the
// jobs.
//
//   WorkerPool pool({.num_workers = 2, .module = "lockstep.data.worker"}, WorkerStateOf(state));
//   pool.Submit({.value = value, .source = source});
//   std::optional<WorkerPool::Result> result = pool.Next(30);  // of the oldest job, within 30 s
//
// A lua_State belongs to one thread: nothing of the script's state is seen by a worker. Values
// travel as the bytes of Serialize; tensors and sources are shared, not copied. A worker takes the
// oldest job that waits, whichever worker it is, so that results depend on the number of workers in
// nothing but time. Each worker computes on one core and without autograd; random operators of
// torch and collectives are refused there.
//
// Threads: a worker meets the script's thread in the queue alone. The caller bounds how many jobs
// are ahead of their results. Submit, Next and the destructor are called by the script's thread;
// the destructor waits for the jobs under way, and no longer.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_DATA_WORKER_POOL_H_
#define LOCKSTEP_DRIVER_LUA_BIND_DATA_WORKER_POOL_H_

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "driver/data/ordered_queue.h"
#include "driver/data/source.h"
#include "driver/lua/bind/context.h"
#include "driver/lua/vm/vm.h"
#include "lua.hpp"

namespace lockstep::lua {

// A Lua value on its way between states.
struct Travelling {
  std::string bytes;  // as Serialize writes it
  std::vector<at::Tensor> tensors;
};

// The parts that the states of workers are made of. Read from the script's state by its own thread.
struct WorkerState {
  LuaVm::Options vm;
  std::string package_path;                                    // where the script finds its modules
  std::vector<std::pair<std::string, lua_CFunction>> modules;  // package.preload
  driver::Context context;                                     // without groups: see ReadGroup
};
WorkerState WorkerStateOf(lua_State* state);

class WorkerPool {
 public:
  struct Options {
    int num_workers = 1;
    std::string module;  // returns function(start), which returns function(value, source)
    Travelling start;
  };
  struct Job {
    Travelling value;
    std::shared_ptr<const data::Source> source;  // may be nullptr
  };
  struct Result {
    bool ok = false;
    Travelling value;     // where ok
    std::string message;  // where not
  };

  WorkerPool(Options options, WorkerState state);
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;
  ~WorkerPool();

  void Submit(Job job);

  // Waits for the result of the oldest job that has none yet. Returns nothing after `timeout_s`; it
  // may be called again. Throws Error, which names the worker, if one could not start or has ended.
  // Throws Error if no job was submitted.
  std::optional<Result> Next(double timeout_s);

 private:
  using Queue = data::OrderedQueue<Job, Result>;

  void Run(int worker);
  void Work(int worker, lua_State* state);

  const Options options_;
  const WorkerState state_;
  Queue queue_;

  std::mutex begin_mutex_;
  std::condition_variable has_begun_;
  int num_begun_ = 0;  // guarded by begin_mutex_

  std::vector<std::thread> threads_;
};

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_DATA_WORKER_POOL_H_
