#include "tests/support/program.h"

#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace lockstep::tests {

Folder::Folder() {
  std::string name = absl::StrCat(::testing::TempDir(), "/folder.XXXXXX");
  if (mkdtemp(name.data()) == nullptr) ADD_FAILURE() << "cannot make a folder like " << name;
  path_ = std::filesystem::canonical(name).string();
}

void Folder::Write(const std::string& name, const std::string& content) const {
  std::filesystem::create_directories(std::filesystem::path(Path(name)).parent_path());
  std::ofstream(Path(name), std::ios::binary) << content;
}

std::string Folder::Read(const std::string& name) const {
  std::ifstream file(Path(name), std::ios::binary);
  if (!file) ADD_FAILURE() << "there is no file " << Path(name);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<std::string> Folder::List(const std::string& name) const {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(Path(name))) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string DataFile(const std::string& path) {
  return absl::StrCat(getenv("TEST_SRCDIR"), "/lockstep/", path);
}

Command Lockstep(const Folder& folder, const std::vector<std::string>& arguments) {
  const char* program = getenv("LOCKSTEP_PROGRAM");  // set by strict_twin
  Command command = {.argv = {DataFile(program == nullptr ? "driver/lockstep" : program)},
                     .folder = folder.path()};
  command.argv.insert(command.argv.end(), arguments.begin(), arguments.end());
  return command;
}

Command TrainCommand(const Folder& folder, const Training& training) {
  std::vector<std::string> arguments = training.options;
  arguments.insert(arguments.end(), {"--nproc", absl::StrCat(training.nproc), "--run-dir",
                                     training.run_dir, DataFile(training.script)});
  for (const std::string& setting : training.settings)
    arguments.insert(arguments.end(), {"--set", setting});
  return Lockstep(folder, arguments);
}

Metrics ReadMetrics(const Folder& folder, const std::string& file) {
  Metrics metrics;
  std::istringstream lines(folder.Read(file));
  for (std::string line; std::getline(lines, line);) {
    const auto object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object()) {
      ADD_FAILURE() << file << " holds a line that is no JSON object: " << line;
      continue;
    }
    metrics.emplace_back();
    for (const auto& [name, value] : object.items()) {
      const bool is_short = value.is_string() || value.is_number();
      metrics.back()[name] = value.is_string() ? value.get<std::string>()
                             : is_short        ? value.dump()
                                               : "not a text";
    }
  }
  return metrics;
}

std::vector<double> ReadValues(const Folder& folder, const std::string& file,
                               const std::string& field, const std::string& event) {
  std::vector<double> values;
  for (const auto& object : ReadMetrics(folder, file)) {
    const auto it = object.find("event");
    if ((it == object.end() ? "" : it->second) != event || object.count(field) == 0) continue;
    values.push_back(strtod(object.at(field).c_str(), nullptr));
  }
  return values;
}

std::vector<std::string> FinalBits(const Ended& ended) {
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  return LinesWith(ended.out, "final bits");
}

std::vector<std::string> LinesWith(const std::string& text, const std::string& part) {
  std::vector<std::string> lines;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    lines.push_back(text.substr(at, text.find('\n', at) - at));
  std::sort(lines.begin(), lines.end());
  return lines;
}

void ExpectOneComplaint(const Ended& ended, const std::string& message) {
  EXPECT_EQ(Count("\n" + ended.err, "\nlockstep: "), 1) << ended.err;
  EXPECT_EQ(Count(ended.err, message), 1) << "expected once: " << message << "\nin: " << ended.err;
  EXPECT_EQ(Count(ended.out, message), 0) << ended.out;
  for (const char* noise :
       {"frame #", "Exception raised from", "terminate called", "[c10d]", ".cpp:"}) {
    EXPECT_EQ(Count(ended.err, noise), 0) << ended.err;
  }
}

int Count(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

}  // namespace lockstep::tests
