#include "driver/watching/trace.h"

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <stdexcept>
#include <utility>

#include "ATen/Context.h"
#include "ATen/record_function.h"
#include "absl/strings/str_cat.h"
#include "c10/util/Exception.h"
#include "c10/util/ThreadLocalDebugInfo.h"
#include "torch/csrc/autograd/profiler_kineto.h"

namespace lockstep::driver {
namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

std::atomic<bool> is_tracing{false};

}  // namespace

Trace::Trace(std::string path, const TraceOptions& options) : path_(std::move(path)) {
  TORCH_CHECK_VALUE(!is_tracing.exchange(true),
                    "another trace is under way: there is one at a time in a process");
  if (c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE) != nullptr) {
    is_tracing = false;
    TORCH_CHECK_VALUE(
        false,
        "lockstep.profile: memory is being watched by line, and libtorch can do one of "
        "the two at a time; trace outside of lockstep.memory_by_line");
  }
  std::set<ActivityType> activities = {ActivityType::CPU};
  if (at::hasCUDA()) {
    activities.insert(ActivityType::CUDA);
  } else {
    // Kineto would complain that this machine has no GPU, and from torch 2.15 on say that it
    // starts.
    setenv("KINETO_LOG_LEVEL", "6", /*overwrite=*/0);
  }
  const ProfilerConfig config(ProfilerState::KINETO, options.record_shapes, options.profile_memory);
  if (options.profile_memory) reported_.emplace();
  try {
    profiler::prepareProfiler(config, activities);
    profiler::enableProfiler(config, activities);
  } catch (...) {
    is_tracing = false;
    throw;
  }
}

Trace::~Trace() {
  try {
    Stop();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
}

void Trace::BeginStep(int64_t step) {
  step_.reset();
  step_ = std::make_unique<at::RecordFunction>(at::RecordScope::USER_SCOPE);
  if (step_->isActive()) step_->before(absl::StrCat("ProfilerStep#", step));
}

void Trace::Stop() {
  if (!std::exchange(is_running_, false)) return;
  step_.reset();
  const std::unique_ptr<profiler::ProfilerResult> result = profiler::disableProfiler();
  reported_.reset();
  is_tracing = false;
  // Kineto only logs that it cannot write.
  std::FILE* const file = std::fopen(path_.c_str(), "wb");
  if (file == nullptr) {
    throw std::runtime_error(
        absl::StrCat("cannot write the trace ", path_, ": ", std::strerror(errno)));
  }
  std::fclose(file);
  result->save(path_);
}

}  // namespace lockstep::driver
