// Topology::Validate: batch sizes against the data-parallel sizes of all modules.

#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "mimo/topology/problems.h"
#include "mimo/topology/topology.h"

namespace lockstep::mimo {
namespace {

// The least common multiple of all dp sizes: what a micro-batch size is a multiple of. 0 if it is
// beyond any batch.
int64_t CommonMultiple(const std::vector<Module>& modules) {
  int64_t common = 1;
  for (const Module& module : modules) {
    const int64_t factor = module.dp / std::gcd(common, module.dp);
    if (__builtin_mul_overflow(common, factor, &common)) return 0;
  }
  return common;
}

void CheckMicroBatch(absl::string_view field, std::optional<int64_t> given,
                     const Topology& topology, Division division,
                     std::vector<std::string>* problems) {
  if (!given.has_value()) {
    problems->push_back(absl::StrCat(field, " is not given"));
    return;
  }
  const int64_t size = *given;
  if (size < 1 || size > kMaxMicroBatchSize) {
    problems->push_back(absl::StrCat(
        field, " is ", size, "; it must be positive",
        size < 1 ? "" : absl::StrCat(", and at most ", kMaxMicroBatchSize, " samples")));
    return;
  }
  const int64_t common = CommonMultiple(topology.modules());
  for (const Module& module : topology.modules()) {
    if (division == Division::kUneven ? size >= module.dp : size % module.dp == 0) continue;
    if (division == Division::kUneven) {
      problems->push_back(absl::StrCat(field, " ", size, " gives ", module.dp - size, " of ",
                                       module.dp, " replicas of \"", module.name,
                                       "\" no sample; use ", module.dp, " or more"));
    } else {
      problems->push_back(absl::StrCat(
          field, " ", size, " is not divisible by dp ", module.dp, " of \"", module.name, "\"; ",
          common > 0 ? NearestMultiples(size, common) : "no size suits all modules",
          topology.modules().size() > 1 ? " to suit all modules" : ""));
    }
  }
}

void CheckGlobalBatch(absl::string_view field, std::optional<int64_t> size,
                      absl::string_view micro_field, std::optional<int64_t> micro,
                      std::vector<std::string>* problems) {
  if (!size.has_value()) return;
  if (*size < 1) {
    problems->push_back(absl::StrCat(field, " is ", *size, "; it must be positive"));
  } else if (micro.value_or(0) >= 1 && *size % *micro != 0) {
    problems->push_back(absl::StrCat(field, " ", *size, " is not divisible by ", micro_field, " ",
                                     *micro, "; ", NearestMultiples(*size, *micro)));
  }
}

}  // namespace

absl::Status Topology::Validate(const BatchSizes& sizes) const {
  std::vector<std::string> problems;
  CheckMicroBatch("micro_batch_size", sizes.micro_batch_size, *this, sizes.division, &problems);
  CheckGlobalBatch("global_batch_size", sizes.global_batch_size, "micro_batch_size",
                   sizes.micro_batch_size, &problems);
  const std::optional<int64_t> eval_micro = sizes.eval_micro_batch_size;
  if (eval_micro.has_value())
    CheckMicroBatch("eval_micro_batch_size", eval_micro, *this, sizes.division, &problems);
  CheckGlobalBatch("eval_global_batch_size", sizes.eval_global_batch_size,
                   eval_micro.has_value() ? "eval_micro_batch_size" : "micro_batch_size",
                   eval_micro.has_value() ? eval_micro : sizes.micro_batch_size, &problems);
  return StatusOf("batch sizes", problems);
}

}  // namespace lockstep::mimo
