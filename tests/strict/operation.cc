#include "tests/strict/operation.h"

#include <utility>

#include "ATen/core/ivalue.h"
#include "absl/strings/str_cat.h"
#include "c10/util/Exception.h"

namespace lockstep::tests {
namespace {

std::exception_ptr MakeError(const std::string& text) {
  return std::make_exception_ptr(c10::Error({__func__, __FILE__, __LINE__}, text));
}

bool IsDisagreement(const std::exception_ptr& error) {
  if (error == nullptr) return false;
  try {
    std::rethrow_exception(error);
  } catch (const Disagreement&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

std::string TextOf(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  } catch (const std::exception& e) {
    return e.what();
  }
}

Operation::Operation(int rank, c10d::OpType type, std::vector<at::Tensor> outputs)
    : Work(rank, type),
      outputs_(std::move(outputs)),
      future_(
          c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {
}

const std::shared_ptr<Operation::Failures>& Operation::OfThisThread() {
  thread_local const auto failures = std::make_shared<Failures>();
  return failures;
}

bool Operation::wait(std::chrono::milliseconds timeout) {
  is_heard_ = true;
  return Work::wait(timeout);
}

c10::intrusive_ptr<c10::ivalue::Future> Operation::getFuture() {
  is_heard_ = true;
  return future_;
}

void Operation::CheckUnheard() {
  Failures& failures = *OfThisThread();
  const std::lock_guard lock(failures.mutex);
  for (const auto& [operation, text] : failures.operations) {
    TORCH_CHECK(
        operation->is_heard_,
        "strict: an operation before this one failed, and nobody has waited for it: ", text);
  }
  failures.operations.clear();
}

void Operation::Finish(const std::exception_ptr& error) {
  if (IsDisagreement(error)) {
    const std::lock_guard lock(failures_->mutex);
    failures_->operations.emplace_back(
        c10::intrusive_ptr<Operation>::unsafe_reclaim_from_nonowning(this), TextOf(error));
  }
  finish(error);
  if (error != nullptr) {
    future_->setError(error);
  } else {
    future_->markCompleted(c10::IValue(outputs_));
  }
}

Stream::~Stream() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->is_closing = true;
  }
  state_->changed.notify_all();
  if (!thread_.joinable()) return;
  // A callback of the last operation may have dropped the last reference to the group.
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

void Stream::Enqueue(c10::intrusive_ptr<Operation> operation, std::function<void()> run) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->tasks.push_back({std::move(operation), std::move(run), at::ThreadLocalState()});
  }
  state_->changed.notify_all();
  if (!thread_.joinable()) thread_ = std::thread(&Stream::Run, state_);
}

void Stream::Run(const std::shared_ptr<State>& state) {
  std::string failure;
  while (true) {
    Task task;
    {
      std::unique_lock lock(state->mutex);
      state->changed.wait(lock, [&] { return state->is_closing || !state->tasks.empty(); });
      if (state->tasks.empty()) return;
      task = std::move(state->tasks.front());
      state->tasks.pop_front();
      if (failure.empty() && state->is_closing) failure = "strict: the group was closed";
    }
    std::exception_ptr error;
    if (!failure.empty()) {
      error = MakeError(absl::StrCat("strict: an operation before this one failed: ", failure));
    } else {
      const at::ThreadLocalStateGuard guard(task.issuer);
      try {
        task.run();
      } catch (...) {
        error = std::current_exception();
        failure = TextOf(error);
      }
    }
    task.run = nullptr;
    task.operation->Finish(error);
  }
}

}  // namespace lockstep::tests
