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

}  // namespace

FileJob::FileJob(std::vector<Step> steps) {
  std::packaged_task<absl::Status()> task([steps = std::move(steps)]() mutable {
    absl::Status status = RunSteps(steps);
    steps.clear();  // frees what they hold before the end is known
    return status;
  });
  end_ = task.get_future().share();
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // the new thread inherits it
  std::thread(std::move(task)).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

bool FileJob::is_done() const {
  return end_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

absl::Status FileJob::Wait() const { return end_.get(); }

}  // namespace lockstep::driver
