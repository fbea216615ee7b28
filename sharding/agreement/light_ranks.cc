// Measures how SocketCollective scales: many light processes of one machine meet, gather, and lose
// one of them. No libtorch: a process takes about 4 MB.
//
//    bazel-bin/sharding/agreement/light_ranks RANKS GATHERS [MOST_AT_ONCE]
//
// Prints one row, and exits with 1 if a rank gathered something else than all bytes, or if a
// survivor does not name the rank that was killed. MOST_AT_ONCE is that of SocketCollective: give
// RANKS to have every rank send to every other.

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "sharding/agreement/socket_collective.h"

namespace lockstep::sharding {
namespace {

using Clock = std::chrono::steady_clock;

// The descriptors that the ranks inherit.
constexpr int kReports = 100;                // ranks write lines, the parent reads them
constexpr int kFirstGate = 101, kGates = 3;  // the end of each opens a gate

double Seconds(Clock::time_point from) {
  return std::chrono::duration<double>(Clock::now() - from).count();
}

double CpuSeconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

struct Arguments {
  int ranks = 0;
  int gathers = 0;
  int most_at_once = SocketCollective::kMostAtOnce;
  std::string endpoints;  // a file, for a rank
  int rank = -1;
};

// --- A rank --------------------------------------------------------------------------------------

// A line is shorter than what a pipe writes at once.
void Report(int rank, const std::string& text) {
  const std::string line = absl::StrCat(rank, " ", text.substr(0, 200), "\n");
  if (write(kReports, line.data(), line.size()) < 0) _exit(1);
}

void WaitForGate(int gate) {
  char byte;
  while (read(kFirstGate + gate, &byte, 1) < 0) {
  }
}

std::string BytesOf(int rank, int step) {
  return {static_cast<char>(rank), static_cast<char>(rank + step)};
}

// Returns what is wrong, "" if nothing.
std::string Gather(SocketCollective& collective, int rank, int step) {
  const auto all = collective.StartAllGather(BytesOf(rank, step))->Wait();
  if (!all.ok()) return std::string(all.status().message());
  for (size_t other = 0; other < all->size(); ++other) {
    if ((*all)[other] != BytesOf(static_cast<int>(other), step)) return "gathered wrong bytes";
  }
  return "";
}

int RunRank(const Arguments& arguments) {
  const int rank = arguments.rank;
  const auto exchange =
      [&](const std::string& own,
          const std::vector<int>& positions) -> absl::StatusOr<std::vector<std::string>> {
    Report(rank, own);
    WaitForGate(0);
    std::vector<std::string> all(static_cast<size_t>(arguments.ranks));
    std::ifstream file(arguments.endpoints);
    for (std::string& line : all) std::getline(file, line);
    std::vector<std::string> asked;
    for (const int position : positions) asked.push_back(all[static_cast<size_t>(position)]);
    return asked;
  };
  auto connected = SocketCollective::Connect(rank, arguments.ranks, "127.0.0.1", exchange,
                                             absl::Seconds(300), {}, arguments.most_at_once);
  if (!connected.ok()) {
    Report(rank, std::string(connected.status().message()));
    return 1;
  }
  Report(rank, "met");
  WaitForGate(1);
  const double cpu = CpuSeconds();
  std::string wrong;
  for (int step = 0; step < arguments.gathers && wrong.empty(); ++step)
    wrong = Gather(**connected, rank, step);
  Report(rank, wrong.empty() ? absl::StrCat(CpuSeconds() - cpu) : wrong);
  WaitForGate(2);
  for (int step = 0; wrong.empty(); ++step) wrong = Gather(**connected, rank, step);
  Report(rank, wrong);
  return 0;
}

// --- The parent ----------------------------------------------------------------------------------

class Parent {
 public:
  explicit Parent(const Arguments& arguments) : arguments_(arguments) {}

  int Run() {
    char folder[] = "/tmp/light_ranks_XXXXXX";
    if (mkdtemp(folder) == nullptr) return Complain("cannot make a folder");
    arguments_.endpoints = absl::StrCat(folder, "/endpoints");
    Start();
    const int result = Measure();
    for (const auto& [rank, process] : processes_) kill(process, SIGKILL);
    for (const auto& [rank, process] : processes_) waitpid(process, nullptr, 0);
    unlink(arguments_.endpoints.c_str());
    rmdir(folder);
    return result;
  }

 private:
  static int Complain(const std::string& what) {
    std::fprintf(stderr, "light_ranks: %s\n", what.c_str());
    return 1;
  }

