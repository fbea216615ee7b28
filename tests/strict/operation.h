// A thread that runs the operations of a communicator one by one, and what a caller waits for.
// See strict_backend.h.

#ifndef LOCKSTEP_TESTS_STRICT_OPERATION_H_
#define LOCKSTEP_TESTS_STRICT_OPERATION_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ATen/ThreadLocalState.h"
#include "c10/util/Exception.h"
#include "c10/util/intrusive_ptr.h"
#include "torch/csrc/distributed/c10d/Work.hpp"

namespace lockstep::tests {

// Says what an exception says, without c10's frames.
std::string TextOf(const std::exception_ptr& error);

// Two ranks disagree about an operation.
class Disagreement : public c10::Error {
  using Error::Error;
};

class Operation : public c10d::Work {
 public:
  Operation(int rank, c10d::OpType type, std::vector<at::Tensor> outputs);

  bool wait(std::chrono::milliseconds timeout) override;
  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

  // Throws where an operation that this thread issued has failed by a disagreement, and nobody has
  // waited for it: with NCCL it would still hang, or have written where it should not.
  static void CheckUnheard();

  // Ends it, with `error` where that is not null. Called once.
  void Finish(const std::exception_ptr& error);

 private:
  // What failed on behalf of one thread.
  struct Failures {
    std::mutex mutex;
    std::vector<std::pair<c10::intrusive_ptr<Operation>, std::string>> operations;  // and why
  };
  static const std::shared_ptr<Failures>& OfThisThread();

  const std::vector<at::Tensor> outputs_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  const std::shared_ptr<Failures> failures_ = OfThisThread();  // of the thread that issues it
  std::atomic<bool> is_heard_ = false;                         // somebody waits for it
};

// After one operation has failed all later ones fail: what the ranks would pair is not known any
// more. Thread-safe.
class Stream {
 public:
  Stream() = default;
  ~Stream();  // the operation that runs must be about to end; those that wait fail

  void Enqueue(c10::intrusive_ptr<Operation> operation, std::function<void()> run);

 private:
  struct Task {
    c10::intrusive_ptr<Operation> operation;
    std::function<void()> run;
    at::ThreadLocalState issuer;  // a profiler of the issuing thread sees what runs
  };
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Task> tasks;
    bool is_closing = false;
  };
  static void Run(const std::shared_ptr<State>& state);

  std::shared_ptr<State> state_ = std::make_shared<State>();
  std::thread thread_;  // begins with the first operation
};

}  // namespace lockstep::tests

#endif  // LOCKSTEP_TESTS_STRICT_OPERATION_H_
