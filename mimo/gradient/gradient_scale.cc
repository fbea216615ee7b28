#include "mimo/gradient/gradient_scale.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "mimo/topology/problems.h"

namespace lockstep::mimo {

absl::StatusOr<double> GradientScale(const GradientScaleOptions& options) {
  std::vector<std::string> problems;
  const auto must_be_positive = [&](const char* field, int64_t value) {
    if (value >= 1) return;
    problems.push_back(absl::StrCat(field, " is ", value, "; it must be positive"));
  };
  must_be_positive("reduction_size", options.reduction_size);
  must_be_positive("language_dp", options.language_dp);
  must_be_positive("num_micro_batches", options.num_micro_batches);
  if (options.loss == Loss::kPerToken && options.num_tokens < 1) {
    problems.push_back(absl::StrCat(
        "num_tokens is ", options.num_tokens,
        options.num_tokens < 0 ? "; it must not be negative"
                               : ": no token of the step has a loss, and the mean over none is not"
                                 " defined; skip the step"));
  }
  if (!problems.empty()) return StatusOf("gradient scale", problems);

  const double undo_mean =
      options.reduction == Reduction::kMean ? static_cast<double>(options.reduction_size) : 1.0;
  if (options.loss == Loss::kPerToken) {
    return undo_mean / static_cast<double>(options.num_tokens);
  }
  return undo_mean / static_cast<double>(options.language_dp) /
         static_cast<double>(options.num_micro_batches);
}

}  // namespace lockstep::mimo
