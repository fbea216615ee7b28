// A thread that runs the operations of a communicator one by one, and the Work objects that callers
// wait for. See strict_backend.h.

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

// Returns an exception's message without c10's stack frames.
std::string TextOf(const std::exception_ptr& error);

// Thrown if two ranks disagree about an operation.
class Disagreement : public c10::Error {
  using Error::Error;
};

class Operation : public c10d::Work {
 public:
  Operation(int rank, c10d::OpType type, std::vector<at::Tensor> outputs);

  bool wait(std::chrono::milliseconds timeout) override;
  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

  // Throws if an operation of this thread has failed by a disagreement and no caller has waited for
  // it. With NCCL that operation would still hang, or would have written to wrong memory.
  static void CheckUnheard();

  // Ends the operation, with `error` unless that is null. Call it once.
  void Finish(const std::exception_ptr& error);

 private:
  // The failed operations of one thread.
  struct Failures {
    std::mutex mutex;
    std::vector<std::pair<c10::intrusive_ptr<Operation>, std::string>>
        operations;  // with the reason
  };
  static const std::shared_ptr<Failures>& OfThisThread();

  const std::vector<at::Tensor> outputs_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  const std::shared_ptr<Failures> failures_ = OfThisThread();  // of the issuing thread
  std::atomic<bool> is_heard_ = false;                         // a caller waits for it
};

// Runs operations in order. After one has failed all later ones fail, because it is unknown which
// operations the ranks would pair. Thread-safe.
class Stream {
 public:
  Stream() = default;
  ~Stream();  // waits for the running operation; queued operations fail. The running one must end
              // soon.

  void Enqueue(c10::intrusive_ptr<Operation> operation, std::function<void()> run);

 private:
  struct Task {
    c10::intrusive_ptr<Operation> operation;
    std::function<void()> run;
    at::ThreadLocalState issuer;  // so that a profiler of the issuing thread sees the operation
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
