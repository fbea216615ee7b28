// Decides whether a run whose ranks have ended is started again: `--restarts N`.
//
//    Restarts restarts(10);
//    const Restarts::Decision decision = restarts.After(attempt);
//    Say(decision.text);
//    if (decision.starts_again) StartRanks(restarts.count());
//
// A failure that comes back at the same step would use up every restart, so the third in a row ends
// the run. Exit codes that say that nothing will be better (kUsageError), an interrupt and SIGTERM
// end it at once. Not thread-safe.

#ifndef LOCKSTEP_DRIVER_LAUNCH_RESTARTS_H_
#define LOCKSTEP_DRIVER_LAUNCH_RESTARTS_H_

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep::driver {

// The exit code of a wrong command line or configuration.
inline constexpr int kUsageError = 2;

// The end of the ranks after one start.
struct Attempt {
  int exit_code = 0;
  bool has_failed = false;      // a rank failed, and nobody has asked the run to end
  std::string cause;            // the first line of the failure's report
  std::optional<int64_t> step;  // of the rank that failed; nullopt before the first step
  std::string run_dir;          // "" if the ranks have not chosen one yet
};

class Restarts {
 public:
  static constexpr int kFailuresAtAStep = 3;

  explicit Restarts(int most) : most_(most) {}

  struct Decision {
    bool starts_again = false;
    std::string text;  // to print; "" if there is nothing to say
  };

  // Decides what follows on this end of the ranks, and counts the restart.
  Decision After(const Attempt& attempt);

  int count() const { return count_; }  // restarts so far

 private:
  const int most_;
  int count_ = 0;
  std::optional<int64_t> last_step_;
  int failures_at_step_ = 0;  // in a row, at last_step_
};

// Returns the line of metrics.jsonl about restart number `count`, which follows on `attempt`.
std::string RestartRecord(int count, const Attempt& attempt);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_LAUNCH_RESTARTS_H_
