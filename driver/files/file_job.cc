#include "driver/files/file_job.h"

#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <exception>
#include <thread>
#include <utility>

namespace lockstep::driver {
namespace {

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
  std::packaged_task<absl::Status()> task([steps = std::move(steps)]() mutable {
    absl::Status status = RunSteps(steps);
    steps.clear();  // frees what they hold before the end is known
    return status;
  });
  end_ = task.get_future().share();
  const AllSignalsBlocked inherited;
  std::thread(std::move(task)).detach();
}

bool FileJob::is_done() const {
  return end_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

absl::Status FileJob::Wait() const { return end_.get(); }

}  // namespace lockstep::driver
