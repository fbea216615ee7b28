#include "driver/environment.h"

#include <cstdlib>
#include <initializer_list>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace lockstep::driver {
namespace {

// Reads whole numbers; remembers the first complaint.
class Reader {
 public:
  explicit Reader(const Environment& environment) : environment_(environment) {}

  std::string Text(const std::string& name, const std::string& otherwise) {
    return environment_(name).value_or(otherwise);
  }

  int Int(const std::string& name, std::optional<int> otherwise, int min, int max) {
    const std::optional<std::string> text = environment_(name);
    if (!text.has_value()) {
      if (!otherwise.has_value()) {
        Complain(absl::StrCat(name, " is not set, though other variables of a launcher are"));
      }
      return otherwise.value_or(0);
    }
    int value = 0;
    if (!absl::SimpleAtoi(*text, &value) || value < min || value > max) {
      Complain(
          absl::StrCat(name, "=\"", *text, "\" is not a whole number from ", min, " to ", max));
    }
    return value;
  }

  void Complain(const std::string& message) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(message);
  }

  const absl::Status& status() const { return status_; }

 private:
  const Environment& environment_;
  absl::Status status_;
};

constexpr int kMaxRanks = std::numeric_limits<int>::max();

RankEnvironment ReadTorchrun(Reader& reader) {
  RankEnvironment env;
  env.world_size = reader.Int("WORLD_SIZE", std::nullopt, 1, kMaxRanks);
  env.rank = reader.Int("RANK", std::nullopt, 0, env.world_size - 1);
  env.local_world_size = reader.Int("LOCAL_WORLD_SIZE", 1, 1, kMaxRanks);
  env.local_rank = reader.Int("LOCAL_RANK", 0, 0, kMaxRanks);
  env.master_addr = reader.Text("MASTER_ADDR", "127.0.0.1");
  env.master_port = static_cast<uint16_t>(env.world_size == 1
                                              ? reader.Int("MASTER_PORT", 0, 0, 65535)
                                              : reader.Int("MASTER_PORT", std::nullopt, 1, 65535));
  env.store_is_hosted = reader.Text("TORCHELASTIC_USE_AGENT_STORE", "False") == "True";
  env.attempt = reader.Int("TORCHELASTIC_RESTART_COUNT", 0, 0, kMaxRanks);
  return env;
}

// "2(x3),1" gives 2: the tasks of the first node, which is what sharing the cores needs.
int FirstTasksPerNode(const std::string& tasks_per_node) {
  int tasks = 1;
  const bool ok =
      absl::SimpleAtoi(tasks_per_node.substr(0, tasks_per_node.find_first_of("(,")), &tasks);
  return ok && tasks > 0 ? tasks : 1;
}

RankEnvironment ReadSlurm(Reader& reader, const Environment& environment) {
  RankEnvironment env;
  const char* tasks = environment("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  env.world_size = reader.Int(tasks, std::nullopt, 1, kMaxRanks);
  env.rank = reader.Int("SLURM_PROCID", std::nullopt, 0, env.world_size - 1);
  env.local_rank = reader.Int("SLURM_LOCALID", 0, 0, kMaxRanks);
  env.local_world_size = FirstTasksPerNode(
      reader.Text("SLURM_STEP_TASKS_PER_NODE", reader.Text("SLURM_TASKS_PER_NODE", "1")));
  const std::string nodes =
      reader.Text("SLURM_STEP_NODELIST", reader.Text("SLURM_JOB_NODELIST", "127.0.0.1"));
  env.master_addr = reader.Text("MASTER_ADDR", FirstSlurmHost(nodes));
  // Every rank must name the same port without asking the others.
  const int job = reader.Int("SLURM_JOB_ID", 0, 0, kMaxRanks);
  const int step = reader.Int("SLURM_STEP_ID", 0, 0, kMaxRanks);
  env.master_port = static_cast<uint16_t>(
      reader.Int("MASTER_PORT", 20000 + (job % 20000 + step) % 20000, 1, 65535));
  return env;
}

}  // namespace

Environment ProcessEnvironment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) return std::nullopt;
    return value;
  };
}

absl::StatusOr<std::optional<RankEnvironment>> RankFromEnvironment(const Environment& environment) {
  Reader reader(environment);
  std::optional<RankEnvironment> env;
  if (environment("RANK").has_value()) {
    env = ReadTorchrun(reader);
  } else if (environment("SLURM_PROCID").has_value() &&
             (environment("SLURM_STEP_NUM_TASKS") || environment("SLURM_NTASKS"))) {
    env = ReadSlurm(reader, environment);
  }
  if (!reader.status().ok()) return reader.status();
  return env;
}

std::string FirstSlurmHost(const std::string& node_list) {
  const size_t end = node_list.find_first_of("[,");
  if (end == std::string::npos || node_list[end] == ',') return node_list.substr(0, end);
  const size_t close = node_list.find(']', end);
  if (close == std::string::npos) return node_list;
  const std::string numbers = node_list.substr(end + 1, close - end - 1);
  const std::string suffix = node_list.substr(close + 1, node_list.find(',', close) - close - 1);
  return absl::StrCat(node_list.substr(0, end), numbers.substr(0, numbers.find_first_of("-,")),
                      suffix);
}

}  // namespace lockstep::driver
