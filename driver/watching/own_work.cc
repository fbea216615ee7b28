#include "driver/watching/own_work.h"

#include <atomic>
#include <chrono>
#include <string>
#include <utility>

#include "base/raw_bytes.h"
#include "c10/util/ScopeExit.h"
#include "torch/csrc/autograd/engine.h"
#include "torch/csrc/autograd/graph_task.h"

namespace lockstep::driver {
namespace {

int64_t SteadyNanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// --- Gatherings ----------------------------------------------------------------------------------

// Puts the clock behind each message, and takes it off again.
class WorkCollective : public sharding::Collective {
 public:
  WorkCollective(std::unique_ptr<sharding::Collective> collective, bool carries)
      : collective_(std::move(collective)), carries_(carries) {}

  int rank() const override { return collective_->rank(); }
  int size() const override { return collective_->size(); }
  int WorldRank(int position) const override { return collective_->WorldRank(position); }

  std::unique_ptr<Pending> StartAllGather(const std::string& bytes) override {
    if (!carries_) return std::make_unique<Gathering>(*this, collective_->StartAllGather(bytes));
    OwnWork& work = OwnWork::OfThisThread();
    work.EndAllWaits();
    const int64_t clock = work.Now();
    std::string message = bytes;
    message += base::BytesOf(clock);
    return std::make_unique<Gathering>(*this, collective_->StartAllGather(message));
  }

  // Its messages are left as they are: the parts move only if all messages are equal.
  bool CanMoveParts() const override { return collective_->CanMoveParts(); }
  absl::StatusOr<std::vector<std::string>> GatherWithParts(const std::string& message,
                                                           const Parts& parts) override {
    const Waiting waiting;
    return collective_->GatherWithParts(message, parts);
  }

 private:
  class Gathering : public Pending {
   public:
    Gathering(const WorkCollective& collective, std::unique_ptr<Pending> pending)
        : collective_(collective), pending_(std::move(pending)) {}

    absl::StatusOr<std::vector<std::string>> Wait() override {
      absl::StatusOr<std::vector<std::string>> messages = WaitForMessages();
      if (messages.ok() && collective_.carries_) collective_.TakeClocks(*messages);
      return messages;
    }

   private:
    absl::StatusOr<std::vector<std::string>> WaitForMessages() {
      const Waiting waiting;
      return pending_->Wait();
    }

    const WorkCollective& collective_;
    std::unique_ptr<Pending> pending_;
  };

  void TakeClocks(std::vector<std::string>& messages) const {
    std::vector<int64_t> clocks(messages.size());
    for (size_t i = 0; i < messages.size(); ++i) {
      const auto rank = static_cast<size_t>(WorldRank(static_cast<int>(i)));
      const size_t size = messages[i].size() - sizeof(int64_t);
      clocks.at(rank) = base::FromBytes<int64_t>(messages[i].data() + size);
      messages[i].resize(size);
    }
    OwnWork::OfThisThread().Note(clocks);
  }

  std::unique_ptr<sharding::Collective> collective_;
  bool carries_;
};

// --- Works ---------------------------------------------------------------------------------------

// The Reducer waits for futures in a callback at the end of the backward pass. The engine runs
// callbacks in their order. The Reducer adds its own after it has asked for its last future, and
// the first of ours stands before it. When that runs, it adds the second one behind all others.
void MeasureEndOfBackward(const OnWait& on_wait) {
  thread_local int last_pass = -1;
  thread_local OnWait of_last;
  of_last = on_wait;
  const int pass = torch::autograd::get_current_graph_task_id();
  if (pass < 0 || std::exchange(last_pass, pass) == pass) return;
  auto& engine = torch::autograd::Engine::get_default_engine();
  // Neither captures anything: the engine may move the first one while it runs.
  engine.queue_callback([] {
    OwnWork::OfThisThread().BeginWait();
    of_last(true);
    torch::autograd::Engine::get_default_engine().queue_callback([] {
      of_last(false);
      OwnWork::OfThisThread().EndWait();
    });
  });
}

class MeasuredWork : public c10d::Work {
 public:
  MeasuredWork(c10::intrusive_ptr<c10d::Work> work, OnWait on_wait)
      : Work(/*rank=*/-1, work->retrieveOpType()),
        work_(std::move(work)),
        on_wait_(std::move(on_wait)) {}

