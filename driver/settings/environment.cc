#include "driver/settings/environment.h"

#include <cstdlib>
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
    return static_cast<int>(Int64(name, otherwise, min, max));
  }

  int64_t Int64(const std::string& name, std::optional<int64_t> otherwise, int64_t min,
                int64_t max) {
    const std::optional<std::string> text = environment_(name);
    if (!text.has_value()) {
      if (!otherwise.has_value()) {
        Complain(absl::StrCat(name, " is not set, though other variables of a launcher are"));
      }
      return otherwise.value_or(0);
    }
    int64_t value = 0;
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

// Slurm's numbers have 32 bits. The highest are steps that srun has not started as ranks: a batch
// script, the shell of an interactive step (4294967290).
constexpr int64_t kMaxSlurmId = std::numeric_limits<uint32_t>::max();
constexpr int64_t kFirstSpecialStep = 0xfffffff0;

const char* NameOfTasks(const Environment& environment) {
  return environment("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
}

// Returns whether srun has started this process as a task. A batch script has a SLURM_PROCID, too,
// but no step.
bool IsSlurmTask(const Environment& environment) {
  const std::optional<std::string> step = environment("SLURM_STEP_ID");
  const std::optional<std::string> tasks = environment(NameOfTasks(environment));
  if (!environment("SLURM_PROCID") || !step.has_value() || !tasks.has_value()) return false;
  int64_t number = 0;
  if (absl::SimpleAtoi(*step, &number) && number >= kFirstSpecialStep) return false;
  const bool is_shell = *tasks == "1" && environment("SLURM_PTY_PORT").has_value();
  return !is_shell;
}

RankEnvironment ReadSlurm(Reader& reader, const Environment& environment) {
  RankEnvironment env;
  env.world_size = reader.Int(NameOfTasks(environment), std::nullopt, 1, kMaxRanks);
  env.rank = reader.Int("SLURM_PROCID", std::nullopt, 0, env.world_size - 1);
  env.local_rank = reader.Int("SLURM_LOCALID", 0, 0, kMaxRanks);
  env.local_world_size = FirstTasksPerNode(
      reader.Text("SLURM_STEP_TASKS_PER_NODE", reader.Text("SLURM_TASKS_PER_NODE", "1")));
  const std::string nodes =
      reader.Text("SLURM_STEP_NODELIST", reader.Text("SLURM_JOB_NODELIST", "127.0.0.1"));
  const bool is_one_host = env.local_world_size == env.world_size;
  env.master_addr = reader.Text("MASTER_ADDR", is_one_host ? "127.0.0.1" : FirstSlurmHost(nodes));
  // Every rank must name the same port without asking the others.
  const int64_t job = reader.Int64("SLURM_JOB_ID", 0, 0, kMaxSlurmId);
  const int64_t step = reader.Int64("SLURM_STEP_ID", 0, 0, kMaxSlurmId);
  const int port = static_cast<int>(20000 + (job + step) % 20000);
  env.master_port = static_cast<uint16_t>(reader.Int("MASTER_PORT", port, 1, 65535));
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
  } else if (IsSlurmTask(environment)) {
    env = ReadSlurm(reader, environment);
  }
  if (!reader.status().ok()) return reader.status();
  return env;
}

std::string FirstSlurmHost(const std::string& node_list) {
  std::string host;
  for (size_t i = 0; i < node_list.size() && node_list[i] != ',';) {
    if (node_list[i] != '[') {
      host.push_back(node_list[i++]);
      continue;
    }
    const size_t close = node_list.find(']', i);
    if (close == std::string::npos) return node_list;
    const std::string numbers = node_list.substr(i + 1, close - i - 1);
    host += numbers.substr(0, numbers.find_first_of("-,"));
    i = close + 1;
  }
  return host;
}

}  // namespace lockstep::driver
