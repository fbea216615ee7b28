#include "driver/cuda/choose_gpu.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace lockstep::driver {
namespace {

// Returns whether Slurm has given the GPUs that this process sees to this task alone. Its tasks
// number themselves on their machine all the same.
bool HasOwnGpus(const Environment& variables, int local_rank) {
  // Under torchrun Slurm's task is the agent, and its ranks share what it sees.
  if (variables("SLURM_LOCALID").value_or("") != absl::StrCat(local_rank)) return false;
  if (variables("SLURM_GPUS_PER_TASK").has_value()) return true;
  if (absl::StrContains(variables("SLURM_TRES_PER_TASK").value_or(""), "gpu")) return true;
  const std::vector<std::string> visible =
      absl::StrSplit(variables("CUDA_VISIBLE_DEVICES").value_or(""), ',', absl::SkipEmpty());
  int of_step = 0;
  return absl::SimpleAtoi(variables("SLURM_GPUS_ON_NODE").value_or(""), &of_step) &&
         !visible.empty() && static_cast<int>(visible.size()) < of_step;
}

}  // namespace

absl::StatusOr<int> ChooseGpu(const RankEnvironment& environment, const Environment& variables,
                              int num_gpus) {
  if (HasOwnGpus(variables, environment.local_rank)) return environment.local_rank % num_gpus;
  if (environment.local_rank < num_gpus) return environment.local_rank;
  return absl::InvalidArgumentError(
      absl::StrCat("rank ", environment.rank, " is number ", environment.local_rank,
                   " on this machine, which has ", num_gpus, num_gpus == 1 ? " GPU" : " GPUs",
                   ", and NCCL wants one for each rank; start at most ", num_gpus,
                   num_gpus == 1 ? " rank" : " ranks",
                   " here, or set CUDA_VISIBLE_DEVICES= to train on the CPU"));
}

}  // namespace lockstep::driver
