#include "driver/settings/environment.h"

#include <map>
#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::driver {
namespace {

using ::testing::HasSubstr;

using Variables = std::map<std::string, std::string>;

absl::StatusOr<std::optional<RankEnvironment>> Read(const Variables& variables) {
  return RankFromEnvironment([&](const std::string& name) -> std::optional<std::string> {
    const auto it = variables.find(name);
    if (it == variables.end()) return std::nullopt;
    return it->second;
  });
}

RankEnvironment ReadRank(const Variables& variables) {
  const auto env = Read(variables);
  EXPECT_TRUE(env.ok()) << env.status();
  return env.ok() ? env->value_or(RankEnvironment{}) : RankEnvironment{};
}

TEST(RankFromEnvironment, AnEmptyEnvironmentIsNoRank) {
  const auto env = Read({});

  ASSERT_TRUE(env.ok());
  EXPECT_FALSE(env->has_value());
}

TEST(RankFromEnvironment, ReadsTorchrun) {
  const RankEnvironment env = ReadRank({{"RANK", "5"},
                                        {"WORLD_SIZE", "8"},
                                        {"LOCAL_RANK", "1"},
                                        {"LOCAL_WORLD_SIZE", "4"},
                                        {"MASTER_ADDR", "node0"},
                                        {"MASTER_PORT", "29400"},
                                        {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                        {"TORCHELASTIC_RESTART_COUNT", "2"}});

  EXPECT_EQ(env.rank, 5);
  EXPECT_EQ(env.world_size, 8);
  EXPECT_EQ(env.local_rank, 1);
  EXPECT_EQ(env.local_world_size, 4);
  EXPECT_EQ(env.master_addr, "node0");
  EXPECT_EQ(env.master_port, 29400);
  EXPECT_TRUE(env.store_is_hosted);
  EXPECT_EQ(env.attempt, 2);
}

TEST(RankFromEnvironment, ReadsSrun) {
  const RankEnvironment env = ReadRank({{"SLURM_PROCID", "3"},
                                        {"SLURM_NTASKS", "4"},
                                        {"SLURM_LOCALID", "1"},
                                        {"SLURM_TASKS_PER_NODE", "2(x2)"},
                                        {"SLURM_JOB_NODELIST", "gpu[003-004]"},
                                        {"SLURM_JOB_ID", "123456"},
                                        {"SLURM_STEP_ID", "2"}});

  EXPECT_EQ(env.rank, 3);
  EXPECT_EQ(env.world_size, 4);
  EXPECT_EQ(env.local_rank, 1);
  EXPECT_EQ(env.local_world_size, 2);
  EXPECT_EQ(env.master_addr, "gpu003");
  EXPECT_EQ(env.master_port, 20000 + 123458 % 20000);
  EXPECT_FALSE(env.store_is_hosted);
}

TEST(RankFromEnvironment, ASlurmStepOfOneHostMeetsOnLoopback) {
  const RankEnvironment env = ReadRank({{"SLURM_STEP_ID", "0"},
                                        {"SLURM_PROCID", "1"},
                                        {"SLURM_STEP_NUM_TASKS", "4"},
                                        {"SLURM_STEP_TASKS_PER_NODE", "4"},
                                        {"SLURM_STEP_NODELIST", "gpu003"}});

  EXPECT_EQ(env.master_addr, "127.0.0.1");
}

// The variables in a shell that salloc starts with use_interactive_step. The job has 8 tasks, and
// the shell is the only task of its step.
const Variables kInteractiveStep = {
    {"SLURM_JOB_ID", "1808417"},   {"SLURM_STEP_ID", "4294967290"},
    {"SLURM_PROCID", "0"},         {"SLURM_LOCALID", "0"},
    {"SLURM_NTASKS", "8"},         {"SLURM_TASKS_PER_NODE", "8"},
    {"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_STEP_TASKS_PER_NODE", "1"},
    {"SLURM_PTY_PORT", "34889"}};

TEST(RankFromEnvironment, AShellOrScriptWithinSlurmIsNoRank) {
  Variables without_terminal = kInteractiveStep;
  without_terminal.erase("SLURM_PTY_PORT");
  const Variables pty_shell = {{"SLURM_STEP_ID", "0"},
                               {"SLURM_PROCID", "0"},
                               {"SLURM_NTASKS", "1"},
                               {"SLURM_PTY_PORT", "34889"}};
  const Variables batch_script = {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "16"}};

  for (const Variables& variables : {kInteractiveStep, without_terminal, pty_shell, batch_script}) {
    const auto env = Read(variables);

    ASSERT_TRUE(env.ok()) << env.status();
    EXPECT_FALSE(env->has_value());
  }
}

TEST(RankFromEnvironment, SrunWithinAnInteractiveStepStartsRanks) {
  Variables variables = kInteractiveStep;
  variables["SLURM_STEP_ID"] = "0";
  variables["SLURM_STEP_NUM_TASKS"] = "8";
  variables["SLURM_PROCID"] = "3";

  EXPECT_EQ(ReadRank(variables).rank, 3);
}

TEST(RankFromEnvironment, ASingleTaskWithoutATerminalIsARank) {
  const auto env = Read({{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}});

  ASSERT_TRUE(env.ok());
  EXPECT_TRUE(env->has_value());
}

TEST(RankFromEnvironment, SlurmsLargestNumbersGiveAPort) {
  const RankEnvironment env = ReadRank({{"SLURM_JOB_ID", "4294967295"},
                                        {"SLURM_STEP_ID", "4294967279"},
                                        {"SLURM_PROCID", "0"},
                                        {"SLURM_NTASKS", "2"}});

  EXPECT_GE(env.master_port, 20000);
  EXPECT_LT(env.master_port, 40000);
}

TEST(RankFromEnvironment, TorchrunWinsOverSlurm) {
  EXPECT_EQ(ReadRank({{"SLURM_PROCID", "3"},
                      {"SLURM_NTASKS", "4"},
                      {"RANK", "1"},
                      {"WORLD_SIZE", "2"},
                      {"MASTER_PORT", "1"}})
                .rank,
            1);
}

TEST(RankFromEnvironment, ErrorsNameTheVariableAndItsValue) {
  const struct {
    Variables variables;
    const char* message;
  } kCases[] = {
      {{{"RANK", "0"}}, "WORLD_SIZE is not set"},
      {{{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "1"}},
       "RANK=\"2\" is not a whole number from 0 to 1"},
      {{{"RANK", "x"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "1"}}, "RANK=\"x\""},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}}, "MASTER_PORT is not set"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "70000"}}, "MASTER_PORT=\"70000\""},
      {{{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "4"}, {"SLURM_NTASKS", "4"}},
       "SLURM_PROCID=\"4\""},
      {{{"SLURM_STEP_ID", "x"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}},
       "SLURM_STEP_ID=\"x\" is not a whole number from 0 to 4294967295"},
  };
  for (const auto& c : kCases) {
    EXPECT_THAT(std::string(Read(c.variables).status().message()), HasSubstr(c.message));
  }
}

TEST(FirstSlurmHost, TakesTheFirstOfEachForm) {
  const struct {
    const char* node_list;
    const char* host;
  } kCases[] = {
      {"login", "login"},
      {"a,b", "a"},
      {"gpu[003-005,9],login", "gpu003"},
      {"gpu[7,9]", "gpu7"},
      {"n[1-2]-ib,x", "n1-ib"},
      {"127.0.0.1", "127.0.0.1"},
      {"rack[1-2]gpu[3-4]", "rack1gpu3"},
      {"rack[1-2]gpu[3-4]-ib,rack[7,9]gpu5", "rack1gpu3-ib"},
      {"r[01,03-05]n[8]s[2-3]", "r01n8s2"},
  };
  for (const auto& c : kCases) EXPECT_EQ(FirstSlurmHost(c.node_list), c.host) << c.node_list;
}

}  // namespace
}  // namespace lockstep::driver
