// The benchmarks of several ranks run to their end, in a tiny form. No program of the product uses
// them, so that a change of what they call would go unseen.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/program.h"
#include "tests/support/ranks.h"

namespace lockstep::tests {
namespace {

using ::testing::HasSubstr;

struct Benchmark {
  const char* script;
  int nproc;
  std::vector<const char*> settings;
  const char* last_words;
};

TEST(Benchmarks, RunToTheirEnd) {
  const Benchmark benchmarks[] = {
      {"context_benchmark", 2, {"tokens=256", "rounds=1"}, "all-to-all, balanced"},
      {"fully_shard_benchmark", 2, {"layers=2", "steps=2", "repeats=1"}, "fully_shard loss"},
      {"memory/offload_and_tiles_benchmark",
       2,
       {"tokens=128", "layers=2", "hidden=32", "rounds=1"},
       "fully_shard, offload, tiles"},
      {"pipeline_benchmark", 2, {"hidden=16", "tokens=16", "rounds=1", "repeats=1"}, "interleaved"},
      {"save_benchmark", 2, {"gib=0.01", "steps=4", "every=2", "step_ms=5", "turns=1"}, "async"},
      {"split_benchmark", 4, {"samples=6", "seq_len=256", "rounds=1"}, "groups of up to 4"},
  };
  for (const Benchmark& benchmark : benchmarks) {
    Folder folder;
    std::vector<std::string> arguments = {
        "--nproc", absl::StrCat(benchmark.nproc), "--run-dir", "out",
        DataFile(absl::StrCat("benchmarks/", benchmark.script, ".lua"))};
    for (const char* setting : benchmark.settings) {
      arguments.insert(arguments.end(), {"--set", setting});
    }
    const Ended ended = RunOne(Lockstep(folder, arguments));
    EXPECT_EQ(ended.exit_code, 0) << benchmark.script << ": " << ended.err;
    EXPECT_THAT(ended.out, HasSubstr(benchmark.last_words)) << benchmark.script;
  }
}

}  // namespace
}  // namespace lockstep::tests
