// Real processes for tests: one command, or one command as the N ranks of a run.
//
//   TEST(RunRanks, HeaderExample) {
//     const std::vector<Ended> ranks =
//         RunRanks(2, {.argv = {"/bin/sh", "-c", "echo rank $RANK of $WORLD_SIZE"}});
//
//     EXPECT_EQ(ranks[0].out, "rank 0 of 2\n");
//     EXPECT_EQ(ranks[1].exit_code, 0) << ranks[1].err;
//   }
//
// A test can also be each of the ranks itself:
//
//   TEST(AllReduce, SumsOverRanks) {
//     const std::optional<Rank> rank = OnRanks(2);
//     if (!rank.has_value()) return;  // the test's own process: both ranks have ended, and passed
//
//     ...  // here each rank: meet at MASTER_ADDR:MASTER_PORT, compute, EXPECT_EQ
//   }
//
// Every process leads a process group of its own and has a watchdog: when its time is up the whole
// group is killed, and the test fails with what was printed. Processes end with the test, however
// it ends. They inherit the environment, less what a launcher of ranks or GoogleTest put there, and
// with OMP_NUM_THREADS=1. Nothing here sleeps or polls a clock: it waits for output and for ends.
//
// Not for failures of a process that a thread can show as well: those want a plain test.
// Thread: the test's, which must be the thread that started the process.

#ifndef LOCKSTEP_TESTS_SUPPORT_RANKS_H_
#define LOCKSTEP_TESTS_SUPPORT_RANKS_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace lockstep::tests {

using Variables = std::map<std::string, std::string>;

struct Command {
  std::vector<std::string> argv = {};          // a program's path, and its arguments
  Variables environment = {};                  // set beside what is inherited
  std::string folder = {};                     // to run in; empty: the test's
  std::string input = {};                      // what stdin gives before its end; at most 64 KiB
  absl::Duration timeout = absl::Seconds(60);  // the watchdog's, from the start
};

struct Ended {
  int exit_code = 0;  // as a shell tells it: 128 + n where signal n ended the process
  std::string out;
  std::string err;
};

// One process. Reads what it prints from the start, so that no pipe fills up while a wait lasts.
class Child {
 public:
  explicit Child(const Command& command);
  ~Child();  // kills the group where it still runs
  Child(Child&& other) noexcept;
  Child& operator=(Child&&) = delete;

  pid_t pid() const { return pid_; }

  // Blocks until stdout has a whole line that holds `text`; returns the first such line. Fails the
  // test and returns "" where the process ends, or its time, before.
  std::string WaitForLine(const std::string& text);

  // To the process alone, not to its group.
  void Send(int signal);

  // Closes the test's ends of stdout and stderr: who writes there gets SIGPIPE.
  void CloseOutput();

  // Blocks until the process has ended; then kills what it left behind in its group.
  Ended Wait();

 private:
  friend std::vector<Ended> WaitForAll(std::vector<Child>& children,
                                       const std::vector<std::string>& names);

  enum class State { kRunning, kEnded, kTimedOut };
  static void Poll(const std::vector<Child*>& children);
  void Read(int& fd, std::string& text);
  void CheckForEnd();
  void KillGroup();
  std::string Describe() const;

  std::string name_;  // of the program, for messages
  absl::Time deadline_;
  pid_t pid_ = -1;
  int pid_fd_ = -1;  // readable when the process has ended
  int out_fd_ = -1;
  int err_fd_ = -1;
  State state_ = State::kRunning;
  Ended ended_;
};

// Starts the process and waits for its end.
Ended RunOne(const Command& command);

// Waits for all at once. A failure of the watchdog names each that still ran, by `names`.
std::vector<Ended> WaitForAll(std::vector<Child>& children, const std::vector<std::string>& names);

// Blocks until the process, which need not be a child of the test, has ended; false after
// `timeout`.
bool WaitUntilGone(pid_t pid, absl::Duration timeout = absl::Seconds(10));

// A port of 127.0.0.1 that the kernel chose and gives to nobody else while this lives; a server
// that sets SO_REUSEADDR, as c10d's does, can listen there.
class ReservedPort {
 public:
  ReservedPort();
  ~ReservedPort();
  ReservedPort(const ReservedPort&) = delete;
  ReservedPort& operator=(const ReservedPort&) = delete;
  uint16_t number() const { return number_; }

 private:
  int fd_ = -1;
  uint16_t number_ = 0;
};

// What the launcher of a run tells a rank.
using RankEnvironment = std::function<Variables(int rank, int num_ranks, uint16_t port)>;

// RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT.
Variables TorchrunEnvironment(int rank, int num_ranks, uint16_t port);

// Starts `command` num_ranks times, each with `environment`; WaitForAll waits for them.
std::vector<Child> StartRanks(int num_ranks, const Command& command, const ReservedPort& port,
                              const RankEnvironment& environment = TorchrunEnvironment);

// Starts the ranks and waits until all have ended: what each printed and how it ended, by rank. An
// exit code is no failure of the test: that is for the caller to say.
std::vector<Ended> RunRanks(int num_ranks, const Command& command,
                            const RankEnvironment& environment = TorchrunEnvironment);

struct Rank {
  int rank = 0;
  int world_size = 1;
};

// Runs the test that calls this as `num_ranks` processes of the same program: in each of them
// returns the rank. In the test's own process returns nothing, after all have ended, and with a
// failure for each rank that has failed. Call it first.
std::optional<Rank> OnRanks(int num_ranks, absl::Duration timeout = absl::Seconds(60));

}  // namespace lockstep::tests

#endif  // LOCKSTEP_TESTS_SUPPORT_RANKS_H_
