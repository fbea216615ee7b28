// Work on files that a thread does while the caller goes on: step by step, up to the first error.
//
//    FileJob job({[=] { return Write(tensors, "runs/a/model.safetensors"); },
//                 [] { return SyncFolder("runs/a"); }});
//    Train();
//    absl::Status status = job.Wait();
//
// Each job has a thread of its own, with its signals blocked. The job goes on if the object is
// destroyed first; it ends with the process. The memory that the steps use must live as long.
//
// The threads that train wake up often, for a moment, and on a machine without a free core each
// time waits until the job's turn is over, some milliseconds. So a long step calls GiveWay.
//
// Thread: one caller. GiveWay: any.

#ifndef LOCKSTEP_DRIVER_FILES_FILE_JOB_H_
#define LOCKSTEP_DRIVER_FILES_FILE_JOB_H_

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <vector>

#include "absl/status/status.h"

namespace lockstep::driver {

class FileJob {
 public:
  using Step = std::function<absl::Status()>;

  // Throws std::system_error if there is no thread to be had.
  explicit FileJob(std::vector<Step> steps);

  // Returns whether Wait would return at once.
  bool is_done() const;

  // Waits for the end. Returns the error of the step that failed; the steps after it were left out.
  // An exception of a step is an Internal error with its text.
  absl::Status Wait() const;

  // Lets other threads run first, if this is the thread of a job that nobody waits for. Returns
  // whether it is. A step calls it every 0.1 ms or so.
  static bool GiveWay();

 private:
  std::shared_future<absl::Status> end_;
  std::shared_ptr<std::atomic<bool>> is_waited_for_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_FILES_FILE_JOB_H_
