// Copies of tensors that a thread makes while the script goes on, and sums of their bits.
//
//    BackgroundCopies copies({{.from = weight, .to = buffer, .is_summed = true}});
//    loss.backward();
//    optimizer.step();  // waits, before it writes, until the tensors are read
//    copies.Wait();
//
// An operator waits until all tensors are read if its schema says that it writes to the memory of
// one of them. So do c10d's collectives in place and norms with running means, whose schemas do not
// say so. This holds for operators that this thread calls, however deep, and for those of threads
// that work for it. Code that writes past the dispatcher must call WaitUntilRead.
//
// Source: the copies between an update and the next one are those of DataStates-LLM
// (arXiv:2406.10707).
//
// One object at a time is waited for: a new one first releases the one before.
//
// Thread: the one that made the object, and its destructor, too. Wait, job and sums: any.

#ifndef LOCKSTEP_DRIVER_LUA_TENSOR_BACKGROUND_COPIES_H_
#define LOCKSTEP_DRIVER_LUA_TENSOR_BACKGROUND_COPIES_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/record_function.h"
#include "absl/status/status.h"
#include "driver/files/file_job.h"

namespace lockstep::lua {

class BackgroundCopies {
 public:
  // A tensor of the CPU.
  struct One {
    at::Tensor from;
    at::Tensor to;           // like `from`; undefined: it is only summed
    bool is_summed = false;  // see SumOfBits
  };

  // Starts to copy. Throws std::system_error if there is no thread to be had.
  explicit BackgroundCopies(std::vector<One> tensors);
  BackgroundCopies(const BackgroundCopies&) = delete;
  BackgroundCopies& operator=(const BackgroundCopies&) = delete;
  // Waits until the tensors are read.
  ~BackgroundCopies();

  // Returns whether the tensors are read, so that anything may write to them.
  bool is_read() const;

  // Waits until the tensors of the object that operators wait for are read, if there is one: for
  // what writes without the dispatcher, as the replay of a graph does.
  static void WaitUntilRead();

  // Waits until the tensors are read, and lets operators run as before. Returns the seconds that
  // operators and this call have waited.
  double Release();

  // Waits for the end. Returns the error of a copy that failed.
  absl::Status Wait() const;

  // The work of the thread, for another thread to wait for: it must not own this object, whose
  // destructor belongs to the thread that made it.
  driver::FileJob job() const;

  // The sums of the tensors with is_summed, in order. Call Wait first.
  const std::vector<int64_t>& sums() const;

 private:
  struct State;

  static std::unique_ptr<at::ObserverContext> BeforeOperator(const at::RecordFunction& function);
  static void ReleaseWatched();

  static std::atomic<std::shared_ptr<State>> watched;
  std::shared_ptr<State> state_;
  std::unique_ptr<driver::FileJob> job_;
};

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_TENSOR_BACKGROUND_COPIES_H_