  void Start() {
    int ends[2];
    for (int i = 0; i <= kGates; ++i) {
      if (pipe2(ends, O_CLOEXEC) != 0) std::abort();
      // The ranks inherit the reading ends of gates, and the writing end of reports.
      dup2(ends[i == 0 ? 1 : 0], kReports + i);
      close(ends[i == 0 ? 1 : 0]);
      (i == 0 ? reports_ : gates_[i - 1]) = ends[i == 0 ? 0 : 1];
    }
    for (int rank = 0; rank < arguments_.ranks; ++rank) {
      const pid_t process = fork();
      if (process == 0) {
        const std::vector<std::string> texts = {"light_ranks",
                                                absl::StrCat(arguments_.ranks),
                                                absl::StrCat(arguments_.gathers),
                                                absl::StrCat(arguments_.most_at_once),
                                                arguments_.endpoints,
                                                absl::StrCat(rank)};
        std::vector<char*> argv;
        for (const std::string& text : texts) argv.push_back(const_cast<char*>(text.c_str()));
        argv.push_back(nullptr);
        execv("/proc/self/exe", argv.data());
        _exit(1);
      }
      if (process > 0) processes_[rank] = process;
    }
    for (int i = 0; i <= kGates; ++i) close(kReports + i);
  }

  void Open(int gate) const { close(gates_[gate]); }

  // Reads a line of each rank but `but`; nothing if one ends without it.
  std::optional<std::map<int, std::string>> Read(int but = -1) {
    std::map<int, std::string> lines;
    const size_t expected = static_cast<size_t>(arguments_.ranks) - (but < 0 ? 0 : 1);
    while (lines.size() < expected) {
      const size_t end = text_.find('\n');
      if (end == std::string::npos) {
        char buffer[1 << 16];
        const ssize_t count = read(reports_, buffer, sizeof(buffer));
        if (count <= 0) return std::nullopt;
        text_.append(buffer, static_cast<size_t>(count));
        continue;
      }
      const std::vector<std::string> parts =
          absl::StrSplit(text_.substr(0, end), absl::MaxSplits(' ', 1));
      text_.erase(0, end + 1);
      const int rank = std::atoi(parts[0].c_str());
      if (rank != but) lines[rank] = parts[1];
    }
    return lines;
  }

  int Measure() {
    const auto endpoints = Read();
    if (!endpoints.has_value()) return Complain("a rank did not start");
    {
      std::ofstream file(arguments_.endpoints);
      for (const auto& [rank, endpoint] : *endpoints) file << endpoint << '\n';
    }
    Clock::time_point start = Clock::now();
    Open(0);
    const auto met = Read();
    const double meeting = Seconds(start);
    if (!met.has_value()) return Complain("a rank did not connect");
    for (const auto& [rank, text] : *met) {
      if (text != "met") return Complain(text);
    }
    start = Clock::now();
    Open(1);
    const auto gathered = Read();
    const double gathering = Seconds(start);
    if (!gathered.has_value()) return Complain("a rank ended");
    double cpu = 0, most = 0;
    for (const auto& [rank, text] : *gathered) {
      double seconds = 0;
      if (!absl::SimpleAtod(text, &seconds)) return Complain(text);
      cpu += seconds;
      most = std::max(most, seconds);
    }
    const int victim = arguments_.ranks / 3;
    start = Clock::now();
    kill(processes_[victim], SIGKILL);
    Open(2);
    const auto named = Read(victim);
    const double naming = Seconds(start);
    if (!named.has_value()) return Complain("a rank ended without an error");
    for (const auto& [rank, text] : *named) {
      if (!absl::StrContains(text, absl::StrCat("rank ", victim, " was lost")))
        return Complain(absl::StrCat("rank ", rank, " says: ", text));
    }
    std::printf("%8s %10s %12s %14s %12s %10s\n", "ranks", "meeting s", "gathering us",
                "CPU us of each", "most CPU us", "naming s");
    std::printf("%8d %10.3f %12.1f %14.1f %12.1f %10.3f\n", arguments_.ranks, meeting,
                1e6 * gathering / arguments_.gathers,
                1e6 * cpu / arguments_.gathers / arguments_.ranks, 1e6 * most / arguments_.gathers,
                naming);
    return 0;
  }

  Arguments arguments_;
  std::map<int, pid_t> processes_;
  int reports_ = -1, gates_[kGates] = {};
  std::string text_;
};

int Main(int argc, char** argv) {
  Arguments arguments;
  if (argc < 3 || !absl::SimpleAtoi(argv[1], &arguments.ranks) || arguments.ranks < 3 ||
      !absl::SimpleAtoi(argv[2], &arguments.gathers) || arguments.gathers < 1 ||
      (argc > 3 && !absl::SimpleAtoi(argv[3], &arguments.most_at_once))) {
    std::fprintf(stderr, "light_ranks RANKS GATHERS [MOST_AT_ONCE]: at least 3 ranks\n");
    return 2;
  }
  if (argc > 5 && absl::SimpleAtoi(argv[5], &arguments.rank)) {
    arguments.endpoints = argv[4];
    return RunRank(arguments);
  }
  return Parent(arguments).Run();
}

}  // namespace
}  // namespace lockstep::sharding

int main(int argc, char** argv) { return lockstep::sharding::Main(argc, argv); }
