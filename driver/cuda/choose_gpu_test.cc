#include "driver/cuda/choose_gpu.h"

#include <map>
#include <optional>
#include <string>

#include "gtest/gtest.h"

namespace lockstep::driver {
namespace {

using Variables = std::map<std::string, std::string>;

Environment VariablesOf(const Variables& variables) {
  return [variables](const std::string& name) -> std::optional<std::string> {
    const auto it = variables.find(name);
    if (it == variables.end()) return std::nullopt;
    return it->second;
  };
}

// For the rank that the variables describe.
absl::StatusOr<int> Choose(const Variables& variables, int num_gpus) {
  const auto rank = RankFromEnvironment(VariablesOf(variables));
  if (!rank.ok()) return rank.status();
  return ChooseGpu(rank->value(), VariablesOf(variables), num_gpus);
}

TEST(ChooseGpu, IsTheRanksNumberWhereAllGpusAreSeen) {
  RankEnvironment env;
  env.rank = 11;
  env.local_rank = 3;

  EXPECT_EQ(*ChooseGpu(env, VariablesOf({}), 4), 3);
  EXPECT_EQ(ChooseGpu(env, VariablesOf({}), 2).status().message(),
            "rank 11 is number 3 on this machine, which has 2 GPUs, and NCCL wants one for each "
            "rank; start at most 2 ranks here, or set CUDA_VISIBLE_DEVICES= to train on the CPU");
  EXPECT_EQ(ChooseGpu(env, VariablesOf({}), 1).status().message(),
            "rank 11 is number 3 on this machine, which has 1 GPU, and NCCL wants one for each "
            "rank; start at most 1 rank here, or set CUDA_VISIBLE_DEVICES= to train on the CPU");
}

TEST(ChooseGpu, IsOneOfTheRanksOwnWhereSlurmShowsNoOthers) {
  const Variables task = {{"SLURM_STEP_ID", "0"},      {"SLURM_PROCID", "3"},
                          {"SLURM_NTASKS", "4"},       {"SLURM_LOCALID", "3"},
                          {"SLURM_GPUS_ON_NODE", "4"}, {"CUDA_VISIBLE_DEVICES", "0"}};
  Variables by_option = task;
  by_option["SLURM_GPUS_PER_TASK"] = "1";
  by_option.erase("SLURM_GPUS_ON_NODE");
  Variables by_tres = task;
  by_tres["SLURM_TRES_PER_TASK"] = "cpu:8,gres/gpu:1";
  by_tres.erase("SLURM_GPUS_ON_NODE");
  Variables exported = task;  // a batch script's own: export RANK=$SLURM_PROCID ...
  exported.insert(
      {{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "3"}, {"MASTER_PORT", "29500"}});
  for (const Variables& variables : {task, by_option, by_tres, exported}) {
    const absl::StatusOr<int> gpu = Choose(variables, 1);

    ASSERT_TRUE(gpu.ok()) << gpu.status();
    EXPECT_EQ(*gpu, 0);
  }
  Variables two_each = by_option;
  two_each["CUDA_VISIBLE_DEVICES"] = "0,1";
  EXPECT_EQ(*Choose(two_each, 2), 1);
}

TEST(ChooseGpu, RanksOfTorchrunWithinSlurmShareWhatItsAgentSees) {
  const absl::StatusOr<int> gpu = Choose({{"SLURM_STEP_ID", "0"},
                                          {"SLURM_PROCID", "0"},
                                          {"SLURM_NTASKS", "1"},
                                          {"SLURM_LOCALID", "0"},
                                          {"SLURM_GPUS_PER_TASK", "2"},
                                          {"RANK", "3"},
                                          {"WORLD_SIZE", "4"},
                                          {"LOCAL_RANK", "3"},
                                          {"MASTER_PORT", "29500"}},
                                         2);

  EXPECT_FALSE(gpu.ok());
}

}  // namespace
}  // namespace lockstep::driver
