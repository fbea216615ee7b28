// Work on files that a thread does while the caller goes on: step by step, up to the first error.
//
//    FileJob job({[=] { return Write(tensors, "runs/a/model.safetensors"); },
//                 [] { return SyncFolder("runs/a"); }});
//    Train();
//    absl::Status status = job.Wait();
//
// Each job has a thread of its own, with its signals blocked. The job goes on if the object is
// destroyed first; it ends with the process. What the steps use must live as long.
//
// Thread: one caller.

#ifndef LOCKSTEP_DRIVER_FILES_FILE_JOB_H_
#define LOCKSTEP_DRIVER_FILES_FILE_JOB_H_

#include <functional>
#include <future>
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

 private:
  std::shared_future<absl::Status> end_;
};

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_FILES_FILE_JOB_H_