  // Gloo's reduce_scatter of one tensor never says so by itself.
  bool isCompleted() override { return waited_ || work_->isCompleted(); }
  bool isSuccess() const override { return work_->isSuccess(); }
  std::exception_ptr exception() const override { return work_->exception(); }
  int sourceRank() const override { return work_->sourceRank(); }
  std::vector<at::Tensor> result() override { return work_->result(); }
  void synchronize() override { work_->synchronize(); }
  bool wait(std::chrono::milliseconds timeout) override {
    const Waiting waiting;
    on_wait_(true);
    const auto end = c10::make_scope_exit([this] { on_wait_(false); });
    const bool result = work_->wait(timeout);
    waited_ = true;
    return result;
  }
  void blockCurrentStream() override { work_->blockCurrentStream(); }
  void abort() override { work_->abort(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    MeasureEndOfBackward(on_wait_);
    return work_->getFuture();
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override {
    return work_->getFutureResult();
  }
  float getDuration() const override { return work_->getDuration(); }
  uint64_t getSequencenumber() const override { return work_->getSequencenumber(); }

 private:
  const c10::intrusive_ptr<c10d::Work> work_;
  const OnWait on_wait_;
  std::atomic<bool> waited_ = false;  // which the watchdog's thread reads
};

}  // namespace

OwnWork& OwnWork::OfThisThread() {
  thread_local OwnWork work;
  return work;
}

int64_t OwnWork::Time() const { return clock_ == nullptr ? SteadyNanoseconds() : clock_(); }

int64_t OwnWork::Now() const { return (depth_ > 0 ? wait_began_ : Time()) - waited_; }

void OwnWork::BeginWait() {
  if (depth_++ == 0) wait_began_ = Time();
}

void OwnWork::EndWait() {
  if (depth_ == 0 || --depth_ > 0) return;
  waited_ += Time() - wait_began_;
}

void OwnWork::EndAllWaits() {
  while (depth_ > 0) EndWait();
}

void OwnWork::Note(const std::vector<int64_t>& clocks) {
  // No clock ever goes back, so any one of them tells which all-gather began first.
  if (newest_.size() == clocks.size() && clocks.front() <= newest_.front()) return;
  newest_ = clocks;
  if (taken_.empty()) taken_ = clocks;
}

std::vector<double> OwnWork::Seconds() const {
  std::vector<double> seconds;
  for (const int64_t clock : newest_) seconds.push_back(static_cast<double>(clock) / 1e9);
  return seconds;
}

std::vector<double> OwnWork::TakeSeconds() {
  const std::vector<int64_t> before = std::exchange(taken_, newest_);
  if (before.size() != newest_.size() || before == newest_) return {};
  std::vector<double> seconds;
  for (size_t rank = 0; rank < newest_.size(); ++rank)
    seconds.push_back(static_cast<double>(newest_[rank] - before[rank]) / 1e9);
  return seconds;
}

std::unique_ptr<sharding::Collective> CarryOwnWork(std::unique_ptr<sharding::Collective> collective,
                                                   int world_size) {
  const bool carries = collective->size() == world_size;
  return std::make_unique<WorkCollective>(std::move(collective), carries);
}

c10::intrusive_ptr<c10d::Work> MeasureWait(c10::intrusive_ptr<c10d::Work> work, OnWait on_wait) {
  if (work == nullptr) return work;
  return c10::make_intrusive<MeasuredWork>(std::move(work), std::move(on_wait));
}

}  // namespace lockstep::driver
