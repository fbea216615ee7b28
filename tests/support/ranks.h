// Real processes for tests: one command, or one command as the N ranks of a run.
//
//    TEST(RunRanks, HeaderExample) {
//      const std::vector<Ended> ranks =
//          RunRanks(2, {.argv = {"/bin/sh", "-c", "echo rank $RANK of $WORLD_SIZE"}});
//
//      EXPECT_EQ(ranks[0].out, "rank 0 of 2\n");
//      EXPECT_EQ(ranks[1].exit_code, 0) << ranks[1].err;
//    }
//
// A test can also be each of the ranks itself:
//
//    TEST(AllReduce, SumsOverRanks) {
//      const std::optional<Rank> rank = OnRanks(2);
//      if (!rank.has_value()) return;  // the test's own process: both ranks have ended and passed
//
//      ...  // on each rank: connect to MASTER_ADDR:MASTER_PORT, compute, EXPECT_EQ
//    }
//
// Every process leads a process group of its own and has a watchdog. When its time is up, the whole
// group is killed, and the test fails with the output so far. Processes end with the test, however
// it ends. They inherit the environment, less what a launcher of ranks or GoogleTest put there, and
// with OMP_NUM_THREADS=1. Nothing here sleeps or polls a clock: it waits for output and for ends.
//
// Use a plain test for failures that a thread can show as well.
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
#include "base/deadline.h"

namespace lockstep::tests {

using Variables = std::map<std::string, std::string>;

struct Command {
  std::vector<std::string> argv = {};          // a program's path, and its arguments
  Variables environment = {};                  // added to the inherited variables
  std::string folder = {};                     // to run in; empty: the test's
  std::string input = {};                      // the whole of stdin; at most 64 KiB
  absl::Duration timeout = absl::Seconds(60);  // the watchdog's, from the start
};

struct Ended {
  int exit_code = 0;  // as in a shell: 128 + n if signal n ended the process
  std::string out;
  std::string err;
};

// One process. Reads its output from the start, so that no pipe fills up during a wait.
class Child {
 public:
  explicit Child(const Command& command);
  ~Child();  // kills the group if it still runs
  Child(Child&& other) noexcept;
  Child& operator=(Child&&) = delete;

  pid_t pid() const { return pid_; }

  // Blocks until stdout has a complete line that contains `text`, and returns the first such line.
  // Fails the test and returns "" if the process ends, or its time is up, before.
  std::string WaitForLine(const std::string& text);

  // Sends a signal to the process only, not to its group.
  void Send(int signal);

  // Closes the test's ends of stdout and stderr. A process that writes there gets SIGPIPE.
  void CloseOutput();

  // Blocks until the process has ended, then kills the rest of its group.
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
  Deadline deadline_;
  pid_t pid_ = -1;
  int pid_fd_ = -1;  // readable when the process has ended
  int out_fd_ = -1;
  int err_fd_ = -1;
  State state_ = State::kRunning;
  Ended ended_;
};

// Starts the process and waits for its end.
Ended RunOne(const Command& command);

// Waits for all children. A failure of the watchdog names each child that still ran, by `names`.
std::vector<Ended> WaitForAll(std::vector<Child>& children, const std::vector<std::string>& names);

// Blocks until the process, which need not be a child of the test, has ended. Returns false after
// `timeout`.
bool WaitUntilGone(pid_t pid, absl::Duration timeout = absl::Seconds(10));

// A port of 127.0.0.1 that the kernel chose and does not give to others while this object lives. A
// server that sets SO_REUSEADDR, as c10d's does, can listen there.
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

// Returns the environment variables that a launcher sets for a rank.
using RankEnvironment = std::function<Variables(int rank, int num_ranks, uint16_t port)>;

// Returns RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
Variables TorchrunEnvironment(int rank, int num_ranks, uint16_t port);

// Starts `command` num_ranks times, each with `environment`; WaitForAll waits for them.
std::vector<Child> StartRanks(int num_ranks, const Command& command, const ReservedPort& port,
                              const RankEnvironment& environment = TorchrunEnvironment);

// Starts the ranks and waits until all have ended. Returns the output and exit code of each, by
// rank. A nonzero exit code does not fail the test: check it.
std::vector<Ended> RunRanks(int num_ranks, const Command& command,
                            const RankEnvironment& environment = TorchrunEnvironment);

struct Rank {
  int rank = 0;
  int world_size = 1;
};

// Runs the calling test as `num_ranks` processes of the same program, and returns the rank in each
// of them. In the test's own process it returns nothing, after all have ended, and adds a failure
// for each rank that has failed. Call it first.
std::optional<Rank> OnRanks(int num_ranks, absl::Duration timeout = absl::Seconds(60));

}  // namespace lockstep::tests

#endif  // LOCKSTEP_TESTS_SUPPORT_RANKS_H_
