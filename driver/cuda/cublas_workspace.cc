#include "driver/cuda/cublas_workspace.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace lockstep::driver {
namespace {

// The two sizes that cuBLAS repeats bits with: eight buffers of 4 MiB, or of 16 KiB.
constexpr char kLarge[] = ":4096:8";
constexpr char kSmall[] = ":16:8";

}  // namespace

absl::StatusOr<std::string> DeterministicWorkspace(const std::optional<std::string>& now,
                                                   bool gpu_was_used) {
  if (now == kLarge || now == kSmall) return *now;
  if (now.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat(kCublasWorkspace, " is \"", *now, "\", with which products on a GPU do not ",
                     "repeat bit by bit; start the run with ", kLarge, " or ", kSmall));
  }
  if (gpu_was_used) {
    return absl::FailedPreconditionError(
        absl::StrCat("this process has used a GPU, so cuBLAS's workspace can no longer be set; ",
                     "call it before the first tensor on a GPU, or start the run with ",
                     kCublasWorkspace, "=", kLarge));
  }
  return std::string(kLarge);
}

}  // namespace lockstep::driver
