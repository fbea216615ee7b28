#include "driver/files/file_job.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <chrono>
#include <exception>
#include <memory>
#include <thread>
#include <utility>

namespace lockstep::driver {
namespace {

using Clock = std::chrono::steady_clock;

// In the thread of a job: whether somebody waits for it, when it began, and the time that it has
// given to other threads.
thread_local const std::atomic<bool>* is_this_waited_for = nullptr;
thread_local Clock::time_point begun;
thread_local Clock::duration given_away{0};

absl::Status RunSteps(const std::vector<FileJob::Step>& steps) {
  try {
    for (const FileJob::Step& step : steps) {
      absl::Status status = step();
      if (!status.ok()) return status;
    }
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  }
  return absl::OkStatus();
}

// Blocks the signals of this thread, and of those that it makes, while it lives.
class AllSignalsBlocked {
 public:
  AllSignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  AllSignalsBlocked(const AllSignalsBlocked&) = delete;
  AllSignalsBlocked& operator=(const AllSignalsBlocked&) = delete;
  ~AllSignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace

FileJob::FileJob(std::vector<Step> steps) {
  auto work = [steps = std::move(steps), is_waited_for = is_waited_for_]() mutable {
    is_this_waited_for = is_waited_for.get();
    begun = Clock::now();
    absl::Status status = RunSteps(steps);
    steps.clear();  // frees what they hold before the end is known
    return status;
  };
  std::packaged_task<absl::Status()> task(std::move(work));
  end_ = task.get_future().share();
  const AllSignalsBlocked inherited;
  std::thread(std::move(task)).detach();
}

bool FileJob::is_done() const {
  return end_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

// A job that waits for another one is not in a hurry itself, until somebody waits for it.
absl::Status FileJob::Wait() const {
  constexpr auto kWhile = std::chrono::milliseconds(10);
  while (is_this_waited_for != nullptr && !*is_this_waited_for) {
    if (end_.wait_for(kWhile) == std::future_status::ready) return end_.get();
  }
  *is_waited_for_ = true;
  return end_.get();
}

// Where other programs take all cores, each turn that is given away may cost many milliseconds. At
// most half of the job's time goes there.
bool FileJob::GiveWay() {
  if (is_this_waited_for == nullptr || *is_this_waited_for) return false;
  const auto now = Clock::now();
  if (2 * given_away > now - begun) return true;
  sched_yield();
  given_away += Clock::now() - now;
  return true;
}

}  // namespace lockstep::driver
