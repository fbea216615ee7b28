#include "mimo/batch/reads.h"

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "mimo/topology/problems.h"

namespace lockstep::mimo {

absl::StatusOr<Reads> PlanReads(absl::Span<const int64_t> dp_sizes, const ReadOptions& options) {
  std::vector<std::string> problems;
  int64_t groups = 1;
  if (dp_sizes.empty()) problems.push_back("there is no dp size");
  for (int64_t dp : dp_sizes) {
    if (dp < 1) {
      problems.push_back(absl::StrCat("a dp size is ", dp, "; it must be positive"));
    } else if (__builtin_mul_overflow(groups, dp / std::gcd(groups, dp), &groups)) {
      problems.push_back("the least common multiple of the dp sizes exceeds 64 bits");
      break;
    }
  }
  if (!options.drop_last) {
    problems.push_back("drop_last is false; an incomplete micro-batch cannot be cut by the grid");
  }
  const int64_t size = options.micro_batch_size;
  if (size < 1) {
    problems.push_back(absl::StrCat("micro_batch_size is ", size, "; it must be positive"));
  } else if (problems.empty() && size % groups != 0) {
    problems.push_back(absl::StrCat("micro_batch_size ", size, " is not divisible by ", groups,
                                    ", the least common multiple of the dp sizes; ",
                                    NearestMultiples(size, groups)));
  }
  if (options.num_samples < size) {
    problems.push_back(absl::StrCat("the dataset has ", options.num_samples,
                                    " samples, less than the micro_batch_size ", size));
  }
  if (!problems.empty()) return StatusOf("reads", problems);
  return Reads{groups, size / groups, size, options.num_samples / size};
}

absl::StatusOr<Reads> PlanReads(const Topology& topology, const ReadOptions& options) {
  std::vector<int64_t> dp_sizes;
  for (const Module& module : topology.modules()) dp_sizes.push_back(module.dp);
  return PlanReads(dp_sizes, options);
}

absl::StatusOr<Range> GroupsOf(const Reads& reads, const DpInfo& replica) {
  if (replica.dp_size < 1 || reads.num_groups % replica.dp_size != 0) {
    return absl::InvalidArgumentError(absl::StrCat("mimo: dp_size ", replica.dp_size,
                                                   " does not divide the grid of ",
                                                   reads.num_groups, " groups of these reads"));
  }
  if (replica.dp_rank < 0 || replica.dp_rank >= replica.dp_size) {
    return absl::InvalidArgumentError(absl::StrCat("mimo: dp_rank is ", replica.dp_rank,
                                                   "; with dp_size ", replica.dp_size,
                                                   " it is from 0 to ", replica.dp_size - 1));
  }
  const int64_t covered = reads.num_groups / replica.dp_size;
  return Range{replica.dp_rank * covered, (replica.dp_rank + 1) * covered};
}

absl::StatusOr<Range> PositionsOf(const Reads& reads, int64_t micro_batch, const DpInfo& replica) {
  const absl::StatusOr<Range> groups = GroupsOf(reads, replica);
  if (!groups.ok()) return groups.status();
  if (micro_batch < 0 || micro_batch >= reads.num_micro_batches) {
    return absl::OutOfRangeError(absl::StrCat("mimo: there is no micro-batch ", micro_batch,
                                              "; there are ", reads.num_micro_batches,
                                              ", counted from 0"));
  }
  const int64_t first = micro_batch * reads.micro_batch_size;
  return Range{first + groups->begin * reads.samples_per_group,
               first + groups->end * reads.samples_per_group};
}

}  // namespace lockstep::mimo
