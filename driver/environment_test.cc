#include "driver/environment.h"

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
                                        {"SLURM_JOB_ID", "123456"}});

  EXPECT_EQ(env.rank, 3);
  EXPECT_EQ(env.world_size, 4);
  EXPECT_EQ(env.local_rank, 1);
  EXPECT_EQ(env.local_world_size, 2);
  EXPECT_EQ(env.master_addr, "gpu003");
  EXPECT_EQ(env.master_port, 20000 + 123456 % 20000);
  EXPECT_FALSE(env.store_is_hosted);
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
      {{{"SLURM_PROCID", "4"}, {"SLURM_NTASKS", "4"}}, "SLURM_PROCID=\"4\""},
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
  };
  for (const auto& c : kCases) EXPECT_EQ(FirstSlurmHost(c.node_list), c.host) << c.node_list;
}

}  // namespace
}  // namespace lockstep::driver
