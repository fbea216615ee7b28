// Hands jobs to threads, and their results back in the order of the jobs.
//
//   OrderedQueue<Job, Result> queue;
//   queue.Submit(job);                                   // the owner
//   while (auto taken = queue.Take()) queue.Put(taken->number, Work(taken->job));   // each thread
//   absl::StatusOr<Result> result = queue.Next(30);      // the owner: of the oldest job
//   queue.Close();                                       // the owner: ends every Take
//
// Threads take the oldest waiting job. A finished result is held back until the results of all
// earlier jobs have been returned, so the order never depends on the threads' speed. The queue is
// unbounded: the owner limits how many jobs it submits before it takes their results.
// Thread-safe: one mutex guards everything. While it is held, jobs and results are only moved.

#ifndef LOCKSTEP_DRIVER_DATA_ORDERED_QUEUE_H_
#define LOCKSTEP_DRIVER_DATA_ORDERED_QUEUE_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lockstep::data {

template <typename Job, typename Result>
class OrderedQueue {
 public:
  struct Taken {
    int64_t number = 0;
    Job job;
  };

  void Submit(Job job) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      jobs_.push_back({submitted_++, std::move(job)});
    }
    has_job_.notify_one();
  }

  // Waits for a job. Returns nothing once the queue is closed.
  std::optional<Taken> Take() {
    std::unique_lock<std::mutex> lock(mutex_);
    has_job_.wait(lock, [this] { return is_closed_ || !jobs_.empty(); });
    if (is_closed_) return std::nullopt;
    Taken taken = std::move(jobs_.front());
    jobs_.pop_front();
    return taken;
  }

  void Put(int64_t number, Result result) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      results_.emplace(number, std::move(result));
    }
    has_result_.notify_all();
  }

  // Says that a thread has ended, and why: its job's result will not come. The first reason stays.
  void Fail(const std::string& reason) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (failure_.empty()) failure_ = reason;
    }
    has_result_.notify_all();
  }

  // Waits for the result of the oldest job that has not had its turn. Returns Aborted, with the
  // reason, if it has not come and a thread has ended. Returns DeadlineExceeded after `timeout_s`:
  // Next may be called again. Returns FailedPrecondition if no job is left.
  absl::StatusOr<Result> Next(double timeout_s) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (next_ == submitted_) return absl::FailedPreconditionError("no job was submitted");
    const bool has_come =
        has_result_.wait_for(lock, std::chrono::duration<double>(timeout_s),
                             [this] { return results_.count(next_) > 0 || !failure_.empty(); });
    if (!has_come) return absl::DeadlineExceededError("the oldest job has no result yet");
    const auto found = results_.find(next_);
    if (found == results_.end()) return absl::AbortedError(failure_);
    Result result = std::move(found->second);
    results_.erase(found);
    ++next_;
    return result;
  }

  // Jobs that nobody has taken are dropped.
  void Close() {
    std::deque<Taken> dropped;  // destroyed without the mutex
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_closed_ = true;
      dropped.swap(jobs_);
    }
    has_job_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable has_job_;     // or is_closed_
  std::condition_variable has_result_;  // or failure_
  // Guarded by mutex_:
  std::deque<Taken> jobs_;
  std::map<int64_t, Result> results_;
  int64_t submitted_ = 0;
  int64_t next_ = 0;
  std::string failure_;
  bool is_closed_ = false;
};

}  // namespace lockstep::data

#endif  // LOCKSTEP_DRIVER_DATA_ORDERED_QUEUE_H_
