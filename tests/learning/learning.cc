#include "tests/learning/learning.h"

#include <signal.h>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::tests {

using ::testing::HasSubstr;

Command Train(const Folder& folder, const std::string& script, int nproc,
              const std::vector<std::string>& settings) {
  Command command = TrainCommand(folder, {"scripts/" + script, nproc, settings});
  command.timeout = absl::Seconds(400);
  return command;
}

std::vector<double> Values(const Folder& folder, const std::string& field,
                           const std::string& event) {
  return ReadValues(folder, "out/metrics.jsonl", field, event);
}

double Mean(const std::vector<double>& values, size_t from, size_t count) {
  double sum = 0;
  for (size_t i = from; i < from + count; ++i) sum += values.at(i);
  return sum / static_cast<double>(count);
}

void ExpectSameBitsAfterAKill(const std::string& script, const std::vector<std::string>& settings,
                              const std::string& field, const std::string& file) {
  const Folder undisturbed, killed;
  ASSERT_EQ(RunOne(Train(undisturbed, script, 2, settings)).exit_code, 0);
  Child child(Train(killed, script, 2, settings));
  child.WaitForLine("step 4/");
  child.Send(SIGKILL);
  child.Wait();

  const Ended ended = RunOne(Train(killed, script, 2, settings));

  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("resumed"));
  EXPECT_EQ(Values(killed, field), Values(undisturbed, field));
  EXPECT_EQ(killed.Read(file), undisturbed.Read(file));
}

std::string Message(const std::string& role, const std::string& content) {
  return absl::StrCat(R"({"role": ")", role, R"(", "content": ")", content, R"("})");
}

std::string Pair(const std::string& prompt, const std::string& chosen,
                 const std::string& rejected) {
  return absl::StrCat(prompt.empty() ? "{" : absl::StrCat(R"({"prompt": [)", prompt, "], "),
                      R"("chosen": [)", chosen, R"(], "rejected": [)", rejected, "]}\n");
}

}  // namespace lockstep::tests
