#include "driver/lua/tensor/background_copies.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "ATen/record_function.h"
#include "absl/strings/match.h"
#include "c10/util/ScopeExit.h"
#include "driver/files/file_job.h"
#include "driver/lua/tensor/bits.h"

namespace lockstep::lua {

struct BackgroundCopies::State {
  explicit State(std::vector<One> tensors_to_read) : tensors(std::move(tensors_to_read)) {
    for (const One& one : tensors) {
      memory.insert(one.from.storage().unsafeGetStorageImpl());
      if (one.is_summed) sums.push_back(0);
    }
  }

  bool is_read() const {
    return read.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }

  void WaitUntilRead() {
    if (is_read()) return;
    const auto started = std::chrono::steady_clock::now();
    read.wait();
    waited_ns += std::chrono::nanoseconds(std::chrono::steady_clock::now() - started).count();
  }

  bool Holds(const c10::IValue& value) const {
    if (value.isList()) {
      for (const c10::IValue& element : value.toListRef()) {
        if (Holds(element)) return true;
      }
    }
    if (!value.isTensor() || !value.toTensor().has_storage()) return false;
    return memory.count(value.toTensor().storage().unsafeGetStorageImpl()) != 0;
  }

  // Copies the tensors, and sums those that are not copied. Then releases them: some were made for
  // the copy. Operators that write to them wait for the end of this, also if a copy fails.
  absl::Status Read() {
    const auto end = c10::make_scope_exit([this] { reading.set_value(); });
    const at::NoGradGuard no_gradients;
    for (const One& one : tensors) {
      if (one.to.defined()) one.to.copy_(one.from);
    }
    SumThose(/*copied=*/false);
    for (One& one : tensors) one.from.reset();
    return absl::OkStatus();
  }

  absl::Status SumCopies() {
    SumThose(/*copied=*/true);
    return absl::OkStatus();
  }

  void SumThose(bool copied) {
    size_t place = 0;
    for (const auto& [from, to, is_summed] : tensors) {
      if (!is_summed) continue;
      if (to.defined() == copied) sums[place] = SumOfBits((copied ? to : from).contiguous());
      ++place;
      if (copied) driver::FileJob::GiveWay();  // nothing waits for these sums
    }
  }

  std::vector<One> tensors;
  std::unordered_set<const c10::StorageImpl*> memory;  // of the tensors
  std::vector<int64_t> sums;
  std::promise<void> reading;
  std::shared_future<void> read = reading.get_future().share();
  std::atomic<int64_t> waited_ns{0};
  at::CallbackHandle callback = at::INVALID_CALLBACK_HANDLE;
};

namespace {

// Whether an operator writes to its argument. Two kinds of schemas do not say so: those of c10d,
// whose names of collectives in place end in "_", and those of norms that keep running means.
bool Writes(const c10::FunctionSchema& schema, size_t argument) {
  if (absl::StartsWith(schema.name(), "c10d::")) return absl::EndsWith(schema.name(), "_");
  if (argument >= schema.arguments().size()) return false;
  const c10::Argument& written = schema.arguments()[argument];
  if (written.name() == "running_mean" || written.name() == "running_var") return true;
  return written.alias_info() != nullptr && written.alias_info()->isWrite();
}

}  // namespace

// The copies that operators wait for. Operators run on other threads, too: libtorch hands a
// thread's callbacks to the threads that work for it, such as a collective's. These may keep the
// callbacks for longer.
std::atomic<std::shared_ptr<BackgroundCopies::State>> BackgroundCopies::watched;

std::unique_ptr<at::ObserverContext> BackgroundCopies::BeforeOperator(
    const at::RecordFunction& function) {
  const std::shared_ptr<State> state = watched.load();
  if (state == nullptr || state->is_read()) return nullptr;
  std::optional<c10::FunctionSchema> schema;  // it is copied: most operators do not need it
  const auto inputs = function.inputs();
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!state->Holds(inputs[i])) continue;
    if (!schema.has_value()) schema = function.operator_schema();
    if (!schema.has_value() || !Writes(*schema, i)) continue;
    state->WaitUntilRead();
    break;
  }
  return nullptr;
}

BackgroundCopies::BackgroundCopies(std::vector<One> tensors)
    : state_(std::make_shared<State>(std::move(tensors))) {
  ReleaseWatched();
  // First of all: if there is no thread to be had, nothing must wait for what it would read.
  job_ = std::make_unique<driver::FileJob>(std::vector<driver::FileJob::Step>{
      [state = state_] { return state->Read(); }, [state = state_] { return state->SumCopies(); }});
  state_->callback = at::addThreadLocalCallback(at::RecordFunctionCallback(BeforeOperator)
                                                    .needsInputs(true)
                                                    .scopes({at::RecordScope::FUNCTION}));
  watched = state_;
}

BackgroundCopies::~BackgroundCopies() { Release(); }

bool BackgroundCopies::is_read() const { return state_->is_read(); }

void BackgroundCopies::ReleaseWatched() {
  const std::shared_ptr<State> state = watched.load();
  if (state == nullptr) return;
  state->WaitUntilRead();
  at::removeCallback(state->callback);
  watched.store(nullptr);
}

void BackgroundCopies::WaitUntilRead() {
  if (const std::shared_ptr<State> state = watched.load()) state->WaitUntilRead();
}

double BackgroundCopies::Release() {
  if (watched.load() == state_) ReleaseWatched();
  return static_cast<double>(state_->waited_ns.exchange(0)) / 1e9;
}

absl::Status BackgroundCopies::Wait() const { return job_->Wait(); }

driver::FileJob BackgroundCopies::job() const { return *job_; }

const std::vector<int64_t>& BackgroundCopies::sums() const { return state_->sums; }

}  // namespace lockstep::lua
